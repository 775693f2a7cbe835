# frozen_string_literal: true

# Which route calls take.
module Routes
  # Calls that the block made on each route.
  def calls
    before = Pgbus::Native.stats[:calls]
    yield
    Pgbus::Native.stats[:calls].to_h { |route, count| [route, count - before.fetch(route)] }
  end

  def expect_native(&)
    expect(calls(&)).to match(native: a_value > 0, active_record: 0)
  end

  def expect_active_record(&)
    expect(calls(&)).to match(native: 0, active_record: a_value > 0)
  end

  def on(route, &)
    Pgbus::Native.with_route(route, &)
  end
end
