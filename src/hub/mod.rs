//! The connections of a streamer: what keeps them, writes to them and looks after their seats, on a thread of its own.
//!
//! A client takes one way through it: an [`Arrival`] is admitted; if it has a seat, that is joined, in one statement
//! with those who came meanwhile; then the client can be found and gets its greeting. From then on it gets broadcasts
//! and heartbeats, until it closes its end, does not read, or is closed; then its seat leaves.
//!
//! What only the application can do comes out as [`Event`]s.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Poll, Token, Waker};
use tokio::sync::Notify;

use crate::database::Database;
use crate::fork;
use crate::interrupt::{Interrupt, lock};

mod connection;
mod event_loop;
mod inbox;
pub(crate) mod inheritance;
mod keeper;
mod listen;
mod message;
mod registry;
mod seats;
mod transport;
mod wheel;

pub use connection::{Arrival, Connection, Member};
pub use seats::{Outcome, Work};
pub use transport::Wire;

use connection::{Phase, Seat};
use event_loop::{EventLoop, WAKE};
use inbox::Inbox;
use registry::Registry;
use seats::{Next, SeatNews, Seats};

/// The first clients wait so long for a connection on which broadcasts of other processes are heard.
const HEARING: Duration = Duration::from_secs(1);

/// How a hub works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between two heartbeats of a connection.
    pub heartbeat: Duration,
    /// What a heartbeat writes.
    pub heartbeat_frame: Bytes,
    /// What is written at the end.
    pub shutdown_frame: Bytes,
    /// For a frame to be written.
    pub write_deadline: Duration,
    /// A connection for which nothing could be written for so long is closed.
    pub idle_timeout: Duration,
}

/// A frame for all connections of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broadcast {
    /// The stream.
    pub stream: String,
    /// The whole frame, in UTF-8.
    pub frame: Bytes,
    /// Ids of connections that are not to get it.
    pub exclude: Vec<String>,
    /// The name of a filter: each connection is asked about.
    pub visible_to: Option<String>,
}

/// What the application is told, or has to do at once.
#[derive(Debug)]
pub enum Event {
    /// A connection has come to its end.
    Gone(Arc<str>),
    /// A frame for a connection that is written elsewhere.
    Write(Arc<str>, Bytes),
    /// The native client cannot serve the database: the application has to [take the seats' work](Hub::next_work).
    TakeSeats,
    /// A line for the log.
    Log(Level, String),
}

/// What is to be reported, in order.
#[derive(Debug)]
pub enum Change {
    /// A seat has come.
    Joined(Arc<Connection>),
    /// A seat has gone.
    Left(Arc<Connection>),
    /// Seats that nobody has touched are to be expired.
    Expire,
}

/// Which of these may see a broadcast? Until [`Hub::answer`] those behind it on the stream wait.
#[derive(Debug)]
pub struct Question {
    /// Names it.
    pub number: u64,
    /// The name of the filter.
    pub filter: String,
    /// The ids of connections.
    pub connections: Vec<Arc<str>>,
}

/// Of a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Of interest.
    Info,
    /// Something does not work.
    Warn,
}

/// What is asked of the hub's thread.
enum Command {
    Attach(Arc<Connection>, Wire),
    Open(Vec<Arc<Connection>>),
    Broadcast(Broadcast),
    Answer(u64, Vec<String>),
    Send(Arc<Connection>, Bytes),
    Close(Arc<Connection>),
    Raise(Arc<Interrupt>, Instant),
    /// Nobody is told that he is connected before what others broadcast is heard, or a time has come.
    WaitToHear(Instant),
    /// It is heard, or will not be for now.
    Heard,
    ShutDown(Instant),
}

/// The connections of one process. All of it may be used from any thread; in a forked child, which has none of the
/// threads, everything is refused and nothing of the parent's is touched.
pub struct Hub(Arc<Shared>);

