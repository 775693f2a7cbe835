# frozen_string_literal: true

# Libraries built on pgbus probe `instance_method(:join).parameters`, so the signatures are
# part of the contract, keyword by keyword.
RSpec.shared_examples "the signatures of Presence" do
  instance_methods = {
    seats?: [],
    seats_now?: [],
    join: [%i[keyreq member_id], %i[key metadata], %i[key connection_id], %i[key seat]],
    leave: [%i[key member_id], %i[key connection_id]],
    touch: [%i[key member_id], %i[key connection_id]],
    set_state: [%i[keyreq connection_id], %i[keyreq state]],
    members: [],
    count: [],
    sweep!: [%i[keyreq older_than]]
  }
  class_methods = {
    seats_supported?: [],
    seats_supported_now?: [],
    reset_schema_cache!: [],
    expire_seats!: [%i[keyreq ttl_for], %i[keyreq min_ttl]],
    connection: [],
    report_change: [%i[req stream_name], %i[req type], %i[req record]],
    text_array: [%i[req values]],
    monotonic_now: []
  }

  instance_methods.each do |name, parameters|
    it "keeps the parameters of ##{name}" do
      expect(presence_class.instance_method(name).parameters).to eq(parameters)
    end
  end

  class_methods.each do |name, parameters|
    it "keeps the parameters of .#{name}" do
      expect(presence_class.method(name).parameters).to eq(parameters)
    end
  end

  it "is made for a stream" do
    expect(presence_class.instance_method(:initialize).parameters).to eq([%i[req stream]])
  end

  it "has these public methods and no others" do
    expect(presence_class.public_instance_methods(false)).to match_array(instance_methods.keys)
    expect(presence_class.singleton_methods(false)).to match_array(class_methods.keys)
  end

  it "keeps Record.build and Record.parse_json public, each with its parameter" do
    expect(presence_class::Record.method(:build).parameters).to eq([%i[req row]])
    expect(presence_class::Record.method(:parse_json).parameters).to eq([%i[req value]])
  end

  it "keeps its constants" do
    expect(presence_class::RECORD_COLUMNS).to eq("member_id, metadata, joined_at, last_seen_at")
    expect(presence_class::SEAT_RECORD_COLUMNS)
      .to eq("member_id, metadata, joined_at, last_seen_at, connection_id, seat, state")
    expect(presence_class::SCHEMA_RECHECK_SECONDS).to eq(30)
  end

  {
    "a join without a member" => [ArgumentError, "missing keyword: :member_id", ->(presence) { presence.join }],
    "a join with a positional argument" => [
      ArgumentError, "wrong number of arguments (given 1, expected 0; required keyword: member_id)",
      ->(presence) { presence.join("7") }
    ],
    "a join with an unknown keyword" => [
      ArgumentError, "unknown keyword: :tab", ->(presence) { presence.join(member_id: "7", tab: "a") }
    ],
    "a leave with an unknown keyword" => [ArgumentError, "unknown keyword: :id", lambda { |presence|
                                                                                   presence.leave(id: 7)
                                                                                 }],
    "a touch with a positional argument" => [
      ArgumentError, "wrong number of arguments (given 1, expected 0)", ->(presence) { presence.touch("7") }
    ],
    "a set_state without its keywords" => [
      ArgumentError, "missing keywords: :connection_id, :state", ->(presence) { presence.set_state }
    ],
    "members with an argument" => [
      ArgumentError, "wrong number of arguments (given 1, expected 0)", ->(presence) { presence.members(1) }
    ],
    "count with an argument" => [
      ArgumentError, "wrong number of arguments (given 1, expected 0)", ->(presence) { presence.count(1) }
    ],
    "a sweep without a cutoff" => [ArgumentError, "missing keyword: :older_than", ->(presence) { presence.sweep! }],
    "an expiry without ttls" => [
      ArgumentError, "missing keywords: :ttl_for, :min_ttl", ->(presence) { presence.class.expire_seats! }
    ]
  }.each do |call, (error, message, attempt)|
    it "answers #{call} with Ruby's own ArgumentError" do
      expect { attempt.call(presence) }.to raise_error(error, message)
    end
  end
end
