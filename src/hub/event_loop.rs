//! The hub's thread: it alone writes to clients and lets them come and go.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::event::Event as Ready;
use mio::{Events, Poll, Token};

use super::connection::{Connection, Phase, Sent};
use super::transport::{Transport, Wire};
use super::wheel::Wheel;
use super::{Broadcast, Command, Event, Level, Question, Shared};
use crate::interrupt::{Interrupt, lock};

/// Of the poller: there are commands.
pub(super) const WAKE: Token = Token(0);

/// At the end, for frames that clients are slow to read.
const LAST_FRAMES: Duration = Duration::from_secs(1);
/// How often one looks whether the end is reached.
const LOOK: Duration = Duration::from_millis(5);
/// Broadcasts that may wait for the answer to one before them, and how long, in deadlines of a frame.
const MOST_HELD: usize = 1000;
const LONGEST_HELD: u32 = 6;
/// What the poller tells at once.
const EVENTS: usize = 1024;

pub(super) struct EventLoop {
    shared: Arc<Shared>,
    poller: Poll,
    /// All that the poller may tell of.
    connections: HashMap<Token, Arc<Connection>>,
    /// Those whose frames wait for room in their sockets.
    waiting: HashMap<Token, Arc<Connection>>,
    /// When the first of them may have waited too long.
    next_look: Option<Instant>,
    wheel: Wheel,
    /// Until when clients are not told that they are connected, since broadcasts could pass them by.
    deaf_until: Option<Instant>,
    /// Those clients.
    to_open: Vec<Arc<Connection>>,
    /// Streams whose broadcasts wait for an answer.
    held: HashMap<String, Held>,
    questions: u64,
    /// The statements about seats that are running, or were, and when each has had its time. Two run while readers
    /// change.
    statements: Vec<(Arc<Interrupt>, Instant)>,
}

/// Broadcasts of a stream, in order; the first is asked about.
struct Held {
    question: u64,
    until: Instant,
    broadcasts: VecDeque<Broadcast>,
}

impl EventLoop {
    pub(super) fn new(shared: Arc<Shared>, poller: Poll) -> EventLoop {
        EventLoop {
            wheel: Wheel::new(shared.settings.heartbeat),
            shared,
            poller,
            connections: HashMap::new(),
            waiting: HashMap::new(),
            next_look: None,
            deaf_until: None,
            to_open: Vec::new(),
            held: HashMap::new(),
            questions: 0,
            statements: Vec::new(),
        }
    }

    /// Works until the hub is shut down. Blocks the thread.
    pub(super) fn run(mut self) {
        let period = self.shared.settings.heartbeat / self.wheel.slots();
        let period = period.max(Duration::from_millis(1));
        let mut events = Events::with_capacity(EVENTS);
        let mut next_beat = Instant::now() + period;
        let deadline = loop {
            if let Some(deadline) = self.obey_all() {
                break deadline;
            }
            let now = Instant::now();
            if now >= next_beat {
                self.beat(now);
                // A process that was stopped does not make up for what it has missed.
                next_beat = (next_beat + period).max(now);
            }
            self.look(now);
            self.wait(&mut events, next_beat);
        };
        self.shut_down(&mut events, deadline);
    }

    /// Does what is asked; the deadline, if that is to end.
    fn obey_all(&mut self) -> Option<Instant> {
        let commands = std::mem::take(&mut *lock(&self.shared.commands));
        let mut deadline = None;
        for command in commands {
            deadline = self.obey(command).or(deadline);
        }
        deadline
    }

    /// Waits for clients and commands, until a time at most, and does what clients want.
    fn wait(&mut self, events: &mut Events, until: Instant) {
        let until = [self.next_look, self.deaf_until]
            .into_iter()
            .flatten()
            .chain(self.statements.iter().map(|(_, time)| *time))
            .chain(self.held.values().map(|held| held.until))
            .fold(until, Instant::min);
        let left = until.saturating_duration_since(Instant::now());
        // It fails when a signal has come; what there was is told again.
        if self.poller.poll(events, Some(left)).is_err() {
            return;
        }
        for event in &*events {
            self.attend(event);
        }
    }

    /// A client's socket has changed.
    fn attend(&mut self, event: &Ready) {
        let Some(connection) = self.connections.get(&event.token()).cloned() else {
            return;
        };
        if event.is_writable() {
            self.flush(&connection, Instant::now());
        }
        let read = event.is_readable() || event.is_read_closed() || event.is_error();
        if read && connection.is_over(event) {
            self.part(&connection, false);
        }
    }