struct Shared {
    /// This hub among all that tell each other of broadcasts.
    name: String,
    generation: u64,
    settings: Settings,
    registry: Mutex<Registry>,
    /// No new ones are admitted.
    closing: AtomicBool,
    commands: Mutex<Vec<Command>>,
    /// Wakes the hub's thread.
    waker: Waker,
    /// The next connection's name for the poller.
    tokens: AtomicUsize,
    events: Inbox<Event>,
    changes: Inbox<Change>,
    questions: Inbox<Question>,
    seats: Seats,
    broadcasts: AtomicU64,
    over: Inbox<()>,
    /// For the thread that listens.
    ended: Notify,
}

/// The hub is shut down, or is that of the process that this one was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

impl Hub {
    /// A hub at work.
    ///
    /// # Errors
    ///
    /// If the system has no thread or descriptor left.
    pub fn start(settings: Settings) -> io::Result<Hub> {
        let poller = Poll::new()?;
        let shared = Arc::new(Shared {
            name: random_name(),
            generation: fork::generation(),
            settings,
            registry: Mutex::default(),
            closing: AtomicBool::new(false),
            commands: Mutex::default(),
            waker: Waker::new(poller.registry(), WAKE)?,
            tokens: AtomicUsize::new(WAKE.0 + 1),
            events: Inbox::new(),
            changes: Inbox::new(),
            questions: Inbox::new(),
            seats: Seats::default(),
            broadcasts: AtomicU64::new(0),
            over: Inbox::new(),
            ended: Notify::new(),
        });
        let own = Arc::clone(&shared);
        thread::Builder::new()
            .name("pgbus hub".to_owned())
            .spawn(move || {
                // Whatever ends this thread, those who wait for it are told.
                let end = End(Arc::clone(&own));
                EventLoop::new(own, poller).run();
                drop(end);
            })?;
        Ok(Hub(shared))
    }

    /// Has the seats looked after on native connections to this database, by a thread of the hub's own. Otherwise, and
    /// after [`Event::TakeSeats`], somebody has to do [`Hub::next_work`].
    ///
    /// # Errors
    ///
    /// If the system has no thread left.
    pub fn keep_seats(&self, database: Arc<Database>) -> io::Result<()> {
        let Some(shared) = self.own().cloned() else {
            return Ok(());
        };
        let reader = shared.seats.take_over();
        thread::Builder::new()
            .name("pgbus seats".to_owned())
            .spawn(move || keeper::keep_seats(&shared, reader, &database))
            .map(drop)
    }

    /// Hears what other processes broadcast, by way of this database, on a thread of its own. For one call.
    ///
    /// # Errors
    ///
    /// If the system has no thread left.
    pub fn listen(&self, database: &Database) -> io::Result<()> {
        let (shared, config) = (Arc::clone(&self.0), database.config());
        shared.command(Command::WaitToHear(Instant::now() + HEARING));
        thread::Builder::new()
            .name("pgbus listen".to_owned())
            .spawn(move || listen::listen(&shared, &config))
            .map(drop)
    }

    /// Takes a client in.
    ///
    /// # Errors
    ///
    /// [`Closed`], or its id is that of another one. Its socket is closed then.
    pub fn register(&self, arrival: Arrival) -> Result<(), Closed> {
        let shared = self.of_this_process()?;
        let connection = Arc::new(Connection::new(
            arrival.id,
            arrival.stream,
            arrival.member,
            arrival.greeting,
            Token(shared.tokens.fetch_add(1, Ordering::Relaxed)),
        ));
        {
            // Under the lock: whoever closes the hub sees all that were admitted before.
            let mut registry = lock(&shared.registry);
            if shared.closing.load(Ordering::SeqCst) || !registry.admit(&connection) {
                return Err(Closed);
            }
            shared.command(Command::Attach(connection, arrival.wire));
        }
        Ok(())
    }

