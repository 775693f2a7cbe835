# frozen_string_literal: true

module Pgbus
  module Web
    # Everything between an open SSE connection and the code that has something to say on it.
    module Streamer
      # Writes to a socket, for no longer than a deadline allows: a client that does not read must not stop the thread
      # that writes to all of them.
      module IoWriter
        # Writes all of it, one caller at a time.
        #
        # @param connection [Connection] its `mutex` and `io` are used
        # @param bytes [String]
        # @param deadline_ms [Numeric] milliseconds
        # @return [Symbol] `:ok`; `:blocked` when the deadline came first, and `:closed` when the client has gone. After
        #   these two nobody knows how much was written, so nothing more may be.
        def self.write(connection, bytes, deadline_ms:)
          connection.mutex.synchronize do
            io = connection.io
            seconds = deadline_ms / 1000.0
            io.is_a?(::IO) ? write_socket(io, bytes.b, seconds) : write_wrapped(io, bytes, seconds)
          end
        end

        def self.write_socket(io, rest, seconds)
          deadline = now + seconds
          until rest.empty?
            case written = io.write_nonblock(rest, exception: false)
            when Integer then rest = rest.byteslice(written..)
            else return :blocked unless (left = deadline - now).positive? && io.wait_writable(left)
            end
          end
          :ok
        rescue IOError, SystemCallError
          :closed
        end

        # A socket whose TLS the server does: all that it offers is to block, on the socket below it, which is given the
        # time that it may take. What TLS itself complains of has many classes and one meaning.
        def self.write_wrapped(io, bytes, seconds)
          io.to_io.timeout = seconds if io.respond_to?(:to_io)
          io.write(bytes)
          :ok
        rescue IO::TimeoutError
          :blocked
        rescue StandardError
          :closed
        end

        def self.now
          ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
        end

        private_class_method :write_socket, :write_wrapped, :now
      end

      # One open SSE connection: what is known of it, and writing to it. Safe on any thread; frames never mix.
      #
      # After a write that failed the connection is dead: half a frame may be on the wire, and no other may follow it.
      class Connection
        # @return [String] 16 hexadecimal digits
        attr_reader :id

        # @return [String]
        attr_reader :stream_name

        # @return [IO, Object] the socket, or the body
        attr_reader :io

        # @return [Mutex] held while a frame is written
        attr_reader :mutex

        # @return [Integer] the cursor: the last message that the client has
        attr_reader :last_msg_id_sent

        # @return [Object, nil] what the authorize hook said, unless it was `true`
        attr_reader :context

        # @return [String, nil] the client's own id of its tab
        attr_reader :seat

        # @return [Object, nil] the member that is on the seat; kept for the streamer
        attr_accessor :presence_member

        # @param id [String]
        # @param stream_name [String]
        # @param io [IO, #to_io] a socket that is this connection's alone from now on
        # @param since_id [Integer] the cursor
        # @param writer [#write] {IoWriter}
        # @param write_deadline_ms [Numeric] milliseconds that a frame may take
        # @param context [Object, nil]
        # @param seat [String, nil]
        def initialize(id:, stream_name:, io:, since_id:, writer:, write_deadline_ms:, context: nil, seat: nil)
          @id = id
          @stream_name = stream_name
          @io = io
          @last_msg_id_sent = since_id.to_i
          @writer = writer
          @write_deadline_ms = write_deadline_ms
          @context = context
          @seat = seat
          @mutex = Mutex.new
          @dead = @closed = false
          @written_at = now
        end

        # Writes those messages that the client has not got, and moves the cursor with each.
        #
        # @param envelopes [Array<#msg_id, #payload>] in the order of their ids; if they answer `event`, that is the
        #   event's name
        # @param deadline_ms [Numeric, nil] milliseconds for each, if not the connection's own
        # @return [Array] those that were written
        def enqueue(envelopes, deadline_ms: nil)
          envelopes.each_with_object([]) do |envelope, written|
            next if envelope.msg_id <= last_msg_id_sent

            frame = Streams::Envelope.message(id: envelope.msg_id, event: event_of(envelope), data: envelope.payload)
            break written unless write_sentinel(frame, deadline_ms:) == :ok

            @last_msg_id_sent = envelope.msg_id
            written << envelope
          end
        end

        # @param text [#to_s]
        # @return [Symbol] as {IoWriter.write}
        def write_comment(text)
          write_sentinel(Streams::Envelope.comment(text))
        end

        # Writes a whole frame that is no message of the stream: it moves no cursor.
        #
        # @param bytes [String]
        # @param deadline_ms [Numeric, nil] milliseconds, if not the connection's own
        # @return [Symbol] as {IoWriter.write}
        def write_sentinel(bytes, deadline_ms: nil)
          result = :closed
          result = deliver(bytes, deadline_ms || @write_deadline_ms) unless dead?
          @written_at = now if result == :ok
          result
        ensure
          # Also when an exception ended it half-way.
          mark_dead! unless result == :ok
        end

        # @return [Float] seconds since something was written
        def idle_for
          now - @written_at
        end

        # @return [Boolean]
        def dead?
          @dead
        end

        # @return [void]
        def mark_dead!
          @dead = true
        end

        # Closes the socket, once, after the frame that is being written.
        #
        # @return [void]
        def close
          mark_dead!
          mutex.synchronize do
            hang_up unless @closed
            @closed = true
          end
          nil
        rescue IOError, SystemCallError
          nil # it is as closed as it will be
        end

        private

        def deliver(bytes, deadline_ms)
          @writer.write(self, bytes, deadline_ms:)
        end

        def hang_up
          @io&.close
        end

        def event_of(envelope)
          (envelope.event if envelope.respond_to?(:event)) || "turbo-stream"
        end

        def now
          ::Process.clock_gettime(::Process::CLOCK_MONOTONIC)
        end
      end

      # The same on a response body that the server reads from, as Falcon does.
      class FalconConnection < Connection
        # @param id [String]
        # @param stream_name [String]
        # @param body [Protocol::HTTP::Body::Writable]
        # @param since_id [Integer] the cursor
        # @param write_deadline_ms [Numeric] milliseconds that a frame may take; the body's queue keeps to it
        # @param context [Object, nil]
        # @param seat [String, nil]
        def initialize(id:, stream_name:, body:, since_id:, write_deadline_ms:, context: nil, seat: nil)
          super(id:, stream_name:, io: body, since_id:, writer: nil, write_deadline_ms:, context:, seat:)
        end

        # @return [Boolean]
        def dead?
          super || io.closed?
        end

        private

        def deliver(bytes, _deadline_ms)
          mutex.synchronize { io.write(bytes) }
          :ok
        rescue ::Protocol::HTTP::Body::Writable::Closed
          io.closed? ? :closed : :blocked # open, and yet it took nothing: there was no room in time
        rescue StandardError
          raise unless io.closed? # by the server, and it raises whatever it was closed with

          :closed
        end

        # What is in the queue is still sent.
        def hang_up
          io.close_write
        end
      end
    end
  end
end
