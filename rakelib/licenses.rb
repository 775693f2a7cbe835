# frozen_string_literal: true

require "json"
require "open3"

# The crates that are linked into the extension and their licences, which want to be passed on with it.
class Licenses
  ROOT = File.expand_path("..", __dir__)
  FILE = File.join(ROOT, "THIRD_PARTY_LICENSES.md")
  # One of each system: others link the same crates.
  PLATFORMS = %w[x86_64-unknown-linux-gnu aarch64-apple-darwin].freeze

  Crate = Data.define(:name, :version, :license, :folder) do
    # The licence's own text. Of several licences, of which one may be chosen, MIT's; Unicode's comes on top.
    def texts
      files = Dir.children(folder).grep(/\A(?:licen[cs]e|copying|copyright)/i).sort
      chosen = license.match?(%r{ OR |/}) ? files.grep(/mit|unicode/i) : []
      (chosen.any? ? chosen : files).map { |file| File.join(folder, file) }.select { |path| File.file?(path) }
                                    .map { |path| File.read(path, encoding: Encoding::UTF_8).strip }
    end

    def to_s
      "#{name} #{version}"
    end
  end

  # What cargo knows of the packages in Cargo.lock. It fetches those that are not there yet.
  def self.metadata
    platforms = PLATFORMS.flat_map { |platform| ["--filter-platform", platform] }
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *platforms]
    output, errors, status = Open3.capture3(*command, chdir: ROOT)
    raise "#{command.join(" ")}: #{errors}" unless status.success?

    JSON.parse(output)
  end

  def initialize(metadata = self.class.metadata)
    @packages = metadata.fetch("packages").to_h { |package| [package.fetch("id"), package] }
    @nodes = metadata.fetch("resolve").fetch("nodes").to_h { |node| [node.fetch("id"), node.fetch("deps")] }
  end

  # @return [Array<Crate>] without the project's own
  def crates
    linked.select { |package| package["source"] }.map do |package|
      Crate.new(package.fetch("name"), package.fetch("version"), package.fetch("license"),
                File.dirname(package.fetch("manifest_path")))
    end.sort_by(&:to_s)
  end

  # @return [String] the contents of {FILE}
  def text
    <<~MARKDOWN
      # Licences of the crates in the extension

      Made by `rake licenses` from Cargo.lock. A gem with a compiled extension holds these
      #{crates.size} crates, but for some that only Linux or only macOS needs; where there is a choice of licences,
      it is MIT that is chosen, or Zlib by a crate that comes without a text: Zlib wants none beside a compiled work.

      | crate | version | licence |
      |---|---|---|
      #{crates.map { |crate| "| #{crate.name} | #{crate.version} | #{crate.license} |" }.join("\n")}

      #{sections.join("\n\n")}
    MARKDOWN
  end

  private

  # From the extension along the dependencies that end up in it: not those of tests, of build scripts and of macros.
  def linked
    root = @packages.values.find { |package| package.fetch("name") == "pgbus_native" }
    found = { root.fetch("id") => root }
    pending = [root]
    while (package = pending.shift)
      dependencies(package).each do |dependency|
        pending << dependency unless found.key?(dependency.fetch("id"))
        found[dependency.fetch("id")] = dependency
      end
    end
    found.values
  end

  def dependencies(package)
    @nodes.fetch(package.fetch("id")).select { |node| node.fetch("dep_kinds").any? { |kind| kind["kind"].nil? } }
          .map { |node| @packages.fetch(node.fetch("pkg")) }
          .reject { |dependency| dependency.fetch("targets").any? { |target| target["kind"].include?("proc-macro") } }
  end

  def sections
    by_text = crates.flat_map { |crate| crate.texts.map { |text| [text, crate] } }.group_by(&:first)
    by_text.map do |text, pairs|
      "## #{pairs.map { |_, crate| crate.to_s }.join(", ")}\n\n~~~~text\n#{text}\n~~~~"
    end
  end
end
