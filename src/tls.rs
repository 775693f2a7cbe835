//! TLS as libpq does it: the same modes, files and checks.
//!
//! What this client cannot read or judge as libpq would is [`Error::Unsupported`]: libpq is to decide then.

use std::convert::Infallible;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::connect::Socket;
use crate::error::Error;

/// libpq's `sslmode`, in the order of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Certificates of the authorities that are trusted.
#[derive(Debug, Clone)]
pub(crate) enum Roots {
    /// In this file; without it nothing is verified, unless the mode insists.
    File(PathBuf),
    /// The operating system's.
    System,
}

/// How a connection is encrypted.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) roots: Option<Roots>,
    /// Certificates that are no longer trusted, if the file exists.
    pub(crate) revoked: Option<PathBuf>,
    /// The client's certificate, if the file exists.
    pub(crate) certificate: Option<PathBuf>,
    /// The key to it.
    pub(crate) key: Option<PathBuf>,
    /// Whether to tell the server the name by which it is called.
    pub(crate) server_name: bool,
    /// Whether to begin with TLS, without asking first.
    pub(crate) direct: bool,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
}

pub(crate) static ALL_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
pub(crate) static ONLY_TLS12: &[&SupportedProtocolVersion] = &[&TLS12];
pub(crate) static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&TLS13];

impl Settings {
    /// Reads the files, so that they may be renewed while the process runs. `name` is what the server is
    /// called in the settings, a host name or an address.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] for what libpq refuses as well, else [`Error::Unsupported`].
    pub(crate) fn connector(&self, name: &str) -> Result<Connector, Error> {
        ServerName::try_from(name)
            .map_err(|error| unsupported(format_args!("the host name {name}"), error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier {
            roots: self.read_roots()?,
            names: self.mode == Mode::VerifyFull,
            provider: Arc::clone(&provider),
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(self.versions)
            .map_err(|error| unsupported("the TLS versions", error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match self.read_identity()? {
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unsupported("the client's certificate", error))?,
            None => builder.with_no_client_auth(),
        };
        config.enable_sni = self.server_name;
        if self.direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Connector {
            rustls: MakeRustlsConnect::new(config),
            name: name.to_owned(),
        })
    }

    fn read_roots(&self) -> Result<Option<RootCertStore>, Error> {
        let mut store = RootCertStore::empty();
        match &self.roots {
            Some(Roots::System) => {
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Some(Roots::File(path)) if path.exists() => {
                if let Some(list) = self.revoked.as_ref().filter(|list| list.exists()) {
                    return Err(unsupported(list.display(), "revocation lists are not read"));
                }
                for certificate in read_certificates(path)? {
                    store
                        .add(certificate)
                        .map_err(|error| unsupported(path.display(), error))?;
                }
            }
            missing if self.mode >= Mode::VerifyCa => {
                let file = match missing {
                    Some(Roots::File(path)) => format!("file \"{}\" ", path.display()),
                    _ => String::new(),
                };
                return Err(Error::Connect {
                    message: format!(
                        "root certificate {file}does not exist; provide it, use the system's trusted roots with \
                         sslrootcert=system, or change sslmode to disable server certificate verification"
                    ),
                    code: None,
                });
            }
            _ => return Ok(None),
        }
        if store.is_empty() {
            return Err(unsupported("the root certificates", "there are none"));
        }
        Ok(Some(store))
    }

    #[allow(clippy::type_complexity)]
    fn read_identity(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, Error> {
        let Some(certificate) = self.certificate.as_ref().filter(|path| path.exists()) else {
            return Ok(None);
        };
        let Some(key) = &self.key else {
            return Err(unsupported(certificate.display(), "there is no key to it"));
        };
        check_permissions(key)?;
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|error| unsupported(key.display(), error))?;
        Ok(Some((read_certificates(certificate)?, secret)))
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unsupported(path.display(), error))
}

/// libpq refuses a key that others can read; root's may be readable for a group.
fn check_permissions(key: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(key).map_err(|error| unsupported(key.display(), error))?;
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.permissions().mode() & forbidden != 0 {
        return Err(unsupported(key.display(), "others have access to the key"));
    }
    Ok(())
}

fn unsupported(what: impl Display, why: impl Display) -> Error {
    Error::Unsupported(format!("TLS: the native client cannot use {what}: {why}"))
}

/// Judges the server's certificate: whom it was signed by if there are roots, and whom it names if that was
/// asked for. That the server has the key to it is checked always.
#[derive(Debug)]
struct Verifier {
    roots: Option<RootCertStore>,
    names: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                roots,
                intermediates,
                now,
                algorithms,
            )?;
            if self.names {
                verify_server_name(&certificate, name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Makes the handshakes of one connection: its own and that of a cancel request.
#[derive(Clone)]
pub(crate) struct Connector {
    rustls: MakeRustlsConnect,
    name: String,
}

type RustlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;

/// One handshake to come.
pub(crate) struct Handshake {
    rustls: RustlsConnect,
    /// Set once the server has agreed to TLS.
    begun: Arc<AtomicBool>,
}

impl Connector {
    /// A handshake that sets `begun` when the server has agreed to it.
    pub(crate) fn handshake(&self, begun: Arc<AtomicBool>) -> Handshake {
        let made: Result<RustlsConnect, Infallible> =
            MakeTlsConnect::<Socket>::make_tls_connect(&mut self.rustls.clone(), &self.name);
        let Ok(rustls) = made;
        Handshake { rustls, begun }
    }
}

impl<S> TlsConnect<S> for Handshake
where
    RustlsConnect: TlsConnect<S>,
{
    type Stream = <RustlsConnect as TlsConnect<S>>::Stream;
    type Error = <RustlsConnect as TlsConnect<S>>::Error;
    type Future = <RustlsConnect as TlsConnect<S>>::Future;

    fn connect(self, socket: S) -> Self::Future {
        self.begun.store(true, Ordering::Relaxed);
        self.rustls.connect(socket)
    }
}

/// The TLS error somewhere inside an error of the client.
pub(crate) fn tls_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // An io::Error does not name what it wraps as its source.
        if let Some(wrapped) = inner
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            if let Some(found) = wrapped.downcast_ref::<rustls::Error>() {
                return Some(found);
            }
        }
        cause = inner.source();
    }
    None
}

/// Whether libpq would meet the same failure. It may accept certificates that rustls does not (old ones
/// without alternative names, ones that signed themselves), ciphers and versions of the protocol.
pub(crate) fn fails_with_libpq_too(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(reason) => matches!(
            reason,
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        ),
        // The server refuses the client's certificate.
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRequired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
        ),
        _ => false,
    }
}
