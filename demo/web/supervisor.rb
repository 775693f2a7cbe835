# frozen_string_literal: true

require "io/wait"
require "json"
require "securerandom"
require_relative "server"

module Demo
  module Web
    # Something is not as it has to be; the message says what.
    class Failure < StandardError; end

    # Forks the servers, kills one and starts it again when a page asks for that, and tells all of them who runs.
    class Supervisor
      # Seconds that starting or ending a server may take on a busy machine.
      PATIENCE = 20

      # Seconds between two looks at whether the servers still run.
      LOOK = 0.2

      # A server's process. `commands` is the pipe to it; when that closes, whoever closes it, the server ends.
      Child = Struct.new(:name, :pid, :port, :commands, :status)

      def initialize(out)
        @out = out
        # The same for both servers, and for one that is started again: a page keeps its signed name over that. The
        # room has a name of its own, since NOTIFY reaches all of the database, another demo's pages as well.
        @shared = { room: "lunch:#{SecureRandom.hex(4)}", secret: SecureRandom.hex(32) }
        @children = NAMES.map { |name| Child.new(name, nil, nil, nil, "killed") }
      end

      # Goes on until it is interrupted.
      # @raise [Failure]
      def run
        @reports, @writer = IO.pipe
        @children.each { |child| start(child) }
        introduce
        loop { attend }
      ensure
        stop
      end

      private

      def introduce
        deadline = now + PATIENCE
        attend until @children.all? { |child| child.status == "running" } || now > deadline
        @children.each { |child| raise Failure, "server #{child.name} does not start" if child.status != "running" }

        @out.puts "", *@children.map { |child| line(child) },
                  "", "Open both, in several tabs, and follow what the page says. Ctrl-C ends it.", ""
      end

      def line(child)
        "  server #{child.name}   http://#{ADDRESS}:#{child.port}/   process #{child.pid}"
      end

      # Takes in what the servers report and notices who has ended.
      def attend
        report = @reports.wait_readable(LOOK) && JSON.parse(@reports.gets, symbolize_names: true)
        receive(report) if report
        @children.each { |child| notice_end(child) }
        raise Failure, "no server is left" if @children.all? { |child| child.status == "killed" }
      end

      def receive(report)
        child = @children.find { |candidate| candidate.name == report[:server] }
        case report[:what]
        when "ready" then ready(child, report)
        when "kill" then Process.kill(:KILL, child.pid) if child.status == "running"
        when "start" then start(child) if child.status == "killed"
        end
      end

      def start(child)
        reader, commands = IO.pipe
        child.pid = fork do
          # A copy kept here would keep the other server from seeing its pipe closed.
          [@reports, commands, *@children.filter_map(&:commands)].each { |pipe| pipe.close unless pipe.closed? }
          Server.new(name: child.name, port: child.port, commands: reader, reports: @writer, **@shared).run
        end
        reader.close
        child.commands = commands
        child.status = "starting"
      end

      def ready(child, report)
        again = child.port
        child.port = report[:port]
        child.status = "running"
        @out.puts line(child) if again
        tell_all
      end

      def notice_end(child)
        return if child.status == "killed" || !Process.wait(child.pid, Process::WNOHANG)
        raise Failure, "server #{child.name} does not start" if child.status == "starting"

        child.status = "killed"
        child.commands.close
        @out.puts "  server #{child.name}   is gone; its seats stay until #{TTL} s after their last touch"
        tell_all
      end

      def tell_all
        statuses = @children.map { |child| { name: child.name, port: child.port, status: child.status } }
        @children.each do |child|
          child.commands.puts(JSON.generate(statuses)) if child.status == "running"
        rescue Errno::EPIPE
          nil # it has just been killed, which is noticed next
        end
      end

      # Ends the servers as a deployment does: their seats leave.
      def stop
        # A second Ctrl-C must leave nothing behind either.
        trap("INT", "IGNORE")
        running = @children.reject { |child| child.status == "killed" }
        running.each { |child| child.commands.close }
        deadline = now + PATIENCE
        running.each { |child| finish(child, deadline) }
      end

      def finish(child, deadline)
        until Process.wait(child.pid, Process::WNOHANG)
          Process.kill(:KILL, child.pid) if now > deadline
          sleep 0.02
        end
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
