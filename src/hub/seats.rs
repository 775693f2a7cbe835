//! The seats of this process's connections: which statements are to be run for them, and what comes of those.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};

use super::connection::{Connection, Phase, Seat};
use crate::interrupt::{Interrupt, lock};
use crate::request::{Param, Request};
use crate::statements::{self, Statement};

/// Rows for each statement.
const MOST_ROWS: usize = 1000;
/// Leaves that are tried again, while clients come and go and no server answers. The others' seats expire.
const MOST_AGAIN: usize = 10_000;

/// What is to be done with seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// They come, or come back.
    Join,
    /// They go.
    Leave,
    /// They are alive.
    Touch,
}

/// One statement's worth of it.
#[derive(Debug)]
pub struct Work {
    task: Task,
    connections: Vec<Arc<Connection>>,
}

/// What came of it for one seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The row is, or was, there.
    Found,
    /// There was no such row.
    Missing,
    /// Nothing is known of it, and why. It is tried again.
    Failed(String),
    /// The server does not take what this seat holds, and why. It is not tried again.
    Refused(String),
}

/// What follows from it.
#[derive(Debug, Default)]
pub(crate) struct Consequences {
    /// They have a seat, or will get none for now: they can be opened.
    pub(crate) settled: Vec<Arc<Connection>>,
    pub(crate) joined: Vec<Arc<Connection>>,
    pub(crate) left: Vec<Arc<Connection>>,
    /// Which ones the server does not take, and why.
    pub(crate) refused: Vec<(Arc<Connection>, String)>,
    /// For the log: a first failure, or the end of failures.
    pub(crate) news: Option<SeatNews>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SeatNews {
    Failing(String),
    Back,
}

/// What the reader of the queue is told.
#[derive(Debug)]
pub(crate) enum Next {
    Work(Work),
    /// All seats have been touched: it is time for those that have not been.
    Expire,
    Interrupted,
    /// There is nothing more to come, or another reader has taken over.
    Over,
}

/// The queue, with one reader at a time.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    joins: VecDeque<Arc<Connection>>,
    leaves: VecDeque<Arc<Connection>>,
    touches: VecDeque<Arc<Connection>>,
    /// Leaves that failed, for the next beat.
    failed_leaves: Vec<Arc<Connection>>,
    expire: bool,
    held: bool,
    leaving: bool,
    /// Whose turn it is, so that a crowd of one kind does not keep out another.
    turn: usize,
    /// How many statements are under way. There are two while readers change.
    running: usize,
    failing: bool,
    closed: bool,
    reader: Option<Thread>,
    /// How often readers have changed.
    readers: u64,
}

impl Seats {
    pub(crate) fn join(&self, connection: Arc<Connection>) {
        self.add(|state| state.joins.push_back(connection));
    }

    pub(crate) fn leave(&self, connection: Arc<Connection>) {
        self.add(|state| state.leaves.push_back(connection));
    }

    /// A heartbeat of all connections.
    pub(crate) fn beat(&self, connections: &[Arc<Connection>]) {
        self.add(|state| {
            // A server that is slow has the last beat's touches before it still.
            let touch = state.touches.is_empty();
            for connection in connections {
                match connection.seat() {
                    Seat::Held if touch => state.touches.push_back(Arc::clone(connection)),
                    // One that is about to be opened has its turn at the next beat.
                    Seat::Unknown if connection.phase() == Phase::Open => {
                        connection.change_seat(Seat::Unknown, Seat::Wanted);
                        state.joins.push_back(Arc::clone(connection));
                    }
                    _ => {}
                }
            }
            let mut again = std::mem::take(&mut state.failed_leaves);
            again.truncate(MOST_AGAIN);
            state.leaves.extend(again);
            state.expire = true;
        });
    }

    /// Nothing is done any more, whatever waits: there is nobody left who would end a statement that takes too long.
    pub(crate) fn close(&self) {
        self.add(|state| state.closed = true);
    }

