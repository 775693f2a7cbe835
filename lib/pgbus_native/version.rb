# frozen_string_literal: true

module Pgbus
  module Native
    # The pgbus release whose behaviour this gem has.
    VERSION = "0.18.0"
  end
end
