# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # A thread that does one thing after the other. What raises is logged, whatever it is, and the next is done.
      class Worker
        # @param name [String] the thread's
        # @param logger [Logger, nil]
        # @param source [#call] waits for things to do; an Array, or nil if there is nothing more to come
        # @param application [Boolean] whether it is the application's code that runs here
        # @yieldparam item [Object]
        def initialize(name, logger, source, application: false, &work)
          @logger = logger
          @source = source
          @work = work
          @thread = Thread.new { run(application) }
          @thread.name = name
        end

        # Waits until there is nothing more to come, for a time.
        #
        # @param seconds [Numeric, nil] nil for as long as it takes
        # @return [void]
        def join(seconds = nil)
          @thread.join(seconds) unless current?
          nil
        end

        # @return [Boolean] whether it is this thread
        def current?
          @thread == Thread.current
        end

        private

        def run(application)
          while (items = @source.call)
            logged { application ? released { do_all(items) } : do_all(items) }
          end
        end

        def do_all(items)
          items.each { |item| logged { @work.call(item) } }
        end

        def logged
          yield
        rescue Exception => e # rubocop:disable Lint/RescueException -- no error of an application's ends the thread
          @logger&.error { "[pgbus_native] #{Thread.current.name}: #{e.class}: #{e.message}" }
        end

        # Code may be reloaded afterwards, and ActiveRecord has its connections back.
        def released(&)
          executor = (::Rails.application&.executor if defined?(::Rails.application))
          return executor.wrap(&) if executor

          begin
            yield
          ensure
            ::ActiveRecord::Base.connection_handler.clear_active_connections!(:all) if defined?(::ActiveRecord::Base)
          end
        end
      end
    end
  end
end
