# frozen_string_literal: true

module Demo
  # What is printed at the end.
  class Summary
    def initialize(screen, supervisor, timing)
      @screen = screen
      @events = supervisor.events.group_by(&:what)
      @killed = supervisor.events.find { |event| event.what == "killed" }
      @timing = timing
    end

    def to_s
      [nil, heading("What happened"), *happened, nil, heading("How long a call took"), *times].join("\n")
    end

    private

    def heading(text)
      @screen.paint("bold", text)
    end

    def happened
      [
        row("join", "seats taken, each reported once"),
        row("state", "states set"),
        row("leave", "seats left, each reported once"),
        row("undo", "join undone by the rollback of its transaction"),
        row("heartbeat", "heartbeats, each a touch a room and a sweep"),
        row("expired", "seats expired #{expiry}"),
        calls
      ]
    end

    def row(what, text)
      numbered(of(what).size, text)
    end

    def numbered(number, text)
      "#{number.to_s.rjust(7)}  #{text}"
    end

    # When, and by whom, the killed worker's seats were removed.
    def expiry
      expired = of("expired").select { |event| event.at > @killed.at }
      after = expired.map { |event| event.at - @killed.at }.minmax.map { |seconds| format("%.1f", seconds) }.uniq
      "#{after.join(" to ")} s after #{@killed.worker} was killed, by #{expired.map(&:worker).uniq.sort.join(", ")}"
    end

    def calls
      native, active_record = %i[native active_record].map { |route| of("bye").sum { |event| event.calls[route] } }
      numbered(native, "calls on the native route, #{active_record} through ActiveRecord (in the transaction)")
    end

    def times
      ["  median ms of #{@timing.calls} calls each, the routes in turn; x: times as long as native",
       line("", @timing.routes.map { |route| route.rjust(8) }),
       *Timing::CALLS.keys.map { |call| line(call, medians(call)) }]
    end

    def line(name, cells)
      "  #{name.ljust(26)}#{cells.map { |cell| cell.ljust(16) }.join}".rstrip
    end

    def medians(call)
      native = @timing.median(call, "native")
      @timing.routes.map do |route|
        median = @timing.median(call, route)
        format("%8.3f", median) + (route == "native" ? "" : format(" %.2fx", median / native))
      end
    end

    def of(what)
      @events.fetch(what, [])
    end
  end
end