    /// Cuts off who does not read, ends a statement that takes too long, and waits no longer to hear or for a filter.
    fn look(&mut self, now: Instant) {
        if self.deaf_until.is_some_and(|time| time <= now) {
            self.hear();
        }
        self.statements.retain(|(statement, time)| {
            let over = *time <= now;
            if over {
                statement.raise();
            }
            !over
        });
        let late = self.held.values().filter(|held| held.until <= now);
        for question in late.map(|held| held.question).collect::<Vec<_>>() {
            self.wait_no_longer(question);
        }
        if self.next_look.is_none_or(|time| time > now) {
            return;
        }
        let patience = self.shared.settings.write_deadline;
        let waiting: Vec<_> = self.waiting.values().cloned().collect();
        self.next_look = None;
        for connection in waiting {
            match connection.deadline(patience) {
                Some(deadline) if deadline <= now => self.part(&connection, true),
                Some(deadline) => self.look_at(deadline),
                None => {
                    self.waiting.remove(&connection.token);
                }
            }
        }
    }

    fn look_at(&mut self, time: Instant) {
        let first = self.next_look.map_or(time, |next| next.min(time));
        self.next_look = Some(first);
    }

    fn obey(&mut self, command: Command) -> Option<Instant> {
        match command {
            Command::Attach(connection, wire) => self.attach(&connection, wire),
            Command::Open(connections) => {
                for connection in connections {
                    self.open(&connection);
                }
            }
            Command::Broadcast(broadcast) => self.broadcast(broadcast),
            Command::Answer(question, connections) => self.answer(question, &connections),
            Command::Send(connection, frame) => self.deliver(&connection, &frame, Instant::now()),
            Command::Close(connection) => self.part(&connection, false),
            Command::Raise(interrupt, time) => {
                // Nobody else has those of statements that have ended.
                self.statements
                    .retain(|(statement, _)| Arc::strong_count(statement) > 1);
                self.statements.push((interrupt, time));
            }
            Command::WaitToHear(time) => self.deaf_until = Some(time),
            Command::Heard => self.hear(),
            Command::ShutDown(deadline) => return Some(deadline),
        }
        None
    }

    fn attach(&mut self, connection: &Arc<Connection>, wire: Wire) {
        let settings = &self.shared.settings;
        // What is written is acknowledged long before the next but one heartbeat.
        let patience = settings.heartbeat * 2 + settings.write_deadline;
        let poller = self.poller.registry();
        match Transport::new(wire, patience, poller, connection.token) {
            Ok(transport) => connection.attach(transport),
            Err(error) => {
                let text = format!("a connection could not be taken over: {error}");
                self.shared.log(Level::Warn, text);
                return self.part(connection, true);
            }
        }
        self.connections
            .insert(connection.token, Arc::clone(connection));
        match connection.member {
            Some(_) => self.shared.seats.join(Arc::clone(connection)),
            None => self.open(connection),
        }
    }

    fn hear(&mut self) {
        self.deaf_until = None;
        for connection in std::mem::take(&mut self.to_open) {
            self.open(&connection);
        }
    }

    /// The connection can be found, and then its client is told so.
    fn open(&mut self, connection: &Arc<Connection>) {
        if self.deaf_until.is_some() {
            return self.to_open.push(Arc::clone(connection));
        }
        let greeting = {
            let mut registry = lock(&self.shared.registry);
            let greeting = connection.open();
            if greeting.is_some() {
                registry.open(connection);
            }
            greeting
        };
        if let Some(greeting) = greeting {
            self.deliver(connection, &greeting, Instant::now());
            self.wheel.add(Arc::clone(connection));
        }
    }

    /// Writes a frame to a connection.
    fn deliver(&mut self, connection: &Arc<Connection>, frame: &Bytes, now: Instant) {
        let sent = connection.send(frame, now);
        if matches!(sent, Sent::Elsewhere) {
            let id = Arc::clone(&connection.id);
            return self.shared.events.push(Event::Write(id, frame.clone()));
        }
        self.follow(connection, &sent);
    }

    /// Writes what waits for a client.
    fn flush(&mut self, connection: &Arc<Connection>, now: Instant) {
        if self.waiting.contains_key(&connection.token) {
            let sent = connection.flush(now);
            if matches!(sent, Sent::Done) {
                self.waiting.remove(&connection.token);
            }
            self.follow(connection, &sent);
        }
    }

    fn follow(&mut self, connection: &Arc<Connection>, sent: &Sent) {
        match sent {
            Sent::Waits => {
                self.waiting
                    .insert(connection.token, Arc::clone(connection));
                if let Some(time) = connection.deadline(self.shared.settings.write_deadline) {
                    self.look_at(time);
                }
            }
            Sent::Lost => self.part(connection, true),
            Sent::Done | Sent::Elsewhere => {}
        }
    }

    /// A connection is at its end.
    fn part(&mut self, connection: &Arc<Connection>, at_once: bool) {
        if self.shared.finish(connection) {
            self.close(connection, at_once);
        }
    }

