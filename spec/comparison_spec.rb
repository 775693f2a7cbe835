# frozen_string_literal: true

require_relative "support/trace"

# The same random operations on each implementation, on a table of its own. PRESENCE_SEED
# repeats a run.
RSpec.describe "The implementations, compared" do
  seed = Integer(ENV.fetch("PRESENCE_SEED") { rand(1_000_000) })
  RSpec.configuration.reporter.message("Comparison: PRESENCE_SEED=#{seed}")

  available, missing = Implementation::ALL.partition { |implementation| implementation.unavailable.nil? }
  yardstick = available.last

  it "are compared with the plain Ruby one" do
    skip missing.first.unavailable if missing.any?

    expect(yardstick).to be(Implementation::PLAIN_RUBY)
  end

  # The Steps that the implementation takes through the operations, on an empty table.
  def trace(implementation, operations, table)
    SpecDatabase.table(**table)
    implementation.presence_class.reset_schema_cache!
    Trace.new(implementation).of(operations)
  end

  [[3000, {}], [800, { seats: false }], [800, { times: "timestamptz", ids: "text" }]].each do |count, table|
    it "give the same results and leave the same table through #{count} operations " \
       "#{table.empty? ? "on seats" : table} (PRESENCE_SEED=#{seed})", :slow do
      operations = RandomOperations.new(seed, seats: table.fetch(:seats, true)).take(count)
      expected = trace(yardstick, operations, table)

      (available - [yardstick]).each do |implementation|
        trace(implementation, operations, table).zip(expected).each_with_index do |(step, expected_step), index|
          expect(step.to_h).to eq(expected_step.to_h), <<~MESSAGE
            PRESENCE_SEED=#{seed}: operation #{index}, #{step.operation},
            on the #{implementation.name}: #{step.to_h.except(:table)}
            #{yardstick.name}: #{expected_step.to_h.except(:table)}
            rows that differ: #{step.table - expected_step.table} / #{expected_step.table - step.table}
          MESSAGE
        end
      end
    end
  end
end
