# frozen_string_literal: true

module Bench
  module Streamer
    # How large the load is.
    #
    # - connecting: clients that connect at once
    # - connections, streams: of the heartbeat and of the broadcast
    # - interval: seconds between two heartbeats of a connection
    # - held, seconds, held_interval: of the connections that are held
    # - bytes: of each broadcast meanwhile; a few of them fill what the kernel keeps for a client that does not read
    # - rounds: of each work but holding
    Sizes = Data.define(:connecting, :connections, :streams, :interval, :held, :seconds, :held_interval, :bytes,
                        :rounds)

    FULL = Sizes.new(connecting: 2000, connections: 5000, streams: 500, interval: 5,
                     held: 10_000, seconds: 60, held_interval: 15, bytes: 4096, rounds: 3)
    # To see that it works.
    QUICK = Sizes.new(connecting: 200, connections: 400, streams: 40, interval: 1,
                      held: 400, seconds: 10, held_interval: 2, bytes: 16_384, rounds: 1)
  end
end