    /// Gives out no work until [`Seats::only_leaves`].
    pub(crate) fn hold(&self) {
        self.add(|state| state.held = true);
    }

    /// Nobody comes or stays any more, and all that leave do so in one statement.
    pub(crate) fn only_leaves(&self) {
        self.add(|state| {
            state.held = false;
            state.leaving = true;
            let again = std::mem::take(&mut state.failed_leaves);
            state.leaves.extend(again);
            state.touches.clear();
            state.joins.clear();
            state.expire = false;
        });
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.0);
        state.running == 0 && state.joins.is_empty() && state.leaves.is_empty()
    }

    /// Makes the calling thread, or the next one, the reader; whoever was before is told that it is over.
    pub(crate) fn take_over(&self) -> u64 {
        let mut state = lock(&self.0);
        state.readers += 1;
        state.wake();
        state.readers
    }

    /// What is to be done next, by the reader with this number. Blocks the thread.
    pub(crate) fn next(&self, reader: u64, interrupt: &Interrupt) -> Next {
        interrupt.park_here();
        loop {
            {
                let mut state = lock(&self.0);
                if state.closed || state.readers != reader {
                    return Next::Over;
                }
                state.reader = Some(thread::current());
                if let Some(work) = state.take() {
                    state.running += 1;
                    return Next::Work(work);
                }
                if state.expire && state.touches.is_empty() {
                    state.expire = false;
                    return Next::Expire;
                }
            }
            if interrupt.is_raised() {
                return Next::Interrupted;
            }
            thread::park();
        }
    }

    /// Puts work back that its reader cannot do.
    pub(crate) fn put_back(&self, work: Work) {
        self.add(|state| {
            state.running -= 1;
            let queue = state.queue(work.task);
            for connection in work.connections.into_iter().rev() {
                queue.push_front(connection);
            }
        });
    }

    /// Takes note of what came of work, an outcome for each of its connections. It is under way until [`Seats::rest`].
    pub(crate) fn done(&self, work: Work, outcomes: Vec<Outcome>) -> Consequences {
        let mut consequences = Consequences::default();
        let mut failure = None;
        let mut worked = false;
        let mut again = Vec::new();
        let mut leaves = Vec::new();
        let mut failed_leaves = Vec::new();
        for (connection, outcome) in work.connections.into_iter().zip(outcomes) {
            match (work.task, outcome) {
                (task, Outcome::Failed(reason)) => {
                    failure.get_or_insert(reason);
                    match task {
                        Task::Join => {
                            let phase = connection.change_seat(Seat::Wanted, Seat::Unknown);
                            if phase == Some(Phase::Gone) {
                                leaves.push(Arc::clone(&connection));
                            }
                            consequences.settled.push(connection);
                        }
                        Task::Leave => failed_leaves.push(connection),
                        Task::Touch => {}
                    }
                }
                (task, Outcome::Refused(reason)) => {
                    worked = true;
                    if task == Task::Join {
                        connection.change_seat(Seat::Wanted, Seat::Refused);
                        consequences.settled.push(Arc::clone(&connection));
                    }
                    consequences.refused.push((connection, reason));
                }
                (Task::Join, _) => {
                    worked = true;
                    let phase = connection.change_seat(Seat::Wanted, Seat::Held);
                    consequences.joined.push(Arc::clone(&connection));
                    if phase == Some(Phase::Gone) {
                        leaves.push(Arc::clone(&connection));
                    }
                    consequences.settled.push(connection);
                }
                (Task::Leave, outcome) => {
                    worked = true;
                    connection.change_seat(Seat::Held, Seat::None);
                    connection.change_seat(Seat::Unknown, Seat::None);
                    if outcome == Outcome::Found {
                        consequences.left.push(connection);
                    }
                }
                (Task::Touch, Outcome::Missing) => {
                    worked = true;
                    again.push(connection);
                }
                (Task::Touch, _) => worked = true,
            }
        }
        self.add(|state| {
            for connection in again {
                if let Some(Phase::Open) = connection.change_seat(Seat::Held, Seat::Wanted) {
                    state.joins.push_back(connection);
                }
            }
            state.leaves.extend(leaves);
            state.failed_leaves.extend(failed_leaves);
            consequences.news = match failure {
                Some(reason) if !state.failing => {
                    state.failing = true;
                    Some(SeatNews::Failing(reason))
                }
                None if worked && state.failing => {
                    state.failing = false;
                    Some(SeatNews::Back)
                }
                _ => None,
            };
        });
        consequences
    }

    /// What follows from work has been seen to, too.
    pub(crate) fn rest(&self) {
        self.add(|state| state.running -= 1);
    }

    fn add(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.0);
        change(&mut state);
        state.wake();
    }
}

