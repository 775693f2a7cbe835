//! The hub's thread: it alone writes to clients and lets them come and go.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Interval, interval_at, sleep, sleep_until};

use super::connection::{Connection, Phase};
use super::listen::listen;
use super::transport::{Transport, Wire};
use super::wheel::Wheel;
use super::{Broadcast, Command, Event, Level, Question, Shared};
use crate::interrupt::{Interrupt, lock};

/// At the end, for frames that clients are slow to read.
const LAST_FRAMES: Duration = Duration::from_secs(1);
/// How often one looks whether the end is reached.
const LOOK: Duration = Duration::from_millis(5);
/// Broadcasts that may wait for the answer to one before them.
const MOST_HELD: usize = 1000;
/// Commands that are obeyed before the clock is looked at.
const COMMANDS: usize = 256;

pub(super) struct EventLoop {
    shared: Arc<Shared>,
    wheel: Wheel,
    /// Streams whose broadcasts wait for an answer.
    held: HashMap<String, Held>,
    questions: u64,
    /// Of the statement about seats that is running, or was.
    statement: Option<Arc<Interrupt>>,
}

/// Broadcasts of a stream, in order; the first is asked about.
struct Held {
    question: u64,
    broadcasts: VecDeque<Broadcast>,
}

impl EventLoop {
    pub(super) fn new(shared: Arc<Shared>) -> EventLoop {
        EventLoop {
            wheel: Wheel::new(shared.settings.heartbeat),
            shared,
            held: HashMap::new(),
            questions: 0,
            statement: None,
        }
    }

    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        let mut ticks = self.ticks();
        let mut received = Vec::new();
        let deadline = loop {
            tokio::select! {
                count = commands.recv_many(&mut received, COMMANDS) => {
                    let mut end = None;
                    for command in received.drain(..) {
                        end = self.obey(command).or(end);
                    }
                    if let Some(end) = end {
                        break end;
                    }
                    // Nobody is left who could say anything.
                    if count == 0 {
                        break Instant::now();
                    }
                }
                _ = ticks.tick() => self.beat(),
            }
        };
        self.shut_down(commands, deadline).await;
    }

    fn ticks(&self) -> Interval {
        let period = self.shared.settings.heartbeat / self.wheel.slots();
        let period = period.max(Duration::from_millis(1));
        interval_at(tokio::time::Instant::now() + period, period)
    }

    /// Does what is asked; the deadline, if that is to end.
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
            Command::Send(connection, frame) => {
                self.shared.deliver(&connection, &frame, Instant::now());
            }
            Command::Close(connection) => self.shared.part(&connection, false),
            Command::Raise(interrupt, deadline) => {
                self.statement = Some(Arc::clone(&interrupt));
                tokio::spawn(async move {
                    sleep_until(deadline.into()).await;
                    interrupt.raise();
                });
            }
            Command::Listen(database) => {
                tokio::spawn(listen(Arc::clone(&self.shared), database.config()));
            }
            Command::ShutDown(deadline) => return Some(deadline),
        }
        None
    }

    fn attach(&mut self, connection: &Arc<Connection>, wire: Wire) {
        let settings = &self.shared.settings;
        // What is written is acknowledged long before the next but one heartbeat.
        let patience = settings.heartbeat * 2 + settings.write_deadline;
        let transport = match Transport::new(wire, patience) {
            Ok(transport) => Arc::new(transport),
            Err(error) => {
                let text = format!("a connection could not be taken over: {error}");
                self.shared.log(Level::Warn, text);
                return self.shared.part(connection, true);
            }
        };
        let watch = {
            let (shared, connection, transport) = (
                Arc::clone(&self.shared),
                Arc::clone(connection),
                Arc::clone(&transport),
            );
            tokio::spawn(async move {
                transport.gone().await;
                shared.part(&connection, false);
            })
        };
        connection.attach(transport, watch.abort_handle());
        match connection.member {
            Some(_) => self.shared.seats.join(Arc::clone(connection)),
            None => self.open(connection),
        }
    }

    /// The connection can be found, and then its client is told so.
    fn open(&mut self, connection: &Arc<Connection>) {
        let greeting = {
            let mut registry = lock(&self.shared.registry);
            let greeting = connection.open();
            if greeting.is_some() {
                registry.open(connection);
            }
            greeting
        };
        if let Some(greeting) = greeting {
            self.shared.deliver(connection, &greeting, Instant::now());
            self.wheel.add(Arc::clone(connection));
        }
    }

    fn broadcast(&mut self, broadcast: Broadcast) {
        match self.held.get_mut(&broadcast.stream) {
            None => self.begin(broadcast),
            Some(held) if held.broadcasts.len() < MOST_HELD => held.broadcasts.push_back(broadcast),
            Some(held) => {
                let question = held.question;
                held.broadcasts.push_back(broadcast);
                let text =
                    "a filter takes too long: nobody sees the broadcast that it is asked about";
                self.shared.log(Level::Warn, text.to_owned());
                self.answer(question, &[]);
            }
        }
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
                self.shared.deliver(&connection, &broadcast.frame, now);
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
        let held = Held {
            question: self.questions,
            broadcasts: VecDeque::from([broadcast]),
        };
        if let Some(stream) = held.broadcasts.front().map(|first| first.stream.clone()) {
            self.held.insert(stream, held);
        }
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
                self.shared.deliver(connection, &first.frame, now);
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

    fn beat(&mut self) {
        let (shared, now) = (&self.shared, Instant::now());
        let last = self.wheel.turn(|connection| {
            if now.duration_since(connection.written()) > shared.settings.idle_timeout {
                shared.part(connection, false);
            } else {
                shared.deliver(connection, &shared.heartbeat_frame, now);
            }
        });
        if last {
            let all = lock(&shared.registry).all();
            shared.seats.beat(&all);
        }
    }

    async fn shut_down(mut self, mut commands: UnboundedReceiver<Command>, deadline: Instant) {
        let shared = Arc::clone(&self.shared);
        {
            // Whoever is admitted has sent its command by then.
            let _registry = lock(&shared.registry);
            shared.closing.store(true, Ordering::SeqCst);
        }
        while let Ok(command) = commands.try_recv() {
            self.obey(command);
        }
        let connections = lock(&shared.registry).all();
        let frame = shared.settings.shutdown_frame.clone().into();
        for connection in &connections {
            shared.deliver(connection, &frame, Instant::now());
        }
        shared.seats.hold();
        for connection in &connections {
            shared.finish(connection);
        }
        shared.seats.only_leaves();
        let last_frames = Instant::now() + LAST_FRAMES;
        loop {
            let now = Instant::now();
            let read = now >= last_frames || !connections.iter().any(|one| one.waits());
            if now >= deadline || (read && shared.seats.is_idle()) {
                break;
            }
            tokio::select! {
                command = commands.recv() => {
                    command.map(|command| self.obey(command));
                }
                () = sleep(LOOK) => {}
            }
        }
        if let Some(statement) = &self.statement {
            statement.raise();
        }
        for connection in &connections {
            let waits = connection.waits();
            connection.close(waits);
            if connection.phase() == Phase::Gone {
                shared.events.push(Event::Gone(Arc::clone(&connection.id)));
            }
        }
    }
}
