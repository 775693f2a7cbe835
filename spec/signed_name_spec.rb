# frozen_string_literal: true

require "pgbus_native/streams"
require_relative "support/stream_app_helpers"

RSpec.describe "Pgbus::Streams::SignedName" do
  include StreamAppHelpers

  let(:signed_name) { Pgbus::Streams::SignedName }
  let(:invalid) { signed_name::InvalidSignedName }

  # As pgbus reads a token, without any code of this gem.
  def read(token, secret: StreamAppHelpers::SECRET)
    ActiveSupport::MessageVerifier.new(secret, digest: "SHA256", serializer: JSON).verified(token)
  end

  it "has the signatures of pgbus" do
    expect(signed_name.method(:verify!).parameters).to eq([%i[req token]])
    expect(signed_name.method(:sign).parameters).to eq([%i[req stream_name]])
    expect(signed_name.singleton_methods).to match_array(%i[verify! sign])
  end

  ["room:1", "gid://app/Order/42:messages", "é 日本 😀", "", "a\nb", "\"quoted\" \\ </b>", "x" * 5000].each do |name|
    it "signs #{name[0, 20].inspect} so that pgbus reads it, and reads what pgbus signs" do
      expect(read(signed_name.sign(name))).to eq(name)
      expect(signed_name.verify!(signed(name))).to eq(name)
      expect(signed_name.sign(name)).to eq(signed(name))
    end
  end

  it "goes with 500 random names there and back" do
    random = Random.new(17)
    names = Array.new(500) { Array.new(random.rand(1..40)) { random.rand(1..0xD7FF) }.pack("U*") }

    expect(names.map { |name| signed_name.verify!(signed(name)) }).to eq(names)
    expect(names.map { |name| read(signed_name.sign(name)) }).to eq(names)
  end

  it "refuses a token with any one character changed" do
    token = signed("room:1")
    changed = token.each_char.with_index.map do |character, index|
      token.dup.tap { |copy| copy[index] = character == "A" ? "B" : "A" }
    end

    changed.each { |wrong| expect { signed_name.verify!(wrong) }.to raise_error(invalid) }
  end

  {
    "nothing" => -> {}, "an empty text" => -> { "" }, "a blank one" => -> { " " }, "a name" => -> { "room:1" },
    "a separator" => -> { "--" }, "a number" => -> { 7 }, "bytes that are no text" => -> { "\xFF--\xFF" },
    "NUL" => -> { "\0" }, "a token of another secret" => -> { signed("room:1", secret: "another") },
    "a token of another digest" => -> { signed("room:1", digest: "SHA512") },
    "a token in another format" => -> { signed("room:1", serializer: Marshal) },
    "an expired token" => -> { signed("room:1", expires_in: -1) },
    "a token for a purpose" => -> { signed("room:1", purpose: :login) },
    "a signed number" => -> { signed(1) }, "a signed list" => -> { signed(["room:1"]) },
    "a signed object" => -> { signed({ "room" => 1 }) }, "a signed null" => -> { signed(nil) },
    "a signed true" => -> { signed(true) }
  }.each do |kind, wrong|
    it "refuses #{kind}" do
      expect { signed_name.verify!(instance_exec(&wrong)) }.to raise_error(invalid)
    end
  end

  it "does not tell in its message what was given" do
    expect { signed_name.verify!("a token that was tried") }.to raise_error(invalid) { |error|
      expect(error.message).not_to include("tried")
    }
  end

  it "takes Turbo's key where Turbo has one, and pgbus's secret where it has none" do
    stub_const("Turbo", Module.new { def self.signed_stream_verifier_key = "Turbo's" })
    expect(read(signed_name.sign("room:1"), secret: "Turbo's")).to eq("room:1")

    stub_const("Turbo", Module.new { def self.signed_stream_verifier_key = raise(ArgumentError, "no key") })
    expect(read(signed_name.sign("room:1"))).to eq("room:1")
  end

  it "reads the secret at each call" do
    token = signed("room:1")
    settings.streams_signed_name_secret = "rotated"

    expect { signed_name.verify!(token) }.to raise_error(invalid)
    expect(read(signed_name.sign("room:1"), secret: "rotated")).to eq("room:1")
  end

  [nil, ""].each do |secret|
    it "says what to set where the secret is #{secret.inspect}" do
      settings.streams_signed_name_secret = secret
      missing = signed_name::MissingSecret

      expect { signed_name.sign("room:1") }.to raise_error(missing, /streams_signed_name_secret/)
      expect { signed_name.verify!(signed("room:1")) }.to raise_error(missing)
    end
  end
end