impl State {
    fn wake(&self) {
        if let Some(reader) = &self.reader {
            reader.unpark();
        }
    }

    fn queue(&mut self, task: Task) -> &mut VecDeque<Arc<Connection>> {
        match task {
            Task::Join => &mut self.joins,
            Task::Leave => &mut self.leaves,
            Task::Touch => &mut self.touches,
        }
    }

    fn take(&mut self) -> Option<Work> {
        if self.held {
            return None;
        }
        let most = if self.leaving { usize::MAX } else { MOST_ROWS };
        const TASKS: [Task; 3] = [Task::Join, Task::Leave, Task::Touch];
        for _ in TASKS {
            let task = TASKS[self.turn % TASKS.len()];
            self.turn += 1;
            let queue = self.queue(task);
            let mut connections = Vec::new();
            while connections.len() < most {
                let Some(connection) = queue.pop_front() else {
                    break;
                };
                if still_wanted(task, &connection) {
                    connections.push(connection);
                }
            }
            if !connections.is_empty() {
                return Some(Work { task, connections });
            }
        }
        None
    }
}

/// A client that has gone before its seat was joined needs none, and one without a seat is not touched.
fn still_wanted(task: Task, connection: &Connection) -> bool {
    match task {
        Task::Join => connection.phase() != Phase::Gone,
        Task::Leave => true,
        Task::Touch => connection.phase() == Phase::Open && connection.seat() == Seat::Held,
    }
}

impl Work {
    /// What is to be done.
    pub(crate) fn task(&self) -> Task {
        self.task
    }

    /// How many seats it is about.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether it is about none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// The ids of the connections whose seats they are.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.connections.iter().map(|connection| &*connection.id)
    }

    /// What does it for each seat.
    pub fn requests(&self) -> Vec<Request> {
        self.connections
            .iter()
            .map(|connection| {
                let params = self.task.params(connection).into_iter();
                Request {
                    statement: self.task.statement(),
                    params: params
                        .map(|param| param.map_or(Param::Null, Param::from))
                        .collect(),
                }
            })
            .collect()
    }

    /// What does it for all of them.
    pub fn request(&self) -> Option<Request> {
        self.task.request(&self.connections)
    }

    pub(crate) fn connections(&self) -> &[Arc<Connection>] {
        &self.connections
    }
}

