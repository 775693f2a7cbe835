# frozen_string_literal: true

module Bench
  # A line chart as SVG with logarithmic axes, a label at each line's end. It brings its own background, dark
  # where the reader's is, so that it can be read on any page.
  class Chart
    WIDTH = 760
    HEIGHT = 420
    LEFT = 80
    RIGHT = 160
    TOP = 48
    BOTTOM = 56
    # Between the labels at the lines' ends.
    LABEL_HEIGHT = 16

    LIGHT = { paper: "#ffffff", edge: "#d0d0d0", grid: "#e4e4e4", text: "#222222",
              lines: %w[#c0392b #a8690a #1f6fb2 #3d7f3d] }.freeze
    DARK = { paper: "#161b22", edge: "#30363d", grid: "#2b323b", text: "#e6e6e6",
             lines: %w[#ff8a7a #e8b04a #6cb6ff #7fd17f] }.freeze
    DASHES = ["2 3", "8 4", "none", "6 3 2 3"].freeze

    # Without CSS variables, which not every viewer knows.
    def self.style(colors)
      lines = colors[:lines].each_with_index.map do |color, index|
        name = ".c#{index}"
        "#{name} line, #{name} polyline { stroke: #{color} } #{name} circle, #{name} text { fill: #{color} }"
      end
      [".paper { fill: #{colors[:paper]}; stroke: #{colors[:edge]} } .grid { stroke: #{colors[:grid]} } " \
       "text { fill: #{colors[:text]}; font: 13px sans-serif }", *lines].join("\n")
    end

    STYLE = <<~CSS.freeze
      #{style(LIGHT)}
      .title { font-size: 16px; font-weight: bold } polyline { fill: none; stroke-width: 2 } .name { font-weight: bold }
      #{DASHES.each_with_index.map { |dashes, index| ".c#{index} polyline { stroke-dasharray: #{dashes} }" }.join(" ")}
      @media (prefers-color-scheme: dark) {
      #{style(DARK)}
      }
    CSS

    # @param lines [Array<Array>] label, color (0 to 3) and points `[x, low, median, high]`
    # @param format [#call] from a value of y to text
    def initialize(title, x_label:, lines:, format:)
      @title = title
      @x_label = x_label
      @lines = lines
      @format = format
      points = lines.flat_map(&:last)
      @x_range = decades(points.map(&:first))
      @y_range = decades(points.flat_map { |point| point.drop(1) })
    end

    # @return [String]
    def svg
      <<~SVG
        <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 #{WIDTH} #{HEIGHT}" role="img" aria-label="#{@title}">
        <style>
        #{STYLE}</style>
        <rect class="paper" x="0.5" y="0.5" width="#{WIDTH - 1}" height="#{HEIGHT - 1}" rx="8"/>
        #{text(LEFT, 28, @title, 'class="title"')}
        #{[*vertical_grid, *horizontal_grid, *lines].join("\n")}
        #{text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, @x_label, 'text-anchor="middle"')}
        </svg>
      SVG
    end

    private

    def vertical_grid
      ticks(@x_range).map do |value|
        line(x(value), TOP, x(value), HEIGHT - BOTTOM) +
          text(x(value), HEIGHT - BOTTOM + 18, count(value), 'text-anchor="middle"')
      end
    end

    def horizontal_grid
      ticks(@y_range).map do |value|
        line(LEFT, y(value), WIDTH - RIGHT, y(value)) +
          text(LEFT - 8, y(value) + 4, @format.call(value), 'text-anchor="end"')
      end
    end

    def lines
      label_positions = spread_out(@lines.map { |_, _, points| y(points.last[2]) })
      @lines.zip(label_positions).map do |(label, color, points), label_y|
        <<~GROUP.chomp
          <g class="c#{color}">
          <polyline points="#{points.map { |at, _, median, _| "#{x(at)},#{y(median)}" }.join(" ")}"/>
          #{points.map { |point| mark(label, *point) }.join("\n")}
          #{text(x(points.last.first) + 10, label_y + 4, label, 'class="name"')}
          </g>
        GROUP
      end
    end

    def mark(label, at, low, median, high)
      "<g>#{line(x(at), y(low), x(at), y(high), nil)}<circle cx=\"#{x(at)}\" cy=\"#{y(median)}\" " \
        "r=\"3.5\"/><title>#{label}, #{count(at)}: #{@format.call(median)}</title></g>"
    end

    # Moves labels apart that would lie on each other, keeping their order.
    def spread_out(positions)
      placed = -Float::INFINITY
      moved = positions.each_with_index.sort.map do |position, index|
        placed = [position, placed + LABEL_HEIGHT].max
        [index, placed]
      end
      moved.sort.map(&:last)
    end

    def line(from_x, from_y, to_x, to_y, css = "grid")
      %(<line #{%(class="#{css}" ) if css}x1="#{from_x}" y1="#{from_y}" x2="#{to_x}" y2="#{to_y}"/>)
    end

    def text(at_x, at_y, content, attributes)
      %(<text x="#{at_x}" y="#{at_y}" #{attributes}>#{content}</text>)
    end

    def x(value)
      position(value, @x_range, LEFT, WIDTH - RIGHT)
    end

    def y(value)
      position(value, @y_range, HEIGHT - BOTTOM, TOP)
    end

    def position(value, (low, high), from, to)
      share = (Math.log10(value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low))
      (from + ((to - from) * share)).round(1)
    end

    # The values' range, widened to a 1, 2 or 5 before zeros.
    def decades(values)
      [ticks_near(values.min).reverse.find { |tick| tick <= values.min },
       ticks_near(values.max).find { |tick| tick >= values.max }]
    end

    def ticks_near(value)
      power = 10.0**Math.log10(value).floor
      [0.5, 1, 2, 5, 10, 20].map { |factor| factor * power }
    end

    # A tick for each power of ten; more where there are few of those.
    def ticks((low, high))
      steps = high / low > 200 ? [1] : [1, 2, 5]
      powers = Math.log10(low).floor..Math.log10(high).ceil
      powers.flat_map { |power| steps.map { |step| step * (10.0**power) } }.select { |tick| tick.between?(low, high) }
    end

    def count(value)
      value.round.to_s.gsub(/(?<=\d)(?=(\d{3})+$)/, ",")
    end
  end
end
