# frozen_string_literal: true

module Demo
  # Something is not as it has to be; the message says what.
  class Failure < StandardError; end

  # Who must be where, worked out from the script alone, against which the database and the reports are held.
  class Audit
    def initialize
      @expected = {}
      @lost = []
    end

    def expect(step)
      place = [step.room, step.member, step.seat, step.worker]
      case step.verb
      when "join" then @expected[place] = nil
      when "state" then @expected[place] = step.status
      when "leave" then @expected.delete(place)
      end
    end

    # The worker was killed: its seats must go.
    def lose(worker)
      @lost = @expected.keys.select { |place| place.last == worker }
      @lost.each { |place| @expected.delete(place) }
    end

    def everybody_leaves
      @expected.clear
    end

    # @return [String, nil] what differs, nil if the seats are those that must be there
    def difference(seats)
      found = seats.to_h { |seat| [[seat.room, seat.member, seat.seat, seat.worker], seat.status] }
      return if found == @expected

      "missing: #{list(@expected.to_a - found.to_a)}; too many: #{list(found.to_a - @expected.to_a)}"
    end

    # Every seat that came must have been reported as gone, and once; those of the killed worker as expired.
    # @raise [Failure]
    def check_reports(events)
      unreported = @lost.map { |place| place.first(3) } - places(events, "expired")
      raise Failure, "expired without a report: #{list(unreported)}" if unreported.any?

      came = places(events, "join").tally
      went = places(events, "leave", "expired").tally
      return if came == went

      raise Failure, "reported as come, but not as gone: #{list(came.to_a - went.to_a)}; " \
                     "as gone, but not as come: #{list(went.to_a - came.to_a)}"
    end

    private

    def places(events, *kinds)
      events.select { |event| kinds.include?(event.what) }.map { |event| [event.room, event.member, event.seat] }
    end

    def list(things)
      things.empty? ? "none" : things.map { |thing| Array(thing).flatten.compact.join(" ") }.join(", ")
    end
  end
end
