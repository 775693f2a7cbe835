# frozen_string_literal: true

# Waiting in specs is for a condition, with a deadline, never for a time to pass.
module Waiting
  DEADLINE = 10

  # Polls until the block is truthy and returns what it gave; fails after `within` seconds.
  def wait_until(what, within: DEADLINE)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + within
    loop do
      result = yield
      return result if result
      raise "waited #{within} s in vain: #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

      sleep 0.01
    end
  end

  # Runs the block in `count` threads, each on the implementation under test and each
  # giving its ActiveRecord connection back; returns their values in order.
  def in_threads(count, within: 30, &)
    threads = Array.new(count) { |number| in_thread(number, &) }
    threads.map do |thread|
      raise "thread still running after #{within} s" unless thread.join(within)

      thread.value
    end
  ensure
    threads&.each(&:kill)
  end

  def in_thread(*arguments)
    Thread.new do
      Thread.current.report_on_exception = false
      implementation.use { yield(*arguments) }
    ensure
      ActiveRecord::Base.connection_handler.clear_active_connections!(:all)
    end
  end

  # Seconds that the block took.
  def seconds
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
  end
end
