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

  it "has the text of every crate's licence, but of one that wants none" do
    crates = Licenses.new.crates
    with_texts, without = crates.partition { |crate| crate.texts.any? }

    expect(with_texts.flat_map(&:texts).reject { |text| file.include?(text) }).to be_empty
    expect(without.map(&:license)).to all(match(/\bZlib OR\b/))
  end
end
