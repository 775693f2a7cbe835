# frozen_string_literal: true

require "open3"
require "rbconfig"

# Ruby processes of their own, for what happens while a process loads its gems.
module Scripts
  ROOT = File.expand_path("../..", __dir__)
  FIXTURE = File.join(ROOT, "spec/fixtures/pgbus/lib")

  Result = Data.define(:out, :err, :status) do
    # What it printed, a line each, once it has ended well.
    def lines
      raise "#{status}: #{err}" unless status.success?

      out.lines(chomp: true)
    end
  end

  # Ends a script that hangs; says whose a method is: the fixture gem's or pgbus_native's.
  PRELUDE = <<~'RUBY'
    Thread.new { sleep 60; warn "still running after 60 s"; exit!(99) }

    def whose(method)
      method.source_location.first.include?("/fixtures/") ? "Ruby" : "native"
    end

    def whose_count = whose(Pgbus::Streams::Presence.instance_method(:count))
  RUBY

  # Runs the script with pgbus_native at hand, and the fixture gem pgbus unless told otherwise.
  def ruby(script, *options, pgbus: true, lib: File.join(ROOT, "lib"), **environment)
    load_path = [lib, *(FIXTURE if pgbus)].flat_map { |folder| ["-I", folder] }
    environment = { "PGBUS_NATIVE" => nil, "DATABASE_URL" => SpecDatabase.url,
                    **environment.transform_keys { |name| name.to_s.upcase } }
    out, err, status = Open3.capture3(environment, RbConfig.ruby, *options, *load_path, "-e", PRELUDE + script)
    Result.new(out:, err:, status:)
  end
end
