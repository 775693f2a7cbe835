# frozen_string_literal: true

require_relative "../rakelib/licenses"

RSpec.describe "THIRD_PARTY_LICENSES.md" do
  let(:file) { File.read(Licenses::FILE) }
  let(:listed) { file.scan(/^\| (\S+) \| (\d\S*) \| (.+) \|$/) }

  it "names only crates of Cargo.lock, in the versions there" do
    locked = File.read(File.join(Licenses::ROOT, "Cargo.lock")).scan(/^name = "(.+)"\nversion = "(.+)"$/)

    expect(listed).not_to be_empty
    expect(listed.map { |crate| crate.first(2) } - locked).to be_empty
  end

  it "is what rake licenses would write now" do
    expect(file).to eq(Licenses.new.text), "Cargo.lock has changed: run `bundle exec rake licenses`"
  end

  it "has the text of every crate's licence" do
    texts = Licenses.new.crates.map(&:texts)

    expect(texts).to all(be_any)
    expect(texts.flatten.reject { |text| file.include?(text) }).to be_empty
  end
end
