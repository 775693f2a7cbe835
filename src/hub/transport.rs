//! The socket of a client, taken over from a web server.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

/// A client that sends more than this after its request has something else in mind than to listen.
const UNASKED: usize = 64 * 1024;

/// A descriptor that is this process's own, and who writes to it.
#[derive(Debug)]
pub enum Wire {
    /// A plain socket: read and written here.
    Plain(OwnedFd),
    /// A socket on which somebody else speaks TLS: here one only sees that it is closed.
    Watched(OwnedFd),
    /// No socket at all: a body from which the web server reads.
    Elsewhere,
}

/// A wire in use. It belongs to the runtime on which it was made.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Socket),
    Watched(Socket),
    Elsewhere,
}

/// A connected socket of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Transport {
    /// `patience`: what was written and is not acknowledged for so long is lost, and with it the client, which may have
    /// gone without a word.
    pub(crate) fn new(wire: Wire, patience: Duration) -> io::Result<Transport> {
        Ok(match wire {
            Wire::Plain(descriptor) => {
                prepare(&SockRef::from(&descriptor), patience);
                Transport::Plain(Socket::new(descriptor)?)
            }
            Wire::Watched(descriptor) => Transport::Watched(Socket::new(descriptor)?),
            Wire::Elsewhere => Transport::Elsewhere,
        })
    }

    /// Whether somebody else writes what the client gets.
    pub(crate) fn is_written_elsewhere(&self) -> bool {
        !matches!(self, Transport::Plain(_))
    }

    /// Writes what the socket takes now.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => {
                socket.try_io(Interest::WRITABLE, |socket| send(socket, bytes))
            }
            Transport::Watched(_) | Transport::Elsewhere => Ok(bytes.len()),
        }
    }

    /// Resolves when it is worth trying to write again.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => socket.ready(Interest::WRITABLE).await.map(drop),
            Transport::Watched(_) | Transport::Elsewhere => Ok(()),
        }
    }

    /// Resolves when the client has gone, or does what no client of an event stream does.
    pub(crate) async fn gone(&self) {
        match self {
            Transport::Plain(socket) => read_to_end(socket).await,
            Transport::Watched(socket) => wait_for_end(socket).await,
            Transport::Elsewhere => std::future::pending().await,
        }
    }

    /// Ends the connection, also if a forked child has inherited the descriptor. `at_once`: what the client has not
    /// read yet is thrown away. A watched socket is left to those who write on it.
    pub(crate) fn close(&self, at_once: bool) {
        if let Transport::Plain(socket) = self {
            let socket = SockRef::from(socket);
            if at_once {
                let _ = socket.set_linger(Some(Duration::ZERO));
            }
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Socket {
    fn new(descriptor: OwnedFd) -> io::Result<Socket> {
        let socket = SockRef::from(&descriptor);
        socket.set_nonblocking(true)?;
        Ok(if socket.local_addr()?.is_unix() {
            Socket::Unix(UnixStream::from_std(descriptor.into())?)
        } else {
            Socket::Tcp(TcpStream::from_std(descriptor.into())?)
        })
    }

    async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Socket::Tcp(socket) => socket.ready(interest).await,
            Socket::Unix(socket) => socket.ready(interest).await,
        }
    }

    /// Does it if the socket is known to be ready; what then would block is not known to be ready any more.
    fn try_io<T>(
        &self,
        interest: Interest,
        work: impl FnOnce(&SockRef<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let work = || work(&SockRef::from(self));
        match self {
            Socket::Tcp(socket) => socket.try_io(interest, work),
            Socket::Unix(socket) => socket.try_io(interest, work),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// What cannot be set is only slower to notice, or is no TCP.
fn prepare(socket: &SockRef<'_>, patience: Duration) {
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(patience));
    #[cfg(not(target_os = "linux"))]
    let _ = socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(patience));
    #[cfg(target_vendor = "apple")]
    let _ = socket.set_nosigpipe(true);
}

#[cfg(not(target_vendor = "apple"))]
fn send(socket: &SockRef<'_>, bytes: &[u8]) -> io::Result<usize> {
    socket.send_with_flags(bytes, libc::MSG_NOSIGNAL)
}

#[cfg(target_vendor = "apple")]
fn send(socket: &SockRef<'_>, bytes: &[u8]) -> io::Result<usize> {
    socket.send(bytes)
}

async fn read_to_end(socket: &Socket) {
    let mut unasked = 0;
    while socket.ready(Interest::READABLE).await.is_ok() {
        let read = socket.try_io(Interest::READABLE, |socket| {
            let mut buffer = [MaybeUninit::uninit(); 512];
            socket.recv(&mut buffer)
        });
        match read {
            Ok(0) => return,
            Ok(length) => {
                unasked += length;
                if unasked > UNASKED {
                    return;
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                _ => return,
            },
        }
    }
}

/// What there is to read is somebody else's.
async fn wait_for_end(socket: &Socket) {
    while let Ok(ready) = socket.ready(Interest::READABLE).await {
        if ready.is_read_closed() {
            return;
        }
        let _: io::Result<()> =
            socket.try_io(Interest::READABLE, |_| Err(ErrorKind::WouldBlock.into()));
    }
}
