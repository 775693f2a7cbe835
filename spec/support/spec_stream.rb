# frozen_string_literal: true

# The part of Pgbus::Streams::Stream that Presence uses.
class SpecStream
  attr_reader :name, :broadcasts

  def initialize(name, &on_broadcast)
    @name = name
    @broadcasts = []
    @on_broadcast = on_broadcast
  end

  def broadcast(html)
    @broadcasts << html
    @on_broadcast&.call(html)
  end
end
