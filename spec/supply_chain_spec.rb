# frozen_string_literal: true

require_relative "../rakelib/licenses"

# What cargo-deny would say of licences, sources and bans, where it is not installed. Of known vulnerabilities only
# cargo-deny knows, since they are in a database that changes daily.
RSpec.describe "deny.toml" do
  let(:settings) { File.read(File.join(Licenses::ROOT, "deny.toml")) }
  let(:allowed) { list("allow") }
  let(:packages) { crates.select { |package| package["source"] } }

  def list(name)
    settings[/^#{name} = \[(.*?)\]/m, 1].scan(/"([^"]+)"/).flatten
  end

  # What the extension and its build are made of: everything but what only tests depend on.
  def crates
    metadata = Licenses.metadata
    nodes = metadata["resolve"]["nodes"].to_h { |node| [node["id"], node["deps"]] }
    found = metadata["workspace_members"].dup
    found.each do |id|
      needed = nodes[id].reject { |dependency| dependency["dep_kinds"].all? { |kind| kind["kind"] == "dev" } }
      found.concat(needed.map { |dependency| dependency["pkg"] } - found)
    end
    metadata["packages"].select { |package| found.include?(package["id"]) }
  end

  # The licences that take part in a choice which the allowed ones can make; none if they cannot.
  def chosen(expression, allowed)
    # An outdated way to say OR.
    alternatives = expression.gsub("/", " OR ").gsub(/\(([^()]*) OR ([^()]*)\) AND (.+)/, '\1 AND \3 OR \2 AND \3')
    raise "not understood: #{expression}" if alternatives.match?(/[()]/)

    alternatives.split(" OR ").map { |one| one.split(" AND ") }.find { |one| (one - allowed).empty? }.to_a
  end

  it "allows a licence of every crate, and none that no crate has" do
    chosen_by = packages.to_h { |package| [package["name"], chosen(package["license"], allowed)] }

    expect(packages.size).to be > 50
    expect(chosen_by.select { |_, licences| licences.empty? }.keys).to be_empty
    expect(chosen_by.values.flatten.uniq).to match_array(allowed)
  end

  it "is not met by a licence that is not in its list, alone or beside one that is" do
    expect(chosen("GPL-3.0-only", allowed)).to be_empty
    expect(chosen("MIT AND GPL-3.0-only", allowed)).to be_empty
    expect(chosen("(MIT OR GPL-3.0-only) AND LGPL-3.0", allowed)).to be_empty
    expect(chosen("(GPL-3.0-only OR MIT) AND ISC", allowed)).to eq(%w[MIT ISC])
    expect(chosen("GPL-3.0-only/MIT", allowed)).to eq(["MIT"])
  end

  it "wants crates from the registry of Cargo alone, each with its checksum" do
    locked = File.read(File.join(Licenses::ROOT, "Cargo.lock")).split("[[package]]").drop(1)
    others = locked.grep_v(/^name = "pgbus_native(_core)?"$/)

    expect(settings).to match(/^unknown-registry = "deny"$/).and match(/^unknown-git = "deny"$/)
    expect(others).to all(match(/^source = "registry\+/).and(match(/^checksum = "\h{64}"$/)))
  end

  it "bans crates that are not in use" do
    expect(list("deny")).not_to be_empty
    expect(list("deny") & packages.map { |package| package["name"] }).to be_empty
  end
end