    fn close(&mut self, connection: &Arc<Connection>, at_once: bool) {
        self.connections.remove(&connection.token);
        self.waiting.remove(&connection.token);
        connection.close(at_once, self.poller.registry());
        let id = Arc::clone(&connection.id);
        self.shared.events.push(Event::Gone(id));
    }

    fn broadcast(&mut self, broadcast: Broadcast) {
        match self.held.get_mut(&broadcast.stream) {
            None => self.begin(broadcast),
            Some(held) if held.broadcasts.len() < MOST_HELD => held.broadcasts.push_back(broadcast),
            Some(held) => {
                let question = held.question;
                held.broadcasts.push_back(broadcast);
                self.wait_no_longer(question);
            }
        }
    }

    fn wait_no_longer(&mut self, question: u64) {
        let text = "a filter takes too long: nobody sees the broadcast that it is asked about";
        self.shared.log(Level::Warn, text.to_owned());
        self.answer(question, &[]);
    }

    /// Writes a broadcast, or asks about it.
    fn begin(&mut self, broadcast: Broadcast) {
        let mut connections = lock(&self.shared.registry).of_stream(&broadcast.stream);
        if !broadcast.exclude.is_empty() {
            connections.retain(|connection| {
                let id = &*connection.id;
                !broadcast.exclude.iter().any(|excluded| excluded == id)
            });
        }
        if connections.is_empty() {
            return;
        }
        let Some(filter) = broadcast.visible_to.clone() else {
            let now = Instant::now();
            for connection in connections {
                self.deliver(&connection, &broadcast.frame, now);
            }
            return;
        };
        self.questions += 1;
        self.shared.questions.push(Question {
            number: self.questions,
            filter,
            connections: connections
                .iter()
                .map(|connection| Arc::clone(&connection.id))
                .collect(),
        });
        let stream = broadcast.stream.clone();
        let held = Held {
            question: self.questions,
            until: Instant::now() + self.shared.settings.write_deadline * LONGEST_HELD,
            broadcasts: VecDeque::from([broadcast]),
        };
        self.held.insert(stream, held);
    }

    /// Writes what was asked about to those who may see it, and goes on with what waited behind it.
    fn answer(&mut self, question: u64, connections: &[String]) {
        let stream = self
            .held
            .iter()
            .find(|(_, held)| held.question == question)
            .map(|(stream, _)| stream.clone());
        let Some(mut held) = stream.and_then(|stream| self.held.remove(&stream)) else {
            return;
        };
        if let Some(first) = held.broadcasts.pop_front() {
            let visible: HashSet<&str> = connections.iter().map(String::as_str).collect();
            let all = lock(&self.shared.registry).of_stream(&first.stream);
            let now = Instant::now();
            for connection in all.iter().filter(|one| visible.contains(&*one.id)) {
                self.deliver(connection, &first.frame, now);
            }
        }
        while let Some(next) = held.broadcasts.pop_front() {
            let stream = next.stream.clone();
            self.begin(next);
            if let Some(asked) = self.held.get_mut(&stream) {
                asked.broadcasts.append(&mut held.broadcasts);
                return;
            }
        }
    }

    fn beat(&mut self, now: Instant) {
        let connections = self.wheel.turn();
        let frame = self.shared.settings.heartbeat_frame.clone();
        for connection in &connections {
            let idle = now.duration_since(connection.written());
            if idle > self.shared.settings.idle_timeout {
                self.part(connection, false);
            } else {
                self.deliver(connection, &frame, now);
            }
        }
        if self.wheel.turned(connections) {
            let all = lock(&self.shared.registry).all();
            self.shared.seats.beat(&all);
        }
    }

    fn shut_down(mut self, events: &mut Events, deadline: Instant) {
        let shared = Arc::clone(&self.shared);
        {
            // Whoever is admitted has given its command by then.
            let _registry = lock(&shared.registry);
            shared.closing.store(true, Ordering::SeqCst);
        }
        self.obey_all();
        let connections = lock(&shared.registry).all();
        let frame = shared.settings.shutdown_frame.clone();
        for connection in &connections {
            self.deliver(connection, &frame, Instant::now());
        }
        shared.seats.hold();
        for connection in &connections {
            shared.finish(connection);
        }
        shared.seats.only_leaves();
        let last_frames = Instant::now() + LAST_FRAMES;
        loop {
            let now = Instant::now();
            let written = now >= last_frames || self.waiting.is_empty();
            if now >= deadline || (written && shared.seats.is_idle()) {
                break;
            }
            self.look(now);
            self.wait(events, now + LOOK);
            self.obey_all();
        }
        shared.seats.close();
        for (statement, _) in &self.statements {
            statement.raise();
        }
        for connection in &connections {
            if connection.phase() == Phase::Gone {
                self.close(connection, self.waiting.contains_key(&connection.token));
            }
        }
    }
}
