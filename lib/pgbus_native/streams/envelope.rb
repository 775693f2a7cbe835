# frozen_string_literal: true

require "json"

module Pgbus
  module Streams
    # Frames of Server-Sent Events. Whatever the text, it stays in the field that it was meant for: the lines of a
    # payload become `data:` lines, and everything else is brought onto one line. Frames are UTF-8; bytes that are not
    # become U+FFFD.
    module Envelope
      # What ends a line for a client. Not U+2028, and not U+0085.
      LINE_END = /\r\n|\r|\n/
      private_constant :LINE_END

      # See {.http_response_headers}.
      RESPONSE_HEADERS = [
        "HTTP/1.1 200 OK",
        "content-type: text/event-stream",
        "cache-control: no-cache, no-transform",
        "x-accel-buffering: no",
        "connection: keep-alive"
      ].map { |line| "#{line}\r\n" }.join.concat("\r\n").freeze

      # An event, with the id that a client sends back as Last-Event-ID.
      #
      # @param id [Integer, String]
      # @param event [String, Symbol] its name
      # @param data [#to_s] the payload
      # @return [String]
      # @raise [ArgumentError] without an id or a name
      def self.message(id:, event:, data:)
        id = one_line(id)
        event = one_line(event)
        raise ArgumentError, "an event has an id" if id.empty?
        raise ArgumentError, "an event has a name" if event.empty?

        # -1 keeps empty lines at the end; an empty payload is one empty line, without which there is no event.
        lines = utf8(data).split(LINE_END, -1)
        lines << "" if lines.empty?
        "id: #{id}\nevent: #{event}\n#{lines.map { |line| "data: #{line}\n" }.join}\n"
      end

      # What a client passes over: it keeps the connection alive, or tells something to whoever looks at it.
      #
      # @param text [#to_s]
      # @return [String]
      def self.comment(text)
        ": #{one_line(text)}\n\n"
      end

      # Tells a client the id of its connection. Without an `id:` line, since it is no place in the stream.
      #
      # @param id [#to_s]
      # @return [String]
      # @raise [ArgumentError] without one
      def self.connected(id:)
        id = utf8(id)
        raise ArgumentError, "a connection has an id" if id.empty?

        "event: pgbus:connected\ndata: #{JSON.generate({ connectionId: id })}\n\n"
      end

      # @param milliseconds [Integer] how long a client waits until it connects again
      # @return [String]
      # @raise [ArgumentError] unless it is an Integer, not negative
      def self.retry_directive(milliseconds)
        unless milliseconds.is_a?(Integer) && !milliseconds.negative?
          raise ArgumentError, "a client waits a whole number of milliseconds (got #{milliseconds.inspect})"
        end

        "retry: #{milliseconds}\n\n"
      end

      # The head of the response, for a socket that was taken over from the server.
      #
      # @return [String]
      def self.http_response_headers
        RESPONSE_HEADERS
      end

      def self.one_line(text)
        utf8(text).delete("\r\n")
      end

      def self.utf8(text)
        text = text.to_s
        # Binary is what a socket or a file gave: nobody said what it is, and all of this is UTF-8.
        return text.dup.force_encoding(Encoding::UTF_8).scrub if text.encoding == Encoding::BINARY

        text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace, replace: "\uFFFD")
      end

      private_class_method :one_line, :utf8
    end
  end
end
