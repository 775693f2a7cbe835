# frozen_string_literal: true

RSpec.describe "The documents" do
  root = File.expand_path("..", __dir__)
  documents = Dir[File.join(root, "{*.md,docs/**/*.md}")]

  # As a table of docs/architecture.md names files: several in a cell, a folder with a slash at its end.
  def named_in(section)
    section.scan(/^\| (`.+?) \|/).flatten.flat_map { |cell| cell.scan(/`(.+?)`/).flatten }
  end

  documents.each do |document|
    it "link to files that are there: #{document.delete_prefix("#{root}/")}" do
      links = File.read(document).scan(/\]\((?!#|[a-z]+:)([^)#]+)/).flatten

      expect(links.reject { |link| File.exist?(File.expand_path(link, File.dirname(document))) }).to be_empty
    end
  end

  describe "docs/architecture.md" do
    text = File.read(File.join(root, "docs/architecture.md"))

    { "src" => "rs", "ext/pgbus_native/src" => "rs", "lib/pgbus_native" => "{rb,rake}" }.each do |folder, extension|
      it "says what each file in #{folder}/ does, and names none that is not there" do
        named = named_in(text[%r{^`#{folder.delete_suffix("/src")}/`.*?(?=^`\S+/`|^## )}m])
        files = Dir.glob("**/*.#{extension}", base: File.join(root, folder))
        folders, named_files = named.partition { |name| name.end_with?("/") }
        # The crate's root, and a constant, explain themselves.
        unexplained = files - named_files - (folder == "ext/pgbus_native/src" ? [] : %w[lib.rs version.rb])

        expect(unexplained.reject { |file| file.start_with?(*folders) }).to be_empty
        expect(named.reject { |name| File.exist?(File.join(root, folder, name)) }).to be_empty
      end
    end

    it "says what each folder is for" do
      folders = Dir[File.join(root, "*/")].map { |path| "#{File.basename(path)}/" } - %w[target/ tmp/ pkg/ doc/ vendor/]

      expect(folders.reject { |folder| text.include?("`#{folder}") }).to be_empty
    end
  end

  describe "CHANGELOG.md" do
    text = File.read(File.join(root, "CHANGELOG.md"))

    it "has the form of Keep a Changelog: versions with a date, the newest first, and changes by their kind" do
      headings = text.scan(/^(##+) (.+)$/).group_by(&:first).transform_values { |pairs| pairs.map(&:last) }
      dated = /\A\[(\d+\.\d+\.\d+)\] - (?:\d{4}-\d\d-\d\d|Unreleased)\z/
      versions = headings.fetch("##").map { |heading| Gem::Version.new(heading[dated, 1]) }

      expect(text).to start_with("# Changelog\n")
      expect(headings.fetch("##")).to all(match(dated))
      expect(versions).to eq(versions.sort.reverse)
      expect(headings.fetch("###") - %w[Added Changed Deprecated Removed Fixed Security]).to be_empty
    end

    it "begins with the version that is being worked on, or was released last" do
      expect(text[/^## \[(.+?)\]/, 1]).to eq(Pgbus::Native::VERSION)
    end
  end

  describe "CONTRIBUTING.md, SECURITY.md and README.md" do
    text = %w[CONTRIBUTING.md SECURITY.md README.md].map { |document| File.read(File.join(root, document)) }.join

    it "name programs and files that there are" do
      paths = text.scan(%r{(?<![\w/.])(?:bin|spec|docs|lib|sig|bench|src|ext|examples|demo)/[\w/.-]*\w}).uniq

      expect(paths).to include("bin/test", "spec/native_spec.rb")
      # A Rails application's own; and what the first complete benchmark makes.
      expect(paths.reject { |path| File.exist?(File.join(root, path)) } - %w[bin/rails docs/performance]).to be_empty
    end

    it "name Rake's tasks that there are" do
      rakefiles = Dir[File.join(root, "{Rakefile,rakelib/*.rake}")].map { |path| File.read(path) }.join
      tasks = text.scan(/\bexec rake ((?:[a-z]+ ?)+)/).flatten.flat_map(&:split).uniq

      expect(tasks).to include("licenses", "deny")
      # Tasks of the extension and of RSpec.
      expect(tasks.reject { |task| rakefiles.include?("task :#{task} do") } - %w[compile spec]).to be_empty
    end
  end
end
