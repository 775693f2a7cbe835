# frozen_string_literal: true

RSpec.describe "Unsafe code" do
  root = File.expand_path("..", __dir__)
  sources = Dir[File.join(root, "{src,ext}/**/*.rs")]

  let(:code) do
    sources.to_h { |path| [path.delete_prefix("#{root}/"), File.read(path).gsub(%r{//.*}, "")] }
  end

  it "is counted and explained in SECURITY.md, file by file" do
    counted = code.transform_values { |text| text.scan(/\bunsafe\b/).size }.reject { |_, count| count.zero? }
    explained = File.read(File.join(root, "SECURITY.md")).scan(/^\| `(\S+\.rs)` \| (\d+) \| \S.+ \|$/)

    expect(explained.to_h.transform_values(&:to_i)).to eq(counted)
  end

  it "has its reason above it, or clippy refuses it, with no exceptions" do
    manifests = Dir[File.join(root, "{,ext/*/}Cargo.toml")].map { |path| File.read(path) }

    expect(manifests.first).to match(/^\[workspace\.lints\.clippy\]\n(?:.+\n)*undocumented_unsafe_blocks = "deny"$/)
    expect(manifests).to all(match(/^\[lints\]\nworkspace = true$/))
    expect(code.values.grep(/undocumented_unsafe_blocks|missing_safety_doc/)).to be_empty
  end
end
