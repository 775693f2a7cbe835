# frozen_string_literal: true

require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"

require_relative "support/signatures"

RSpec.describe "The signatures in sig/" do
  # Runs the block with the folder of a copy, in which a text of one file is another one.
  def with_a_wrong_copy(file, text, wrong)
    Dir.mktmpdir do |folder|
      FileUtils.cp_r("#{Signatures::FOLDER}/.", folder)
      path = File.join(folder, file)
      source = File.read(path)
      expect(source).to include(text)
      File.write(path, source.sub(text, wrong))
      yield folder
    end
  end

  def validate(folder)
    libraries = Signatures.libraries(folder).flat_map { |library| ["-r", library] }
    script = "require 'rbs'; require 'rbs/cli'; RBS::CLI.new(stdout: $stdout, stderr: $stderr).run(ARGV)"
    Open3.capture2e(RbConfig.ruby, "-e", script, "--", *libraries, "-I", folder, "-I", Signatures::OUTSIDE, "validate")
  end

  # Runs examples of Presence with every call checked.
  def check_calls(folder, *options)
    script = "exit RSpec::Core::Runner.run(ARGV)"
    Open3.capture2e({ "SIGNATURES" => folder }, RbConfig.ruby, "-rrspec/core", "-e", script, "--", "--require",
                    File.join(__dir__, "support/checked_types"), *options,
                    File.join(__dir__, "pgbus/streams/presence_spec.rb"), chdir: File.dirname(__dir__))
  end

  it "are valid, and there are no warnings" do
    output, status = validate(Signatures::FOLDER)

    expect(output).to eq("")
    expect(status).to be_success
  end

  it "are valid for applications, which do not see those in _inside" do
    Dir.mktmpdir do |folder|
      FileUtils.cp(Dir[File.join(Signatures::FOLDER, "*.{rbs,yaml}")], folder)

      expect(validate(folder)).to match(["", be_success])
    end
  end

  it "are not valid with a type that does not exist" do
    with_a_wrong_copy("presence.rbs", "def count: () -> Integer", "def count: () -> Intger") do |folder|
      output, status = validate(folder)

      expect(output).to include("Intger")
      expect(status).not_to be_success
    end
  end

  # What it finds with every file of the gem loaded.
  def compare
    paths = %w[../lib support/stand_in].flat_map { |path| ["-I", File.expand_path(path, __dir__)] }
    output, errors, status = Open3.capture3(RbConfig.ruby, *paths, File.join(__dir__, "support/compare_signatures.rb"))
    raise errors unless status.success?

    JSON.parse(output)
  end

  it "are those of the code: every class, constant, public method and parameter, and no others" do
    expect(compare).to be_empty
  end

  {
    "a method too many" => ["presence.rbs", "def count: () -> Integer",
                            "def size: () -> Integer\ndef count: () -> Integer",
                            ["Pgbus::Streams::Presence#size: not in the code"]],
    "a method too few" => ["presence.rbs", "def count: () -> Integer", "",
                           ["Pgbus::Streams::Presence#count: no signature"]],
    "a keyword too few" => ["presence.rbs", "?seat: _ToS?", "", [/\APgbus::Streams::Presence#join: the signature has/]],
    "a keyword that is not required" => ["presence.rbs", "state: Hash", "?state: Hash",
                                         [/\APgbus::Streams::Presence#set_state: the signature has/]],
    "a keyword that no overload has" => ["presence.rbs", ", ?connection_id: nil", ", ?connection: nil",
                                         [/\APgbus::Streams::Presence#touch: the signature has/]],
    "another name" => ["presence.rbs", "record record", "record row",
                       [/\APgbus::Streams::Presence.report_change: the signature has/]],
    "another number of a native method's parameters" => [
      "_inside/extension.rbs", "run: (Statement statement, Array[param] params)", "run: (Statement statement)",
      [/\APgbus::Native::Database#run: the signature has/]
    ],
    "a class too few" => ["native.rbs", "class UnsupportedError < StandardError\n    end", "",
                          ["Pgbus::Native::UnsupportedError: no signature"]],
    "another superclass" => ["native.rbs", "UnsupportedError < StandardError", "UnsupportedError < ArgumentError",
                             [/\APgbus::Native::UnsupportedError: the signature has a subclass of ::ArgumentError/]],
    "a constant too few" => ["native.rbs", "VERSION: String", "", ["Pgbus::Native::VERSION: no signature"]],
    "a constant of another type" => ["native.rbs", "VERSION: String", "VERSION: Integer",
                                     [/\APgbus::Native::VERSION: ".*" is not a ::Integer\z/]]
  }.each do |difference, (file, text, wrong, found)|
    it "are told from the code's by #{difference}" do
      with_a_wrong_copy(file, text, wrong) do |folder|
        expect(Signatures.new(folder).differences).to include(*found)
      end
    end
  end

  it "hold for real calls: arguments, results and blocks in the examples of Presence", :slow do
    output, status = check_calls(Signatures::FOLDER)

    expect(status).to be_success, output
    expect(output[/(\d+) examples, 0 failures/, 1].to_i).to be > 900
  end

  {
    "result" => ["presence.rbs", "def count: () -> Integer", "def count: () -> String"],
    "argument" => ["presence.rbs", "(_Stream stream) -> void", "(Integer stream) -> void"],
    "result of a native method" => ["_inside/extension.rbs", "| Array[String] | Integer", "| Array[String]"]
  }.each do |place, (file, text, wrong)|
    it "are seen to be wrong by a real call with another #{place}", :slow do
      with_a_wrong_copy(file, text, wrong) do |folder|
        output, status = check_calls(folder, "--example", "native route listing and counting")

        expect(output).to include("TypeError: [Pgbus::")
        expect(status).not_to be_success
      end
    end
  end
end
