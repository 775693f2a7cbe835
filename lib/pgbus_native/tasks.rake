# frozen_string_literal: true

namespace :pgbus_native do
  output = $stdout
  json = -> { ARGV.include?("--json") || ENV["JSON"] == "1" }

  # What the application logs to standard output while it boots must not get between a machine and its JSON.
  task :json_only do
    next unless json.call

    output = $stdout.dup
    output.sync = true
    $stdout.reopen($stderr)
  end

  desc "Checks presence from the extension to the table, and says what to do (for machines: JSON=1, or -- --json)"
  task doctor: %i[json_only environment] do
    exit 1 unless Pgbus::Native.doctor(io: output, json: json.call)
  end
end
