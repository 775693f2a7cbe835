# frozen_string_literal: true

require "io/wait"
require "json"
require "securerandom"

module Demo
  # One web process: it holds the seats of its connections, keeps them alive and expires those of others.
  #
  # It is told what to do by lines on +commands+, and ends, leaving its seats, when that pipe is closed;
  # what happens it reports as lines of JSON on +reports+.
  class Worker
    Holding = Struct.new(:room, :member, :seat, :connection_id, :status)

    def initialize(name, commands, reports)
      @name = name
      @commands = commands
      @reports = reports.tap { |pipe| pipe.sync = true }
      @holdings = []
    end

    def run
      # Ctrl-C reaches every process of the terminal; the supervisor is the one to end this one.
      trap("INT", "IGNORE")
      Pgbus.configuration = Configuration.new { |room, change| report_change(room, change) }
      ActiveRecord::Base.connection.verify!
      report(:ready)
      work
      close
    rescue Errno::EPIPE
      # Without a supervisor there is nobody left to report to.
    rescue StandardError => e
      report(:error, message: "#{e.class}: #{e.message}")
    end

    private

    def work
      beat_at = now + HEARTBEAT
      until @commands.closed?
        obey if @commands.wait_readable([beat_at - now, 0].max)
        next if now < beat_at

        heartbeat
        beat_at = now + HEARTBEAT
      end
    end

    def obey
      line = @commands.gets
      line ? send(*line.split) : @commands.close
    end

    def close
      @holdings.dup.each { |holding| leave(*holding.first(3)) }
      report(:bye, calls: Pgbus::Native.stats[:calls])
    end

    def join(room, member, seat)
      holding = Holding.new(room, member, seat, SecureRandom.hex(8))
      @holdings << holding
      take(holding)
    end

    def take(holding)
      Room.new(holding.room).presence.join(member_id: holding.member, connection_id: holding.connection_id,
                                           seat: holding.seat, metadata: { worker: @name })
    end

    # The seat was expired while this process was held up for longer than the ttl.
    def retake(holding)
      take(holding)
      save_status(holding) if holding.status
    end

    def leave(room, member, seat)
      holding = holding_of(room, member, seat)
      @holdings.delete(holding)
      Room.new(room).presence.leave(connection_id: holding.connection_id)
    end

    def state(room, member, seat, status)
      holding = holding_of(room, member, seat)
      holding.status = status
      save_status(holding) || retake(holding)
      report(:state, room:, member:, seat:, status:)
    end

    def save_status(holding)
      Room.new(holding.room).presence.set_state(connection_id: holding.connection_id, state: { status: holding.status })
    end

    # Presence takes part in the transaction of its caller: seen inside, gone with the rollback.
    def undo(room, member, seat)
      presence = Room.new(room).presence
      ActiveRecord::Base.transaction do
        presence.join(member_id: member)
        raise "a join is not seen in its own transaction" if presence.members.none? { |record| record["id"] == member }

        raise ActiveRecord::Rollback
      end
      report(:undo, room:, member:, seat:)
    end

    # One touch a room, then the sweep, as pgbus's streamer does it.
    def heartbeat
      @holdings.group_by(&:room).each do |room, holdings|
        found = Room.new(room).presence.touch(connection_id: holdings.map(&:connection_id))
        holdings.each { |holding| retake(holding) unless found.include?(holding.connection_id) }
      end
      @expiring = true
      Pgbus::Streams::Presence.expire_seats!(ttl_for: ->(_room) { TTL }, min_ttl: TTL)
      @expiring = false
      report(:heartbeat)
    end

    def holding_of(room, member, seat)
      @holdings.find { |holding| holding.first(3) == [room, member, seat] }
    end

    def report_change(room, change)
      report(@expiring ? :expired : change[:type], room:, member: change[:member_id], seat: change[:seat])
    end

    # A line shorter than PIPE_BUF is written whole, so that the workers can share one pipe, killed or not.
    def report(what, **details)
      @reports.write("#{JSON.generate(details.merge(worker: @name, what:, at: now))}\n")
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
