# frozen_string_literal: true

module Pgbus
  module Native
    class Streamer
      # A thread that does one thing after the other. What raises is logged, and the next is done.
      class Worker
        # @param name [String] the thread's
        # @param logger [Logger, nil]
        # @param queue [Thread::Queue]
        # @yieldparam item [Object] what was given to {#<<}
        def initialize(name, logger, queue = Thread::Queue.new, &work)
          @queue = queue
          @logger = logger
          @thread = Thread.new { run(work) }
          @thread.name = name
        end

        # @param item [Object]
        # @return [self]
        # @raise [ClosedQueueError] after {#stop}
        def <<(item)
          @queue << item
          self
        end

        # What is there is still done, within a time.
        #
        # @param seconds [Numeric]
        # @return [void]
        def stop(seconds)
          @queue.close
          @thread.join(seconds) unless @thread == Thread.current
          nil
        end

        private

        def run(work)
          while (item = @queue.pop)
            begin
              released { work.call(item) }
            rescue StandardError => e
              @logger&.error { "[pgbus_native] #{Thread.current.name}: #{e.class}: #{e.message}" }
            end
          end
        end

        # It is the application's code that runs here, and it may have taken ActiveRecord's connections.
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
