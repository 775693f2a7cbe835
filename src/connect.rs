//! Making a connection as libpq makes it: which host, at which address, with or without TLS.

use std::fmt::Display;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{AsyncMessage, CancelToken, Client, NoTls, Notification, SimpleQueryMessage};
use tokio_util::either::Either;

use crate::config::{Config, Host, Network, Target};
use crate::error::Error;
use crate::tls::{Connector, Mode, fails_with_libpq_too, tls_error};

/// A connection's transport.
pub(crate) type Socket = Either<TcpStream, UnixStream>;

/// A new connection.
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// What other sessions NOTIFY, once this one LISTENs.
    pub(crate) notifications: UnboundedReceiver<Notification>,
    pub(crate) canceller: Canceller,
    pub(crate) lookout: Lookout,
    /// Where it leads, for messages.
    pub(crate) server: String,
}

/// Looks at the socket of a connection, without reading from it.
pub(crate) struct Lookout(Option<socket2::Socket>);

impl Lookout {
    /// Through a descriptor of its own: the connection may close its one at any time.
    fn new(socket: &Socket) -> Lookout {
        let descriptor = match socket {
            Either::Left(tcp) => tcp.as_fd(),
            Either::Right(unix) => unix.as_fd(),
        };
        Lookout(descriptor.try_clone_to_owned().ok().map(Into::into))
    }

    /// Whether nothing is there to be read, not even the end. False if that cannot be told.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        // It does not block, like the connection's own descriptor.
        let peeked = self.0.as_ref().map(|socket| socket.peek(&mut byte));
        matches!(peeked, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// Cancels what a connection is running.
#[derive(Clone)]
pub(crate) struct Canceller {
    token: CancelToken,
    place: Place,
    network: Network,
    tls: Option<Connector>,
}

impl Canceller {
    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    /// Sends the request, encrypted like the connection, and waits until the server has acted on it: then it
    /// hangs up. It tells nobody whether there was anything to cancel.
    pub(crate) async fn send(&self) {
        if let Ok(socket) = self.place.open(&self.network).await {
            let socket = UntilHungUp(socket);
            let _ = match &self.tls {
                Some(tls) => {
                    let handshake = tls.handshake(Arc::default());
                    self.token.cancel_query_raw(socket, handshake).await
                }
                None => self.token.cancel_query_raw(socket, NoTls).await,
            };
        }
    }
}

/// A stream whose shutdown is over when the other side has closed it, too.
pub(crate) struct UntilHungUp<S>(pub(crate) S);

impl<S: AsyncRead + Unpin> AsyncRead for UntilHungUp<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for UntilHungUp<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.0).poll_flush(context))?;
        let mut ignored = [0; 64];
        loop {
            let mut buffer = ReadBuf::new(&mut ignored);
            ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Connects to the first suitable host that answers. The connection's own task is left on the current
/// runtime; it ends with the connection, and its error reaches the statement that is under way, if any.
pub(crate) async fn connect(config: &Config) -> Result<Connected, Error> {
    let mut failures = Vec::new();
    for &target in config.targets {
        for host in in_turn(&config.hosts, config.load_balance) {
            let places = match Place::all(host).await {
                Ok(places) => places,
                Err(error) => {
                    failures.push(error);
                    continue;
                }
            };
            for place in in_turn(&places, config.load_balance) {
                let Failure { error, then } = match attempt(config, host, place, target).await {
                    Ok(connected) => return Ok(connected),
                    Err(failure) => failure,
                };
                failures.push(error);
                match then {
                    Then::NextAddress => {}
                    Then::NextHost => break,
                    Then::OtherEncryption | Then::Nothing => return Err(sum(failures)),
                }
            }
        }
    }
    Err(sum(failures))
}

/// Why there is no connection, and what to try then.
struct Failure {
    error: Error,
    then: Then,
}

enum Then {
    NextAddress,
    NextHost,
    /// The same address, encrypted if it was not, and the other way round.
    OtherEncryption,
    Nothing,
}

/// One address, within the time that a connection may take.
async fn attempt(
    config: &Config,
    host: &Host,
    place: &Place,
    target: Target,
) -> Result<Connected, Failure> {
    let attempt = async {
        let connected = log_in(config, host, place).await?;
        check(&connected, target).await?;
        Ok(connected)
    };
    match config.network.connect_timeout {
        None => attempt.await,
        Some(limit) => timeout(limit, attempt).await.unwrap_or_else(|_| {
            Err(Failure {
                error: failed(&place.server(host), &"timeout expired"),
                then: Then::NextAddress,
            })
        }),
    }
}

/// Logs in, and once more with or without TLS if the mode leaves that open and the first way was refused.
async fn log_in(config: &Config, host: &Host, place: &Place) -> Result<Connected, Failure> {
    let mode = match place {
        // Nobody listens in on a socket file.
        Place::Unix(_) => Mode::Disable,
        Place::Tcp(_) => config.tls.mode,
    };
    let ways: &[SslMode] = match mode {
        Mode::Disable => &[SslMode::Disable],
        Mode::Allow => &[SslMode::Disable, SslMode::Prefer],
        Mode::Prefer => &[SslMode::Prefer, SslMode::Disable],
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => &[SslMode::Require],
    };
    let mut failures = Vec::new();
    let mut then = Then::Nothing;
    for (number, way) in ways.iter().enumerate() {
        let last = number + 1 == ways.len();
        match log_in_once(config, host, place, *way, last).await {
            Ok(connected) => return Ok(connected),
            Err(failure) => {
                failures.push(failure.error);
                then = failure.then;
            }
        }
        if !matches!(then, Then::OtherEncryption) {
            break;
        }
    }
    Err(Failure {
        error: sum(failures),
        then,
    })
}

async fn log_in_once(
    config: &Config,
    host: &Host,
    place: &Place,
    encryption: SslMode,
    last: bool,
) -> Result<Connected, Failure> {
    let mut startup = config.startup.clone();
    startup.ssl_mode(encryption);
    if let Some(password) = &host.password {
        startup.password(password);
    }
    let tls = match (encryption, place) {
        (SslMode::Disable, _) | (_, Place::Unix(_)) => None,
        (_, Place::Tcp(address)) => {
            let connector = if host.name.is_empty() {
                config.tls.connector(&address.ip().to_string())
            } else {
                config.tls.connector(&host.name)
            };
            Some(connector.map_err(|error| Failure {
                error,
                then: Then::Nothing,
            })?)
        }
    };
    let server = place.server(host);
    let socket = place.open(&config.network).await.map_err(|error| Failure {
        error: failed(&server, &error),
        then: Then::NextAddress,
    })?;
    let lookout = Lookout::new(&socket);
    let encrypted = Arc::new(AtomicBool::new(false));
    let started = match &tls {
        Some(tls) => {
            let handshake = tls.handshake(Arc::clone(&encrypted));
            start(&startup, socket, handshake).await
        }
        None => start(&startup, socket, NoTls).await,
    };
    match started {
        Ok((client, notifications)) => {
            let canceller = Canceller {
                token: client.cancel_token(),
                place: place.clone(),
                network: config.network.clone(),
                tls,
            };
            Ok(Connected {
                client,
                notifications,
                canceller,
                lookout,
                server,
            })
        }
        Err(error) => {
            let encrypted = encrypted.load(Ordering::Relaxed);
            // A server without TLS has been tried without it already.
            let other_way = !last && (encrypted || encryption == SslMode::Disable);
            Err(sort(&error, encrypted, other_way, config, &server))
        }
    }
}

async fn start<T>(
    startup: &tokio_postgres::Config,
    socket: Socket,
    tls: T,
) -> Result<(Client, UnboundedReceiver<Notification>), tokio_postgres::Error>
where
    T: TlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, mut connection) = startup.connect_raw(socket, tls).await?;
    let (sender, notifications) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                // Most sessions do not care.
                let _ = sender.send(notification);
            }
        }
    });
    Ok((client, notifications))
}

