# frozen_string_literal: true

# Where the rows of a partitioned table are, and which partitions a statement comes to.
module Partitions
  TABLE = SpecDatabase::TABLE
  COUNT = Pgbus::Native::Migrations::PartitionPresence.new.partitions
  ALL = Array.new(COUNT) { |number| "#{TABLE}_#{number}" }.freeze

  # The partition that a stream's rows are in.
  def partition_of(stream_name)
    number = SpecDatabase.sql(<<~SQL, stream_name).first["number"]
      SELECT number FROM generate_series(0, #{COUNT - 1}) number
      WHERE satisfies_hash_partition('#{TABLE}'::regclass, #{COUNT}, number, $1::varchar)
    SQL
    "#{TABLE}_#{number}"
  end

  # Names of so many streams, no two in one partition.
  def streams_of_different_partitions(count)
    (0..).lazy.map { |number| "room:#{number}" }.uniq { |name| partition_of(name) }.first(count)
  end

  # Runs a statement, rolled back, and tells the partitions that rows were looked for in or written to.
  #
  # @param settings [Hash] of the server, for its planner
  def partitions_used(statement, parameters, **settings)
    in_transaction do |connection|
      settings.each { |name, value| connection.exec("SET LOCAL #{name} = #{value}") }
      connection.exec("PREPARE statement AS #{statement.sql}")
      plan = connection.exec("EXPLAIN (ANALYZE, FORMAT JSON) #{execute(connection, parameters)}").getvalue(0, 0)
      (scanned(JSON.parse(plan).first.fetch("Plan")) + written(connection)).uniq.sort
    end
  end

  private

  def in_transaction
    SpecDatabase.connect do |connection|
      connection.exec("BEGIN")
      yield connection
    end
  end

  def execute(connection, parameters)
    literals = parameters.map do |parameter|
      parameter = Pgbus::Streams::Presence.text_array(parameter) if parameter.is_a?(Array)
      parameter ? connection.escape_literal(parameter) : "NULL"
    end
    "EXECUTE statement#{"(#{literals.join(", ")})" if literals.any?}"
  end

  # Tables that a part of the plan looked for rows in; a part that was never executed has no loops.
  def scanned(plan)
    here = plan["Node Type"].include?("Scan") && plan["Actual Loops"].positive? ? [plan["Relation Name"]] : []
    (here & ALL) + plan.fetch("Plans", []).flat_map { |part| scanned(part) }
  end

  # Inserting looks for no rows, so no scan tells of it.
  def written(connection)
    connection.exec("SELECT relname FROM pg_stat_xact_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0")
              .column_values(0) & ALL
  end
end