impl Task {
    /// What does it for one seat.
    fn statement(self) -> &'static Statement {
        match self {
            Task::Join => &statements::JOIN_SEAT,
            Task::Leave => &statements::LEAVE_SEAT,
            Task::Touch => &statements::TOUCH_SEAT,
        }
    }

    fn params(self, connection: &Connection) -> Vec<Option<&str>> {
        let mut params = vec![Some(&*connection.stream)];
        if let (Task::Join, Some(member)) = (self, &connection.member) {
            params.push(Some(&member.id));
            params.push(Some(&member.metadata));
        }
        params.push(Some(&connection.id));
        if let (Task::Join, Some(member)) = (self, &connection.member) {
            params.push(member.seat.as_deref());
        }
        params
    }

    /// What does it for these seats; `None` if there are none.
    pub(crate) fn request(self, connections: &[Arc<Connection>]) -> Option<Request> {
        let first = self.params(connections.first()?);
        let mut columns = vec![Vec::with_capacity(connections.len()); first.len()];
        for connection in connections {
            let params = self.params(connection);
            for (column, param) in columns.iter_mut().zip(params) {
                column.push(param.map(|text| text.as_bytes().to_vec()));
            }
        }
        Some(Request {
            statement: self.statement().batch.as_ref()?.statement,
            params: columns.into_iter().map(Param::Array).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use mio::Token;

    use super::super::connection::Member;
    use super::*;

    fn connection(id: &str) -> Arc<Connection> {
        let member = Member {
            id: "7".into(),
            metadata: "{}".into(),
            seat: None,
        };
        let connection =
            Connection::new(id.into(), "room".into(), Some(member), Vec::new(), Token(0));
        Arc::new(connection)
    }

    fn work(seats: &Seats, task: Task, count: usize) -> Work {
        let interrupt = Interrupt::new();
        interrupt.raise();
        match seats.next(0, &interrupt) {
            Next::Work(work) => {
                assert_eq!((work.task(), work.len()), (task, count));
                work
            }
            other => panic!("{other:?}"),
        }
    }

    fn nothing(seats: &Seats) {
        let interrupt = Interrupt::new();
        interrupt.raise();
        let next = seats.next(0, &interrupt);
        assert!(matches!(next, Next::Interrupted), "{next:?}");
    }

    fn joined(seats: &Seats) -> Arc<Connection> {
        let connection = connection("a");
        seats.join(Arc::clone(&connection));
        let consequences = seats.done(work(seats, Task::Join, 1), vec![Outcome::Found]);
        assert_eq!(consequences.settled.len(), 1);
        assert!(connection.open().is_some());
        connection
    }

    #[test]
    fn a_crowd_is_joined_in_few_statements() {
        let seats = Seats::default();
        for number in 0..1500 {
            seats.join(connection(&number.to_string()));
        }
        work(&seats, Task::Join, 1000);
        work(&seats, Task::Join, 500);
        nothing(&seats);
    }

    #[test]
    fn who_has_gone_before_the_join_needs_no_seat() {
        let seats = Seats::default();
        let gone = connection("a");
        seats.join(Arc::clone(&gone));
        assert_eq!(gone.end(), Some(Seat::Wanted));
        nothing(&seats);
    }

    #[test]
    fn who_goes_during_the_join_leaves_after_it() {
        let seats = Seats::default();
        let gone = connection("a");
        seats.join(Arc::clone(&gone));
        let join = work(&seats, Task::Join, 1);
        assert_eq!(gone.end(), Some(Seat::Wanted));
        assert_eq!(seats.done(join, vec![Outcome::Found]).joined.len(), 1);
        let leave = work(&seats, Task::Leave, 1);
        assert_eq!(seats.done(leave, vec![Outcome::Found]).left.len(), 1);
    }

    #[test]
    fn who_goes_during_a_join_of_unknown_outcome_leaves_all_the_same() {
        let seats = Seats::default();
        let gone = connection("a");
        seats.join(Arc::clone(&gone));
        let join = work(&seats, Task::Join, 1);
        gone.end();
        seats.done(join, vec![Outcome::Failed("no answer".into())]);
        let leave = work(&seats, Task::Leave, 1);
        assert_eq!(seats.done(leave, vec![Outcome::Found]).left.len(), 1);
    }

    #[test]
    fn a_lost_seat_is_joined_again() {
        let seats = Seats::default();
        let connection = joined(&seats);
        seats.beat(&[Arc::clone(&connection)]);
        seats.done(work(&seats, Task::Touch, 1), vec![Outcome::Missing]);
        seats.done(work(&seats, Task::Join, 1), vec![Outcome::Found]);
        assert_eq!(connection.seat(), Seat::Held);
    }

    #[test]
    fn a_failed_join_is_tried_again_at_the_next_beat_and_told_of_once() {
        let seats = Seats::default();
        let connection = connection("a");
        seats.join(Arc::clone(&connection));
        let failed = || vec![Outcome::Failed("no table".into())];
        let consequences = seats.done(work(&seats, Task::Join, 1), failed());
        assert_eq!(consequences.settled.len(), 1);
        assert_eq!(
            consequences.news,
            Some(SeatNews::Failing("no table".into()))
        );
        nothing(&seats);
        connection.open();
        seats.beat(&[Arc::clone(&connection)]);
        let consequences = seats.done(work(&seats, Task::Join, 1), failed());
        assert_eq!(consequences.news, None);
        seats.beat(&[Arc::clone(&connection)]);
        let join = work(&seats, Task::Join, 1);
        let consequences = seats.done(join, vec![Outcome::Found]);
        assert_eq!(consequences.news, Some(SeatNews::Back));
    }

    #[test]
    fn what_the_server_refuses_is_not_tried_again() {
        let seats = Seats::default();
        let connection = connection("a");
        seats.join(Arc::clone(&connection));
        let refused = vec![Outcome::Refused("no such member".into())];
        let consequences = seats.done(work(&seats, Task::Join, 1), refused);
        assert_eq!(consequences.settled.len(), 1);
        assert_eq!(consequences.refused[0].1, "no such member");
        assert_eq!(consequences.news, None);
        connection.open();
        seats.beat(&[connection]);
        assert!(matches!(seats.next(0, &Interrupt::new()), Next::Expire));
        nothing(&seats);
    }

    #[test]
    fn a_failed_leave_is_tried_again_at_the_next_beat() {
        let seats = Seats::default();
        let connection = joined(&seats);
        assert_eq!(connection.end(), Some(Seat::Held));
        seats.leave(Arc::clone(&connection));
        let failed = vec![Outcome::Failed("no server".into())];
        seats.done(work(&seats, Task::Leave, 1), failed);
        nothing(&seats);
        seats.beat(&[]);
        work(&seats, Task::Leave, 1);
    }

    #[test]
    fn a_beat_between_a_failed_join_and_the_opening_costs_no_seat() {
        let seats = Seats::default();
        let connection = connection("a");
        seats.join(Arc::clone(&connection));
        let failed = vec![Outcome::Failed("no server".into())];
        seats.done(work(&seats, Task::Join, 1), failed);
        seats.beat(&[Arc::clone(&connection)]);
        connection.open();
        seats.beat(&[connection]);
        work(&seats, Task::Join, 1);
    }

    #[test]
    fn a_failed_leave_is_tried_again_at_the_end() {
        let seats = Seats::default();
        let connection = joined(&seats);
        connection.end();
        seats.leave(connection);
        let failed = vec![Outcome::Failed("no server".into())];
        seats.done(work(&seats, Task::Leave, 1), failed);
        seats.only_leaves();
        work(&seats, Task::Leave, 1);
    }

    #[test]
    fn work_is_under_way_until_its_consequences_are_seen_to() {
        let seats = Seats::default();
        seats.join(connection("a"));
        let join = work(&seats, Task::Join, 1);
        seats.done(join, vec![Outcome::Found]);
        assert!(!seats.is_idle());
        seats.rest();
        assert!(seats.is_idle());
    }

    #[test]
    fn seats_expire_after_all_have_been_touched() {
        let seats = Seats::default();
        let connection = joined(&seats);
        seats.beat(&[connection]);
        seats.done(work(&seats, Task::Touch, 1), vec![Outcome::Found]);
        let next = seats.next(0, &Interrupt::new());
        assert!(matches!(next, Next::Expire), "{next:?}");
        nothing(&seats);
    }

    #[test]
    fn whoever_was_the_reader_before_is_told() {
        let seats = Seats::default();
        seats.join(connection("a"));
        let reader = seats.take_over();
        assert!(matches!(seats.next(0, &Interrupt::new()), Next::Over));
        assert!(matches!(
            seats.next(reader, &Interrupt::new()),
            Next::Work(_)
        ));
    }
}