/// What to make of a server that was reached but did not let us in.
fn sort(
    error: &tokio_postgres::Error,
    encrypted: bool,
    other_way: bool,
    config: &Config,
    server: &str,
) -> Failure {
    let then = match error.as_db_error() {
        Some(db) if *db.code() == SqlState::CANNOT_CONNECT_NOW => Then::NextHost,
        Some(db) if other_way && is_refusal(db) => Then::OtherEncryption,
        // None of its access rules fits; one for GSSAPI encryption might.
        Some(db) if config.gss_encryption && is_refusal(db) && has_no_rule(db) => {
            return beyond_us(server, db.message());
        }
        Some(_) => Then::Nothing,
        None => match (tls_error(error), unknown_method(error)) {
            (Some(tls), _) if !fails_with_libpq_too(tls) => {
                return beyond_us(server, &tls.to_string());
            }
            (_, Some(method)) => return beyond_us(server, &method),
            _ if other_way && encrypted => Then::OtherEncryption,
            _ => Then::Nothing,
        },
    };
    Failure {
        error: Error::from_connect(error, server),
        then,
    }
}

/// libpq might be let in where this client is not.
fn beyond_us(server: &str, reason: &str) -> Failure {
    Failure {
        error: Error::Unsupported(format!("connection to {server} failed: {reason}")),
        then: Then::Nothing,
    }
}

/// Whether the server does not accept who is asking, or how.
fn is_refusal(error: &DbError) -> bool {
    error.code().code().starts_with("28")
}

fn has_no_rule(error: &DbError) -> bool {
    error.routine() == Some("ClientAuthentication")
}

/// What GSSAPI, SSPI and OAuth are called by the client, which knows none of them.
fn unknown_method(error: &tokio_postgres::Error) -> Option<String> {
    let reason = std::error::Error::source(error)?.to_string();
    let methods = [
        "unsupported authentication method",
        "unsupported SASL mechanism",
    ];
    methods
        .contains(&reason.as_str())
        .then(|| format!("the server asks for an {reason}"))
}

