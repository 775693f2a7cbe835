//! One client: what it gets, and how far it has come.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use mio::event::Event;
use mio::{Registry, Token};

use super::transport::{Transport, Wire};
use crate::interrupt::lock;

/// The bytes that may wait behind the frame being written. A client that lets more come together is cut off, whatever
/// its deadline.
const MOST_QUEUED: usize = 1024 * 1024;

/// A client that has just come.
#[derive(Debug)]
pub struct Arrival {
    /// Names the connection, and its seat.
    pub id: String,
    /// The stream that it reads.
    pub stream: String,
    /// Who is on its seat; `None` on a stream without presence.
    pub member: Option<Member>,
    /// The frame that tells the client that it is connected.
    pub greeting: Vec<u8>,
    /// Its socket.
    pub wire: Wire,
}

/// Who is on a seat, in the parameters of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// `member_id`
    pub id: String,
    /// JSON text
    pub metadata: String,
    /// The client's own id of its tab.
    pub seat: Option<String>,
}

/// A client of this process.
#[derive(Debug)]
pub struct Connection {
    /// Names the connection, and its seat.
    pub id: Arc<str>,
    /// The stream that it reads.
    pub stream: Arc<str>,
    /// Who is on its seat.
    pub member: Option<Member>,
    /// Where it stands among those of its stream, for the registry.
    pub(crate) place: AtomicUsize,
    /// Names it for the poller.
    pub(crate) token: Token,
    life: Mutex<Life>,
}

#[derive(Debug)]
struct Life {
    phase: Phase,
    seat: Seat,
    /// `None` before it is attached and after it is closed.
    transport: Option<Transport>,
    /// For the moment in which it can be found.
    greeting: Bytes,
    outbox: Outbox,
    written: Instant,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not in the registry yet: its seat is being joined.
    Arriving,
    Open,
    Gone,
}

/// What is known of a connection's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seat {
    /// There is none.
    None,
    /// A join has failed, and nobody knows whether its row is there all the same.
    Unknown,
    /// A join is to be run, or is running.
    Wanted,
    Held,
    /// The server does not take it, whenever it is asked.
    Refused,
}

/// Frames that the socket had no room for.
#[derive(Debug, Default)]
struct Outbox {
    frames: VecDeque<Bytes>,
    /// Bytes of all but the first.
    behind: usize,
    /// Since when the first of them is being written.
    since: Option<Instant>,
}

/// What became of a frame.
#[derive(Debug)]
pub(crate) enum Sent {
    /// It is written, or there is nobody to get it, or it waits behind others.
    Done,
    /// The socket is full, and the first frame waits for it.
    Waits,
    /// Somebody else has to write it.
    Elsewhere,
    /// The client does not read, or has gone.
    Lost,
}

impl Connection {
    pub(crate) fn new(
        id: String,
        stream: String,
        member: Option<Member>,
        greeting: Vec<u8>,
        token: Token,
    ) -> Connection {
        let seat = match member {
            Some(_) => Seat::Wanted,
            None => Seat::None,
        };
        Connection {
            id: id.into(),
            stream: stream.into(),
            member,
            place: AtomicUsize::new(0),
            token,
            life: Mutex::new(Life {
                phase: Phase::Arriving,
                seat,
                transport: None,
                greeting: greeting.into(),
                outbox: Outbox::default(),
                written: Instant::now(),
            }),
        }
    }

    /// Gives it its transport.
    pub(crate) fn attach(&self, transport: Transport) {
        lock(&self.life).transport = Some(transport);
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.life).phase
    }

    /// It can be found from now on: the frame that tells the client so, unless it has gone.
    pub(crate) fn open(&self) -> Option<Bytes> {
        let mut life = lock(&self.life);
        if life.phase != Phase::Arriving {
            return None;
        }
        life.phase = Phase::Open;
        Some(std::mem::take(&mut life.greeting))
    }

    /// It is at its end: what it had of a seat, the first time.
    pub(crate) fn end(&self) -> Option<Seat> {
        let mut life = lock(&self.life);
        if life.phase == Phase::Gone {
            return None;
        }
        life.phase = Phase::Gone;
        Some(life.seat)
    }

    /// Closes the socket. `at_once` throws away what waits.
    pub(crate) fn close(&self, at_once: bool, poller: &Registry) {
        let mut life = lock(&self.life);
        life.outbox = Outbox::default();
        if let Some(transport) = life.transport.take() {
            transport.close(at_once, poller);
        }
    }

    /// Lets go of the socket where no poller knows it any more.
    pub(crate) fn abandon(&self) {
        lock(&self.life).transport = None;
    }

    /// Whether its client has gone, after an event.
    pub(crate) fn is_over(&self, event: &Event) -> bool {
        let mut life = lock(&self.life);
        let transport = life.transport.as_mut();
        transport.is_some_and(|transport| transport.is_over(event))
    }

    pub(crate) fn seat(&self) -> Seat {
        lock(&self.life).seat
    }

    /// Changes what is known of its seat, if it is `from`; with its phase at that moment.
    pub(crate) fn change_seat(&self, from: Seat, to: Seat) -> Option<Phase> {
        let mut life = lock(&self.life);
        if life.seat != from {
            return None;
        }
        life.seat = to;
        Some(life.phase)
    }

    /// When something was written for it the last time.
    pub(crate) fn written(&self) -> Instant {
        lock(&self.life).written
    }

    /// Writes a frame, behind those that wait.
    pub(crate) fn send(&self, frame: &Bytes, now: Instant) -> Sent {
        let life = &mut *lock(&self.life);
        let Some(transport) = &life.transport else {
            return Sent::Done;
        };
        if !transport.is_plain() {
            life.written = now;
            return Sent::Elsewhere;
        }
        if life.outbox.since.is_some() {
            return life.outbox.push(frame);
        }
        // Mostly there is room for all of it. What keeps it from being written is met again by `flush`.
        let length = transport.write(frame).unwrap_or(0);
        if length == frame.len() {
            life.written = now;
            return Sent::Done;
        }
        life.outbox.push(&frame.slice(length..));
        life.flush(now)
    }

    /// Writes what waits, as far as the socket takes it.
    pub(crate) fn flush(&self, now: Instant) -> Sent {
        lock(&self.life).flush(now)
    }

    /// When the frame that is being written has had its time.
    pub(crate) fn deadline(&self, patience: Duration) -> Option<Instant> {
        lock(&self.life).outbox.since.map(|since| since + patience)
    }
}

impl Life {
    fn flush(&mut self, now: Instant) -> Sent {
        let Some(transport) = &self.transport else {
            return Sent::Done;
        };
        while let Some(frame) = self.outbox.frames.front_mut() {
            match transport.write(frame) {
                Ok(length) => {
                    self.written = now;
                    frame.advance(length);
                    if frame.is_empty() {
                        self.outbox.next();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.outbox.since.get_or_insert(now);
                    return Sent::Waits;
                }
                Err(_) => return Sent::Lost,
            }
        }
        Sent::Done
    }
}

impl Outbox {
    /// Puts a frame behind the others, unless there are too many.
    fn push(&mut self, frame: &Bytes) -> Sent {
        if self.behind > MOST_QUEUED {
            return Sent::Lost;
        }
        if !self.frames.is_empty() {
            self.behind += frame.len();
        }
        self.frames.push_back(frame.clone());
        Sent::Done
    }

    /// The first is written. The next one has a time of its own.
    fn next(&mut self) {
        self.frames.pop_front();
        self.behind -= self.frames.front().map_or(0, Bytes::len);
        self.since = None;
    }
}
