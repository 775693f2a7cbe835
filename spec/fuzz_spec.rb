# frozen_string_literal: true

require_relative "support/random_arguments"
require_relative "support/random_json"

# Arguments that nobody would pass, and JSON that anybody may have stored. What was drawn can be drawn again: a
# failure names its seed, which FUZZ_SEED sets.
RSpec.describe "Presence and anything at all" do
  seed = Integer(ENV.fetch("FUZZ_SEED") { Random.new_seed % 1_000_000 })

  # Ways of saying no. Any other error, a panic first of all, is a defect.
  refusals = [ArgumentError, TypeError, NoMethodError, IOError, EncodingError, RangeError, KeyError,
              JSON::GeneratorError, JSON::NestingError, PG::Error, Pgbus::Native::UnsupportedError]

  # Gives what the block gives, or nil if it is refused. Says what was asked where it goes wrong.
  define_method(:attempt) do |what, &block|
    block.call
  rescue *refusals => e
    raise "FUZZ_SEED=#{seed} #{what}: #{e.full_message}" if e.message.include?("panick")
  rescue StandardError => e
    raise "FUZZ_SEED=#{seed} #{what}: #{e.full_message}"
  end

  Implementation::GEM.each do |implementation|
    describe implementation.name, implementation: do
      # In a child, so that even a crash of the process is no more than a failed example.
      it "takes or refuses any arguments, and stays right", :slow do
        child = fork_child(exit_by: :exit) do
          $VERBOSE = nil # JSON warns of text that is binary
          arguments = RandomArguments.new(Random.new(seed))
          Array.new(3_000) { |number| any_call(arguments) || right?(number) }.count(true)
        end

        expect(child.value(within: 90)).to be > 300
      end

      # Makes a call; true if it was taken, false if it was refused.
      def any_call(arguments)
        method, keywords = arguments.call
        target = method == :expire_seats! ? presence_class : presence_of(arguments.pick(["room:42", arguments.text]))
        attempt("#{method}(#{keywords.keys})") { [target.public_send(method, **keywords)] } ? true : nil
      end

      def right?(number)
        presence.join(member_id: "right #{number}")["id"] == "right #{number}" ? false : raise("wrong after #{number}")
      end

      %w[json jsonb].each do |type|
        it "reads any stored #{type} as JSON.parse reads it", table: { json: type } do
          json = RandomJson.new(Random.new(seed))
          texts = Array.new(400) { json.text } + (95..105).flat_map { |levels| Array.new(3) { json.nested(levels) } }
          stored = texts.each_with_index.filter_map { |text, number| store(text, number) }
          records = presence.members.to_h { |record| [record["id"], record] }

          expect(stored.size).to be > 200
          stored.each { |id| expect_as_parsed(records.fetch(id), seed) }
        end
      end

      # Keeps the text as metadata and state; nil if the server does not take it.
      def store(text, number)
        insert_row(member_id: number.to_s, connection_id: number.to_s, metadata: text, state: text)
        number.to_s
      rescue PG::Error
        nil
      end

      def expect_as_parsed(record, seed)
        texts = sql("SELECT metadata::text, state::text FROM pgbus_presence_members WHERE member_id = $1", record["id"])
        texts.first.each do |column, text|
          # inspect tells 1 from 1.0, and 0.0 from -0.0.
          expect(record[column].inspect).to eq(as_ruby_parses(text).inspect), "FUZZ_SEED=#{seed}: #{text}"
        end
      end

      def as_ruby_parses(text)
        JSON.parse(text)
      rescue JSON::ParserError
        {}
      end
    end
  end

  describe "native code below the signatures", implementation: Implementation::NATIVE do
    it "refuses what lib never passes to it", :slow do
      child = fork_child do
        arguments = RandomArguments.new(Random.new(seed))
        database = Pgbus::Native::Database.new(keywords, [], options)
        500.times do
          attempt("run") { any_run(arguments, database) }
          attempt("new") { any_database(arguments) }
        end
        database.run(Pgbus::Native::Statements::COUNT, ["room:42"])
      end

      expect(child.value(within: 60)).to eq(0)
    end

    def keywords
      settings = SpecDatabase.configuration
      { "host" => settings[:host], "port" => settings[:port], "user" => settings[:username],
        "password" => settings[:password], "dbname" => settings[:database] }.compact.transform_values(&:to_s)
    end

    def options
      { prepared_statements: true, pool_size: 2, checkout_timeout: 1.0, gvl_grace: 0.0, local_times: false }
    end

    def any_run(arguments, database)
      statement = arguments.pick(Pgbus::Native::Statements.constants)
      params = Array.new(arguments.pick([0, 1, 2, 3, 4, 5])) { arguments.pick([arguments.text, nil, arguments.thing]) }
      # What it might have stored is not to disturb the last call.
      params[0] = "fuzz" if params.any?
      database.run(arguments.pick([*([Pgbus::Native::Statements.const_get(statement)] * 9), arguments.thing]),
                   arguments.pick([params, params, params, arguments.thing]))
    end

    def any_database(arguments)
      odd_options = options.transform_values { arguments.thing }
      Pgbus::Native::Database.new(arguments.pick([keywords, arguments.thing]),
                                  arguments.pick([[], [[arguments.thing] * 3], arguments.thing]),
                                  arguments.pick([options, odd_options, arguments.thing]))
    end
  end
end
