# frozen_string_literal: true

require "io/console"

module Demo
  # The live picture: rooms, workers and the latest events, redrawn in place on a terminal of at least 80x24,
  # and otherwise one line for each event.
  class Screen
    SHOWN_EVENTS = 9
    ROOM_LINES = 7
    COLOURS = { "w1" => 36, "w2" => 33, "w3" => 35, "w4" => 34, "lost" => 31, "bold" => 1, "dim" => 2 }.freeze

    # What the events are called here; those without a name are not shown.
    NAMES = { "join" => "join", "leave" => "leave", "state" => "state", "undo" => "undone", "expired" => "expired",
              "killed" => "killed" }.freeze

    def initialize(out, title)
      @out = out
      @title = title
      @live = out.tty? && ENV["TERM"] != "dumb" && out.winsize.then { |rows, columns| rows >= 24 && columns >= 80 }
      @colour = out.tty? && ENV["TERM"] != "dumb" && ENV["NO_COLOR"].to_s.empty?
      @events = []
      out.puts(paint("bold", title)) unless @live
    end

    def event(event)
      return unless NAMES.key?(event.what)

      @events.push(event).shift(@events.size > SHOWN_EVENTS ? 1 : 0)
      @out.puts(event_line(event)) unless @live
    end

    # The rooms are as they should be: a moment for the reader of the lines to look at them.
    def settled(seats)
      return if @live

      rooms = by_room(seats).map do |room, there|
        row("", 3, room, 8, there.size, 1, there.map { |seat| brief(seat) }.join(", "), 0).rstrip
      end
      @out.puts("", rooms, "")
    end

    def draw(seats, children, elapsed)
      return unless @live

      events = Array.new(SHOWN_EVENTS) { |index| @events[index] ? event_line(@events[index]) : "" }
      lines = [title_line(elapsed), "", *room_lines(seats, children), "", child_line(seats, children), "", *events]
      # Back to the first line of the last picture; each line clears what was there.
      @out.write((@drawn ? "\e[#{lines.size}A" : "\e[?25l") + lines.map { |line| "#{line}\e[K\n" }.join)
      @drawn = true
    end

    # Gives the terminal its cursor back.
    def close
      @out.write("\e[?25h") if @drawn
    end

    def paint(name, text)
      @colour && COLOURS[name] ? "\e[#{COLOURS[name]}m#{text}\e[0m" : text
    end

    private

    def title_line(elapsed)
      paint("bold", @title.ljust(70)) + paint("dim", format("%7.1f s", elapsed))
    end

    def room_lines(seats, children)
      killed = children.select { |child| child.status == "killed" }.map(&:name)
      columns = by_room(seats).map do |room, there|
        [paint("bold", row(room, 19, there.size, 5)), *there.map { |seat| seat_cell(seat, killed) }]
      end
      Array.new(ROOM_LINES + 1) { |index| columns.map { |column| column[index] || row("", 25) }.join(" ") }
    end

    def by_room(seats)
      ROOMS.to_h { |room| [room, seats.select { |seat| seat.room == room }] }
    end

    # A seat of a killed worker is lost: there until it is expired.
    def seat_cell(seat, killed)
      lost = "lost" if killed.include?(seat.worker)
      rest = row(seat.member, 5, seat.seat, 5, lost || seat.status, 9)
      "#{paint(lost || seat.worker, row(seat.worker, 3))} #{paint(lost, rest)}"
    end

    def child_line(seats, children)
      children.map do |child|
        held = seats.count { |seat| seat.worker == child.name }
        status = child.status == "running" ? "#{held} seat#{"s" unless held == 1}" : child.status
        "#{paint(child.name, child.name)} #{row(child.pid, 7, status, 8)}"
      end.join(" ")
    end

    def event_line(event)
      what = paint(("lost" if %w[expired killed].include?(event.what)), row(NAMES[event.what], 8))
      where = row(event.room, 8, event.member, 5, event.seat, 6)
      time = paint("dim", format("%5.1f s", event.at))
      "#{time}   #{paint(event.worker, event.worker)}  #{what} #{where} #{remark(event)}".rstrip
    end

    def remark(event)
      case event.what
      when "state" then event.status
      when "undo" then "in a transaction, rolled back"
      when "expired" then "not touched for #{TTL} s"
      when "killed" then "by SIGKILL, its seats stay behind"
      end
    end

    def brief(seat)
      [seat.member, seat.seat, seat.status && "(#{seat.status})"].compact.join(" ")
    end

    # Texts, each with its width.
    def row(*cells)
      cells.each_slice(2).map { |text, width| text.to_s.ljust(width) }.join(" ")
    end
  end
end