    /// How many connections there are, those that are only arriving among them.
    pub fn len(&self) -> usize {
        self.own().map_or(0, |shared| lock(&shared.registry).len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the connection has arrived: its seat is joined.
    pub fn is_open(&self, id: &str) -> bool {
        self.own().is_some_and(|shared| {
            let registry = lock(&shared.registry);
            let found = registry.find(id);
            found.is_some_and(|connection| connection.phase() == Phase::Open)
        })
    }

    /// The ids of those that have arrived, of one stream or of all.
    pub fn open_ids(&self, stream: Option<&str>) -> Vec<Arc<str>> {
        let Some(shared) = self.own() else {
            return Vec::new();
        };
        let registry = lock(&shared.registry);
        match stream {
            Some(stream) => registry
                .of_stream(stream)
                .iter()
                .map(|connection| Arc::clone(&connection.id))
                .collect(),
            None => registry
                .open_ones()
                .map(|connection| Arc::clone(&connection.id))
                .collect(),
        }
    }

    /// Whether it is shut down, or that of the process that this one was forked from.
    pub fn is_closed(&self) -> bool {
        self.of_this_process().is_err()
    }

    /// Writes a frame to this process's connections of a stream, after those that were broadcast before.
    ///
    /// # Errors
    ///
    /// [`Closed`]
    pub fn broadcast(&self, broadcast: Broadcast) -> Result<(), Closed> {
        self.of_this_process()?.broadcast(broadcast);
        Ok(())
    }

    /// What is to be sent by NOTIFY, so that the other processes broadcast it, too.
    pub fn message(&self, broadcast: &Broadcast) -> Vec<String> {
        let number = self.0.broadcasts.fetch_add(1, Ordering::Relaxed);
        message::parts(&self.0.name, number, broadcast)
    }

    /// Who may see what was [asked](Question) about.
    pub fn answer(&self, question: u64, connections: Vec<String>) {
        if let Some(shared) = self.own() {
            shared.command(Command::Answer(question, connections));
        }
    }

    /// Writes a frame to one connection; false if there is no such connection.
    pub fn send(&self, id: &str, frame: Vec<u8>) -> bool {
        self.with_connection(id, |connection| {
            Command::Send(connection, Bytes::from(frame))
        })
    }

    /// Closes one connection; its seat leaves.
    pub fn close(&self, id: &str) -> bool {
        self.with_connection(id, Command::Close)
    }

    fn with_connection(&self, id: &str, command: impl FnOnce(Arc<Connection>) -> Command) -> bool {
        let Some(shared) = self.own() else {
            return false;
        };
        let connection = lock(&shared.registry).find(id).cloned();
        match connection {
            Some(connection) => {
                shared.command(command(connection));
                true
            }
            None => false,
        }
    }

    /// What has happened since one last asked, as soon as something has; nothing if the interrupt was raised, `None`
    /// after the end. For one thread; blocks it.
    pub fn next_events(&self, interrupt: &Interrupt) -> Option<Vec<Event>> {
        self.own()?.events.read(interrupt)
    }

    /// What is to be reported, likewise.
    pub fn next_changes(&self, interrupt: &Interrupt) -> Option<Vec<Change>> {
        self.own()?.changes.read(interrupt)
    }

    /// What is asked, likewise.
    pub fn next_questions(&self, interrupt: &Interrupt) -> Option<Vec<Question>> {
        self.own()?.questions.read(interrupt)
    }

    /// Makes the caller of [`Hub::next_work`] with this number the one who looks after the seats, in place of the hub's
    /// own thread.
    pub fn take_seats(&self) -> u64 {
        self.own().map_or(0, |shared| shared.seats.take_over())
    }

    /// Work for the seats, as soon as there is some. For one thread; blocks it. `None` at the end, or if another has
    /// taken the seats; `Some(None)` if the interrupt was raised.
    pub fn next_work(&self, reader: u64, interrupt: &Interrupt) -> Option<Option<Work>> {
        let shared = self.own()?;
        loop {
            match shared.seats.next(reader, interrupt) {
                Next::Work(work) => return Some(Some(work)),
                Next::Expire => shared.changes.push(Change::Expire),
                Next::Interrupted => return Some(None),
                Next::Over => return None,
            }
        }
    }

    /// What came of it, an outcome for each seat.
    pub fn work_done(&self, work: Work, outcomes: Vec<Outcome>) {
        if let Some(shared) = self.own() {
            shared.work_done(work, outcomes);
        }
    }

    /// Tells all clients that it is over, lets their seats leave and closes everything, within `patience`. Blocks until
    /// that is done; false if the interrupt was raised before.
    pub fn shut_down(&self, patience: Duration, interrupt: &Interrupt) -> bool {
        let Some(shared) = self.own() else {
            return true;
        };
        shared.command(Command::ShutDown(Instant::now() + patience));
        shared.over.read(interrupt).is_none()
    }

    fn own(&self) -> Option<&Arc<Shared>> {
        (self.0.generation == fork::generation()).then_some(&self.0)
    }

    fn of_this_process(&self) -> Result<&Arc<Shared>, Closed> {
        match self.own() {
            Some(shared) if !shared.closing.load(Ordering::SeqCst) => Ok(shared),
            _ => Err(Closed),
        }
    }
}

struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let shared = &self.0;
        shared.closing.store(true, Ordering::SeqCst);
        // After a panic there are some.
        for connection in lock(&shared.registry).all() {
            connection.abandon();
        }
        shared.seats.close();
        shared.events.close();
        shared.changes.close();
        shared.questions.close();
        shared.over.close();
        shared.ended.notify_one();
    }
}