/// Sees that the server is of the wanted kind.
async fn check(connected: &Connected, target: Target) -> Result<(), Failure> {
    let (question, answer, otherwise) = match target {
        Target::Any => return Ok(()),
        Target::ReadWrite => (READ_ONLY, "off", "session is read-only"),
        Target::ReadOnly => (READ_ONLY, "on", "session is not read-only"),
        Target::Primary => (STANDBY, "f", "server is in hot standby mode"),
        Target::Standby => (STANDBY, "t", "server is not in hot standby mode"),
    };
    const READ_ONLY: &str = "SHOW transaction_read_only";
    const STANDBY: &str = "SELECT pg_catalog.pg_is_in_recovery()";
    let Connected { client, server, .. } = connected;
    let error = match client.simple_query(question).await {
        Ok(messages) => {
            let fits = messages.iter().any(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0) == Some(answer),
                _ => false,
            });
            if fits {
                return Ok(());
            }
            failed(server, &otherwise)
        }
        Err(error) => Error::from_connect(&error, server),
    };
    Err(Failure {
        error,
        then: Then::NextHost,
    })
}

/// Where a server listens.
#[derive(Debug, Clone)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    /// Every place that the host's name stands for.
    async fn all(host: &Host) -> Result<Vec<Place>, Error> {
        if let Some(address) = host.address {
            return Ok(vec![Place::Tcp((address, host.port).into())]);
        }
        if host.name.starts_with('/') {
            let file = format!(".s.PGSQL.{}", host.port);
            return Ok(vec![Place::Unix(PathBuf::from(&host.name).join(file))]);
        }
        match lookup_host((host.name.as_str(), host.port)).await {
            Ok(addresses) => Ok(addresses.map(Place::Tcp).collect()),
            Err(error) => Err(Error::Connect {
                message: format!(
                    "could not translate host name \"{}\" to address: {error}",
                    host.name
                ),
                code: None,
            }),
        }
    }

    async fn open(&self, network: &Network) -> io::Result<Socket> {
        match self {
            Place::Unix(path) => Ok(Either::Right(UnixStream::connect(path).await?)),
            Place::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let options = SockRef::from(&stream);
                if let Some(keepalive) = &network.keepalive {
                    options.set_tcp_keepalive(keepalive)?;
                }
                if let Some(timeout) = network.user_timeout {
                    set_user_timeout(&options, timeout)?;
                }
                Ok(Either::Left(stream))
            }
        }
    }

    /// The server in libpq's words.
    fn server(&self, host: &Host) -> String {
        match self {
            Place::Unix(path) => format!("server on socket \"{}\"", path.display()),
            Place::Tcp(address) => {
                let (ip, port) = (address.ip().to_string(), address.port());
                if host.name.is_empty() || host.name == ip {
                    format!("server at \"{ip}\", port {port}")
                } else {
                    format!("server at \"{}\" ({ip}), port {port}", host.name)
                }
            }
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn set_user_timeout(options: &SockRef<'_>, timeout: Duration) -> io::Result<()> {
    options.set_tcp_user_timeout(Some(timeout))
}

/// Other systems have no such timeout. There the setting has no effect, as in libpq.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn set_user_timeout(_: &SockRef<'_>, _: Duration) -> io::Result<()> {
    Ok(())
}

fn failed(server: &str, reason: &dyn Display) -> Error {
    Error::Connect {
        message: format!("connection to {server} failed: {reason}"),
        code: None,
    }
}

/// Several failures as one that tells of all, and has the SQLSTATE of the last.
fn sum(mut failures: Vec<Error>) -> Error {
    let last = match failures.pop() {
        Some(Error::Connect { code, message }) => (code, message),
        Some(other) => return other,
        None => (None, "no host to connect to".to_owned()),
    };
    let mut messages: Vec<String> = failures.iter().map(Error::to_string).collect();
    messages.push(last.1);
    Error::Connect {
        message: messages.join("\n"),
        code: last.0,
    }
}

/// In the given order, or in a random one to spread connections over servers.
fn in_turn<T>(items: &[T], random: bool) -> Vec<&T> {
    let mut items: Vec<&T> = items.iter().collect();
    if random {
        for last in (1..items.len()).rev() {
            items.swap(last, random_number() % (last + 1));
        }
    }
    items
}

fn random_number() -> usize {
    let mut hasher = RandomState::new().build_hasher();
    // Forked children inherit the keys of their parent's hashers.
    hasher.write_u32(std::process::id());
    // Any of the bits will do.
    hasher.finish() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_of_hosts_unless_told_otherwise() {
        assert_eq!(in_turn(&[1, 2, 3], false), [&1, &2, &3]);
    }

    #[test]
    fn spreads_over_all_hosts_when_told_to() {
        let firsts: std::collections::HashSet<i32> =
            (0..200).map(|_| *in_turn(&[1, 2, 3], true)[0]).collect();
        assert_eq!(firsts.len(), 3);
    }

    #[test]
    fn tells_of_every_failure() {
        let refused = Error::Connect {
            message: "b".to_owned(),
            code: Some("28P01".to_owned()),
        };
        let error = sum(vec![failed("a", &"timeout expired"), refused]);
        assert_eq!(
            error.to_string(),
            "connection to a failed: timeout expired\nb"
        );
        assert_eq!(error.code(), Some("28P01"));
    }
}
