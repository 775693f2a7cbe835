# frozen_string_literal: true

require "openssl"

# Issues certificates, in PEM, for the time of an example group.
class CertificateAuthority
  DAY = 24 * 60 * 60

  Certificate = Data.define(:pem, :key)

  def initialize(name, **extensions)
    @key = OpenSSL::PKey::EC.generate("prime256v1")
    @certificate = certificate(name, @key, valid: Time.now - DAY..Time.now + DAY)
    extend_with(@certificate, @certificate, { basicConstraints: "critical,CA:TRUE", **extensions })
    @certificate.sign(@key, "SHA256")
  end

  # Its own certificate, to be trusted.
  def pem
    @certificate.to_pem
  end

  # @param name [String] the common name
  # @param alternative [String, nil] such as "DNS:localhost"
  # @param valid [Range<Time>]
  # @param password [String, nil] to encrypt the key with
  # @return [Certificate]
  def issue(name, alternative: nil, valid: Time.now - DAY..Time.now + DAY, password: nil)
    key = OpenSSL::PKey::EC.generate("prime256v1")
    issued = certificate(name, key, valid:, issuer: @certificate.subject)
    extend_with(issued, @certificate, { subjectAltName: alternative }.compact)
    issued.sign(@key, "SHA256")
    cipher = OpenSSL::Cipher.new("aes-256-cbc") if password
    Certificate.new(pem: issued.to_pem, key: key.private_to_pem(*[cipher, password].compact))
  end

  # A list of the certificates that are no longer to be trusted.
  def revocation_list
    list = OpenSSL::X509::CRL.new
    list.version = 1
    list.issuer = @certificate.subject
    list.last_update = Time.now - DAY
    list.next_update = Time.now + DAY
    list.sign(@key, "SHA256").to_pem
  end

  # Its own certificate and key, for a server without an authority.
  def self_signed
    Certificate.new(pem:, key: @key.private_to_pem)
  end

  private

  def certificate(name, key, valid:, issuer: nil)
    OpenSSL::X509::Certificate.new.tap do |certificate|
      certificate.version = 2
      certificate.serial = OpenSSL::BN.rand(64)
      certificate.subject = OpenSSL::X509::Name.new([["CN", name]])
      certificate.issuer = issuer || certificate.subject
      certificate.public_key = key
      certificate.not_before = valid.begin
      certificate.not_after = valid.end
    end
  end

  def extend_with(certificate, issuer, extensions)
    factory = OpenSSL::X509::ExtensionFactory.new(issuer, certificate)
    extensions.each { |name, value| certificate.add_extension(factory.create_extension(name.to_s, value)) }
  end
end
