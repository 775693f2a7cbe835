# frozen_string_literal: true

module Demo
  # Seconds a seat stays without being touched.
  TTL = 3

  # Seconds between two touches of a worker's seats.
  HEARTBEAT = 1

  # Seconds after which the seats of a killed worker must be gone: its last touch may be as young as the kill,
  # the next sweep may have just been missed, and the machine may be busy.
  GONE_WITHIN = TTL + (2 * HEARTBEAT) + 2

  ROOMS = %w[lobby design support].freeze
  WORKERS = %w[w1 w2 w3 w4].freeze

  # Who does what, and when: "settle" waits for the rooms to be as they must be, "gone" for a killed worker's seats
  # to be gone; what else the workers are told is a method of Worker.
  module Play
    # +at+ is seconds from the start; +status+ is what a seat's state says.
    Step = Struct.new(:at, :worker, :verb, :room, :member, :seat, :status)

    SCRIPT = <<~TEXT
      0.3  w1  join    lobby    ada   desk
      0.5  w2  join    lobby    ben   desk
      0.8  w1  join    design   ada   desk
      1.0  w3  join    lobby    cleo  desk
      1.2  w4  join    support  dan   phone
      1.4  w2  join    design   ben   desk
      1.6  w3  join    design   cleo  desk
      1.8  w3  join    support  cleo  phone
      2.0  w4  join    lobby    dan   phone
      2.2  w1  join    support  eve   desk
      2.4  w3  join    lobby    finn  phone
      2.7  w1  state   lobby    ada   desk   typing
      3.0  w2  state   design   ben   desk   drawing
      3.3  w3  state   support  cleo  phone  away
      3.6  w4  join    lobby    ada   phone
      3.9  w4  undo    lobby    gus   desk
      4.2  w2  leave   lobby    ben   desk
      4.5  w2  join    support  ben   desk
      4.8  w1  state   lobby    ada   desk   away
      5.0  -   settle
      5.2  w3  kill
      6.0  w4  state   support  dan   phone  typing
      6.7  w1  state   design   ada   desk   drawing
      7.4  w2  join    lobby    gus   desk
      7.9  w4  leave   lobby    ada   phone
      8.2  -   gone
      9.8  w2  state   lobby    gus   desk   typing
      10.5 -   settle
    TEXT

    def self.steps
      SCRIPT.each_line.map do |line|
        at, *rest = line.split
        Step.new(at.to_f, *rest)
      end
    end
  end
end
