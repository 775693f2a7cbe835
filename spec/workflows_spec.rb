# frozen_string_literal: true

require "open3"
require "yaml"

# The workflows run elsewhere; what can be wrong with them is looked for here.
RSpec.describe "The workflows" do
  root = File.expand_path("..", __dir__)
  files = Dir[File.join(root, ".github/workflows/*.yml")]

  let(:gemspec) { Gem::Specification.load(File.join(root, "pgbus_native.gemspec")) }
  let(:matrix) { workflow("ci")["jobs"]["test"]["strategy"]["matrix"] }

  def workflow(name)
    YAML.safe_load_file(File.expand_path("../.github/workflows/#{name}.yml", __dir__))
  end

  # Whether the gemspec's requirement takes each of the versions in a list, and which of these is the oldest.
  def expect_versions(requirement, versions, oldest:, too_old:)
    expect(versions.min_by { |version| Gem::Version.new(version) }).to eq(oldest)
    expect(versions.reject { |version| requirement.satisfied_by?(Gem::Version.new("#{version}.0")) }).to be_empty
    expect(requirement).not_to be_satisfied_by(Gem::Version.new("#{too_old}.99"))
  end

  it "test the Rubies that the gemspec allows, from the oldest on, and the next one" do
    *released, head = matrix["ruby"]

    expect(head).to eq("head")
    expect(released).to include("3.3", "3.4")
    expect_versions(gemspec.required_ruby_version, released, oldest: "3.3", too_old: "3.2")
  end

  it "test every Rails from 7.1 to 8.1, which the gemspec allows" do
    rails = gemspec.dependencies.find { |dependency| dependency.name == "activerecord" }.requirement

    expect(matrix["rails"]).to eq(%w[7.1 7.2 8.0 8.1])
    expect_versions(rails, matrix["rails"], oldest: "7.1", too_old: "7.0")
  end

  it "choose that Rails by a variable that the Gemfile reads" do
    expect(workflow("ci")["jobs"]["test"]["env"]).to eq("RAILS_VERSION" => "${{ matrix.rails }}")
    expect(File.read(File.expand_path("../Gemfile", __dir__))).to include('ENV["RAILS_VERSION"]')
  end

  it "run bin/test" do
    jobs = workflow("ci")["jobs"]

    expect(jobs.values_at("test", "debian").map { |job| job["steps"].last["run"] }).to eq(%w[bin/test bin/test])
  end

  it "make the precompiled gems that the Rakefile has tasks for" do
    tasks, status = Open3.capture2e(RbConfig.ruby, Gem.bin_path("rake", "rake"), "--prereqs", chdir: root)
    platforms = workflow("gems")["jobs"]["precompiled"]["strategy"]["matrix"]["platform"]

    expect(status).to be_success, tasks
    expect(tasks.lines.grep(/^rake gem:/).map { |line| line.split(":").last.strip } - ["platforms"])
      .to match_array(platforms)
  end

  files.each do |path|
    it "have, in #{File.basename(path)}, no action without a version, a time limit for every job and no more rights " \
       "than to read" do
      workflow = workflow(File.basename(path, ".yml"))
      actions = workflow["jobs"].values.flat_map { |job| job["steps"] }.filter_map { |step| step["uses"] }

      expect(workflow["permissions"]).to eq("contents" => "read")
      expect(workflow["jobs"].values).to all(include("timeout-minutes" => be_between(5, 120), "steps" => be_any))
      expect(actions).to be_any.and all(match(%r{\A[\w-]+/[\w-]+@v\d+\z}))
    end
  end
end