impl Shared {
    fn command(&self, command: Command) {
        let mut commands = lock(&self.commands);
        commands.push(command);
        // Whoever put the first there has woken it. It can fail only when the hub's thread has ended.
        if commands.len() == 1 {
            let _ = self.waker.wake();
        }
    }

    fn log(&self, level: Level, text: String) {
        self.events.push(Event::Log(level, text));
    }

    fn broadcast(&self, broadcast: Broadcast) {
        self.command(Command::Broadcast(broadcast));
    }

    fn work_done(&self, work: Work, outcomes: Vec<Outcome>) {
        let consequences = self.seats.done(work, outcomes);
        let joined = consequences.joined.into_iter().map(Change::Joined);
        self.changes
            .push_all(joined.chain(consequences.left.into_iter().map(Change::Left)));
        if !consequences.settled.is_empty() {
            self.command(Command::Open(consequences.settled));
        }
        for (connection, reason) in consequences.refused {
            let reason = reason.trim_end();
            let text = format!("no seat for connection {}: {reason}", connection.id);
            self.log(Level::Warn, text);
        }
        match consequences.news {
            Some(SeatNews::Failing(reason)) => {
                let text = format!("seats cannot be kept at the moment: {}", reason.trim_end());
                self.log(Level::Warn, text);
            }
            Some(SeatNews::Back) => self.log(Level::Info, "seats are kept again".to_owned()),
            None => {}
        }
        // Not before: the end of the hub waits for this, and takes no reports after it.
        self.seats.rest();
    }

    /// A connection cannot be found any more, and its seat leaves; false if that was so already. What waits for its
    /// client is still written.
    fn finish(&self, connection: &Arc<Connection>) -> bool {
        let Some(seat) = connection.end() else {
            return false;
        };
        lock(&self.registry).remove(connection);
        if matches!(seat, Seat::Held | Seat::Unknown) {
            self.seats.leave(Arc::clone(connection));
        }
        true
    }
}

fn random_name() -> String {
    let mut hasher = RandomState::new().build_hasher();
    // A forked child goes on with its parent's keys, and so does the next one.
    hasher.write_u32(std::process::id());
    format!("{:016x}", hasher.finish())
}
