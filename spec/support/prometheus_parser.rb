# frozen_string_literal: true

require "json"
require "open3"

# Reads Prometheus's text format with Prometheus's own Python client.
module PrometheusParser
  PROGRAM = <<~PYTHON
    import json, sys
    from prometheus_client.parser import text_string_to_metric_families
    print(json.dumps([
      {"name": family.name, "type": family.type, "help": family.documentation,
       "samples": [[sample.name, sample.labels, sample.value] for sample in family.samples]}
      for family in text_string_to_metric_families(sys.stdin.read())]))
  PYTHON

  class << self
    # Why there is none here; nil if there is.
    def unavailable
      "no python3 with prometheus_client" unless python
    end

    # @param text [String]
    # @return [Array<Hash>] a family each: name, type, help and samples, those as [name, labels, value]
    def families(text)
      out, err, status = Open3.capture3(python, "-c", PROGRAM, stdin_data: text)
      raise "not Prometheus's format:\n#{err}\n#{text}" unless status.success?

      JSON.parse(out, symbolize_names: true)
    end

    private

    # Debian's, should there be another one before it in PATH.
    def python
      @python ||= %w[python3 /usr/bin/python3].find do |program|
        system(program, "-c", "import prometheus_client", out: File::NULL, err: File::NULL)
      end
    end
  end
end
