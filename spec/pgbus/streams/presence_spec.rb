# frozen_string_literal: true

# The contract, run on the gem's two routes and on the plain Ruby code, the yardstick.
Implementation::ALL.each do |implementation|
  RSpec.describe "Pgbus::Streams::Presence, #{implementation.name}", implementation: do
    [
      "the signatures of Presence", "joining", "leaving", "touching", "setting the state of a seat",
      "listing and counting", "sweeping", "expiring seats", "the answer whether the table has seats",
      "the helpers of the class", "records", "reading JSON", "times", "any table", "bad input", "errors"
    ].each do |behaviour|
      describe(behaviour) { include_examples behaviour }
    end
  end
end
