//! The socket of a client, taken over from a web server.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{SockRef, Socket};

use super::inheritance;
use crate::connect::set_user_timeout;

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

/// A wire in use.
#[derive(Debug)]
pub(crate) struct Transport {
    socket: Option<Own>,
    plain: bool,
    /// Bytes that the client has sent.
    unasked: usize,
}

/// A socket that a forked child does not keep.
#[derive(Debug)]
struct Own(Socket);

impl Own {
    fn new(descriptor: OwnedFd) -> Own {
        inheritance::note(descriptor.as_raw_fd());
        Own(Socket::from(descriptor))
    }
}

impl Deref for Own {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        inheritance::forget(self.0.as_raw_fd());
    }
}

impl Transport {
    /// Has the poller tell of it by the token. `patience`: what was written and is not acknowledged for so long is lost,
    /// and with it the client, which may have gone without a word.
    pub(crate) fn new(
        wire: Wire,
        patience: Duration,
        poller: &Registry,
        token: Token,
    ) -> io::Result<Transport> {
        let (socket, interest) = match wire {
            Wire::Plain(descriptor) => {
                let socket = Own::new(descriptor);
                socket.set_nonblocking(true)?;
                prepare(&socket, patience);
                (Some(socket), Interest::READABLE | Interest::WRITABLE)
            }
            Wire::Watched(descriptor) => {
                let socket = Own::new(descriptor);
                prepare(&socket, patience);
                (Some(socket), Interest::READABLE)
            }
            Wire::Elsewhere => (None, Interest::READABLE),
        };
        if let Some(socket) = &socket {
            poller.register(&mut SourceFd(&socket.as_raw_fd()), token, interest)?;
        }
        Ok(Transport {
            socket,
            plain: interest.is_writable(),
            unasked: 0,
        })
    }

    /// Whether it is the hub that writes what the client gets.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Writes what the socket takes now.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.socket {
            Some(socket) if self.plain => send(socket, bytes),
            _ => Ok(bytes.len()),
        }
    }

    /// Whether the client has gone, or does what no client of an event stream does, after an event.
    pub(crate) fn is_over(&mut self, event: &Event) -> bool {
        match &self.socket {
            Some(socket) if self.plain => is_read_to_end(socket, &mut self.unasked),
            // What there is to read is somebody else's.
            _ => event.is_read_closed() || event.is_error(),
        }
    }

    /// Ends the connection. `at_once`: what the client has not read yet is thrown away. A watched socket is left to those
    /// who write on it.
    pub(crate) fn close(self, at_once: bool, poller: &Registry) {
        let Some(socket) = &self.socket else {
            return;
        };
        let _ = poller.deregister(&mut SourceFd(&socket.as_raw_fd()));
        if self.plain {
            if at_once {
                let _ = socket.set_linger(Some(Duration::ZERO));
            }
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// What cannot be set is only slower to notice, or is no TCP.
fn prepare(socket: &Socket, patience: Duration) {
    let _ = set_user_timeout(&SockRef::from(socket), patience);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(patience));
    #[cfg(target_vendor = "apple")]
    let _ = socket.set_nosigpipe(true);
}

#[cfg(not(target_vendor = "apple"))]
fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    socket.send_with_flags(bytes, libc::MSG_NOSIGNAL)
}

#[cfg(target_vendor = "apple")]
fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    socket.send(bytes)
}

/// Reads what is there, to the end of it: the poller tells of what comes after that.
fn is_read_to_end(socket: &Socket, unasked: &mut usize) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    loop {
        match socket.recv(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => {
                *unasked += length;
                if *unasked > UNASKED {
                    return true;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}
