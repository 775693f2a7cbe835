# frozen_string_literal: true

module Pgbus
  module Native
    # {Native.stats} in Prometheus's text format, version 0.0.4.
    module Prometheus
      # The figure's key, the metric's name, type and help. A figure that is a Hash has a sample for each route.
      METRICS = [
        [:pool_size, "pool_size", "gauge", "Native connections allowed for each database."],
        [:connections, "connections", "gauge", "Native connections held now."],
        [:busy, "busy_connections", "gauge", "Native connections that a call runs on now."],
        [:connects, "connects_total", "counter", "Native connections made, replaced ones included."],
        [:calls, "calls_total", "counter", "Calls of Presence, by the connection that they ran on."],
        [:batched, "batched_total", "counter", "Calls that were run along in the statement of another one."],
        [:retries, "retries_total", "counter", "Statements repeated because their connection broke."]
      ].freeze
      private_constant :METRICS

      # @param stats [Hash{Symbol => Object}] see {Native.stats}
      # @return [String] lines, the last one ended too
      def self.text(stats)
        METRICS.map do |key, name, type, help|
          name = "pgbus_native_#{name}"
          "# HELP #{name} #{help}\n# TYPE #{name} #{type}\n#{samples(name, stats.fetch(key))}"
        end.join
      end

      def self.samples(name, figure)
        return "#{name} #{figure}\n" unless figure.is_a?(Hash)

        figure.map { |route, number| "#{name}{route=\"#{route}\"} #{number}\n" }.join
      end
      private_class_method :samples
    end
  end
end
