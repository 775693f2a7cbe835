# frozen_string_literal: true

require_relative "licenses"

desc "Write the licences of the crates in the extension to THIRD_PARTY_LICENSES.md"
task :licenses do
  File.write(Licenses::FILE, Licenses.new.text)
end
