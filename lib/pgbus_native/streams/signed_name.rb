# frozen_string_literal: true

require "active_support"
require "active_support/message_verifier"
require "json"

module Pgbus
  module Streams
    # Stream names as they stand in URLs: signed, so that nobody opens a stream whose name he was not given. The
    # tokens are those of pgbus, and of turbo-rails where that is loaded. Safe on any thread.
    module SignedName
      # The token was not made with this secret, was changed, has expired, was made for a purpose, or holds
      # something else than a stream name.
      class InvalidSignedName < StandardError; end

      # There is neither Turbo's key nor `streams_signed_name_secret`.
      class MissingSecret < StandardError; end

      # @param token [String, nil]
      # @return [String] the stream name
      # @raise [InvalidSignedName]
      # @raise [MissingSecret]
      def self.verify!(token)
        name = verifier.verified(token.to_s)
        return name if name.is_a?(String)

        raise InvalidSignedName, "this is not a signed stream name"
      rescue JSON::ParserError, EncodingError
        raise InvalidSignedName, "what was signed is no JSON"
      end

      # @param stream_name [String]
      # @return [String] the token
      # @raise [MissingSecret]
      def self.sign(stream_name)
        verifier.generate(stream_name)
      end

      # Made anew each time, since keys are rotated under a running process; that costs little beside the digest.
      def self.verifier
        ActiveSupport::MessageVerifier.new(secret, digest: "SHA256", serializer: JSON)
      end

      # An empty secret would be one that everybody knows.
      def self.secret
        turbo_key.presence || Pgbus.configuration.streams_signed_name_secret.presence ||
          raise(MissingSecret, "there is nothing to sign stream names with: set streams_signed_name_secret in " \
                               "pgbus's configuration, or Turbo.signed_stream_verifier_key")
      end

      def self.turbo_key
        ::Turbo.signed_stream_verifier_key if defined?(::Turbo)
      rescue ArgumentError # what Turbo says when it has no key
        nil
      end

      private_class_method :verifier, :secret, :turbo_key
    end
  end
end
