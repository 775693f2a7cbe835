# frozen_string_literal: true

require "active_support"
require "active_support/notifications"

module Pgbus
  module Native
    # Every call of Presence is an ActiveSupport::Notifications event, `join.pgbus_native` and the like, if somebody
    # subscribes to it. Its payload:
    #
    # - `:stream` (String, nil): the stream's name; nil for calls that are about all of them
    # - `:route` (Symbol): `:native` or `:active_record`
    # - `:rows` (Integer): how many rows the call has answered or changed
    # - `:batch_size` (Integer): how many calls were run in the same statement, this one among them
    # - `:retries` (Integer): how often it was run again because its connection broke
    #
    # A call that fails has `:exception` and `:exception_object` instead of rows, as usual.
    module Events
      # The operation of each statement.
      OPERATIONS = {
        SEAT_COLUMNS: "seats_supported", JOIN_MEMBER: "join", JOIN_MEMBER_BEFORE_SEATS: "join", JOIN_SEAT: "join",
        LEAVE_MEMBER: "leave", LEAVE_MEMBER_BEFORE_SEATS: "leave", LEAVE_SEAT: "leave",
        TOUCH_MEMBER: "touch", TOUCH_MEMBER_BEFORE_SEATS: "touch", TOUCH_SEAT: "touch", TOUCH_SEATS: "touch",
        SET_STATE: "set_state", MEMBERS: "members", MEMBERS_BEFORE_SEATS: "members", COUNT: "count",
        SWEEP: "sweep", SWEEP_BEFORE_SEATS: "sweep", EXPIRE_SEATS: "expire_seats"
      }.freeze
      NAMES = OPERATIONS.to_h { |statement, operation| [Statements.const_get(statement), "#{operation}.pgbus_native"] }
                        .compare_by_identity.freeze
      private_constant :OPERATIONS, :NAMES

      # Runs the block, as an event if somebody subscribes to it.
      #
      # @param statement [Statement] what the call runs
      # @param stream [String, nil]
      # @yieldparam details [Hash, nil] takes `:route`, `:batch_size` and `:retries`; nil if nobody wants them
      # @yieldreturn [Array, Integer] the call's answer
      # @return [Array, Integer] the same
      def self.instrument(statement, stream)
        name = NAMES.fetch(statement)
        return yield(nil) unless ActiveSupport::Notifications.notifier.listening?(name)

        ActiveSupport::Notifications.instrument(name, stream: stream, retries: 0) do |payload|
          yield(payload).tap { |answer| payload[:rows] = rows(statement, answer) }
        end
      end

      def self.rows(statement, answer)
        case statement.returns
        when :records, :texts then answer.size
        when :number then 1
        when :changes then answer
        end
      end
      private_class_method :rows
    end
  end
end
