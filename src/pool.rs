//! The connections of one database in one process.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::error::Error;
use crate::interrupt::{Interrupt, lock};
use crate::request::{Key, Request};
use crate::session::{Rows, Session};

/// A session and what drives it. Whoever holds both may block on the driver; nobody else touches them
/// meanwhile.
pub(crate) struct Connection {
    /// `None` until it is connected, and after it was lost.
    pub(crate) session: Option<Session>,
    // After the session, which must be dropped first.
    pub(crate) driver: Driver,
}

impl Connection {
    fn unconnected() -> io::Result<Connection> {
        Ok(Connection {
            session: None,
            driver: Driver::new()?,
        })
    }
}

/// A runtime of its own for each connection, driven by the thread that uses the connection.
pub(crate) struct Driver(Option<Runtime>);

impl Driver {
    fn new() -> io::Result<Driver> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Driver(Some(runtime)))
    }

    /// Drives the runtime on this thread until the future is done; `None` only while being dropped.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        self.0.as_ref().map(|runtime| runtime.block_on(future))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // A plain drop would wait for a name look-up that is still under way.
            runtime.shutdown_background();
        }
    }
}

/// Hands out at most `size` connections, first come, first served. While all are busy, calls queue up; the one
/// whose turn it is takes along those that can be run in one statement with its own.
pub(crate) struct Pool {
    size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Connected and unused, the last used at the end.
    idle: Vec<Connection>,
    /// How many are lent out.
    lent: usize,
    /// Calls that wait, in order.
    waiting: VecDeque<Arc<Ticket>>,
}

/// The right to one of the pool's connections, and the connection if there was an idle one.
struct Grant(Option<Connection>);

/// A call in the queue.
pub(crate) struct Ticket {
    request: Request,
    key: Option<Key>,
    place: Mutex<Place>,
    /// Waits for the place to change.
    thread: Mutex<Option<Thread>>,
}

enum Place {
    Queued,
    /// It is this call's turn.
    Granted(Grant),
    /// Another call runs it along.
    TakenAlong(Arc<Company>),
    /// It has been run along.
    Served(Result<Rows, Error>),
    /// Nobody waits for it any more.
    Left,
}

/// How many callers still wait for a statement that is run for several.
#[derive(Debug)]
pub(crate) struct Company {
    members: AtomicUsize,
    deserted: Notify,
}

impl Company {
    fn new(members: usize) -> Arc<Company> {
        Arc::new(Company {
            members: AtomicUsize::new(members),
            deserted: Notify::new(),
        })
    }

    pub(crate) fn leave(&self) {
        if self.members.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.deserted.notify_one();
        }
    }

    /// Resolves once everybody has left.
    pub(crate) async fn deserted(&self) {
        while self.members.load(Ordering::SeqCst) > 0 {
            self.deserted.notified().await;
        }
    }
}

/// What a call gets for its request.
pub(crate) enum Turn {
    /// A connection to run it on.
    Run(Request, Lease),
    /// A place in the queue.
    Queue(Arc<Ticket>),
}

/// How waiting ends.
pub(crate) enum Waited {
    /// It is the call's turn, on this connection, together with the calls that go along.
    Run(Lease, Party),
    /// The call has been run along with another.
    Served(Result<Rows, Error>),
    /// The interrupt was raised; the call keeps its place.
    Interrupted,
    /// The deadline passed; the place is given up.
    TimedOut,
}

/// Calls that one of them runs for all. Those that get no answer from it are told so when it is dropped.
pub(crate) struct Party {
    others: VecDeque<Arc<Ticket>>,
    pub(crate) company: Arc<Company>,
}

/// A connection lent by a pool, which gets it back when this is dropped.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    connection: Option<Connection>,
}

/// So that one statement stays within reason, for the server and for those who wait for it.
const LARGEST_PARTY: usize = 500;

impl Pool {
    pub(crate) fn new(size: usize) -> Pool {
        Pool {
            size: size.max(1),
            state: Mutex::new(State::default()),
        }
    }

    /// How many connections are lent out, how many there are in all, and how many calls wait.
    pub(crate) fn usage(&self) -> (usize, usize, usize) {
        let state = lock(&self.state);
        let connections = state.lent + state.idle.len();
        (state.lent, connections, state.waiting.len())
    }

    /// Closes the connections that are not in use.
    pub(crate) fn close_idle(&self) {
        let idle = std::mem::take(&mut lock(&self.state).idle);
        drop(idle);
    }

    /// Takes a connection, or a place in the queue if all are busy or others wait already.
    pub(crate) fn enter(self: &Arc<Pool>, request: Request) -> Turn {
        let mut state = lock(&self.state);
        if state.waiting.is_empty() && state.lent < self.size {
            state.lent += 1;
            let grant = Grant(state.idle.pop());
            return Turn::Run(request, self.lend(grant));
        }
        let ticket = Arc::new(Ticket {
            key: request.key(),
            request,
            place: Mutex::new(Place::Queued),
            thread: Mutex::new(None),
        });
        state.waiting.push_back(Arc::clone(&ticket));
        Turn::Queue(ticket)
    }

    /// Waits for the ticket's turn.
    pub(crate) fn wait(
        self: &Arc<Pool>,
        ticket: &Arc<Ticket>,
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> Waited {
        interrupt.park_here();
        *lock(&ticket.thread) = Some(thread::current());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let taken_along = match ticket.look() {
                Look::Granted(grant) => {
                    let lease = self.lend(grant);
                    return Waited::Run(lease, self.gather(ticket));
                }
                Look::Served(result) => return Waited::Served(result),
                Look::TakenAlong => true,
                Look::Queued => false,
            };
            if interrupt.is_raised() {
                return Waited::Interrupted;
            }
            // Whoever is taken along is being served, however long it takes.
            if taken_along {
                thread::park();
            } else if !left.is_zero() {
                thread::park_timeout(left);
            } else if self.withdraw(ticket) {
                return Waited::TimedOut;
            }
        }
    }

    /// Takes a ticket out of the queue; false if it is there no more.
    fn withdraw(&self, ticket: &Arc<Ticket>) -> bool {
        let mut state = lock(&self.state);
        let before = state.waiting.len();
        state.waiting.retain(|other| !Arc::ptr_eq(other, ticket));
        state.waiting.len() < before
    }

    /// Gives up a ticket wherever it is.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket>) {
        if self.withdraw(ticket) {
            return;
        }
        let place = std::mem::replace(&mut *lock(&ticket.place), Place::Left);
        match place {
            Place::Granted(grant) => pass_on(&mut lock(&self.state), grant),
            Place::TakenAlong(company) => company.leave(),
            Place::Queued | Place::Served(_) | Place::Left => {}
        }
    }

    /// Takes along the waiting calls that can be run in one statement with the ticket's. Of calls on the same
    /// row only the first goes; none overtakes an earlier one on its row.
    fn gather(&self, ticket: &Ticket) -> Party {
        let mut others = VecDeque::new();
        let company = Company::new(1);
        let Some(key) = &ticket.key else {
            return Party { others, company };
        };
        let mut state = lock(&self.state);
        let mut rows = HashSet::from([key.clone()]);
        let mut staying = VecDeque::with_capacity(state.waiting.len());
        for other in state.waiting.drain(..) {
            let free = other
                .key
                .as_ref()
                .is_some_and(|key| rows.insert(key.clone()));
            if free
                && std::ptr::eq(other.request.statement, ticket.request.statement)
                && others.len() + 1 < LARGEST_PARTY
            {
                company.members.fetch_add(1, Ordering::SeqCst);
                *lock(&other.place) = Place::TakenAlong(Arc::clone(&company));
                others.push_back(other);
            } else {
                staying.push_back(other);
            }
        }
        state.waiting = staying;
        Party { others, company }
    }

    fn lend(self: &Arc<Pool>, grant: Grant) -> Lease {
        Lease {
            pool: Arc::clone(self),
            connection: grant.0,
        }
    }
}

enum Look {
    Queued,
    TakenAlong,
    Granted(Grant),
    Served(Result<Rows, Error>),
}

impl Ticket {
    pub(crate) fn request(&self) -> Request {
        self.request.clone()
    }

    fn look(&self) -> Look {
        let mut place = lock(&self.place);
        match &*place {
            Place::Queued | Place::Left => return Look::Queued,
            Place::TakenAlong(_) => return Look::TakenAlong,
            Place::Granted(_) | Place::Served(_) => {}
        }
        match std::mem::replace(&mut *place, Place::Left) {
            Place::Granted(grant) => Look::Granted(grant),
            Place::Served(result) => Look::Served(result),
            Place::Queued | Place::TakenAlong(_) | Place::Left => Look::Queued,
        }
    }

    fn serve(&self, result: Result<Rows, Error>) {
        let mut place = lock(&self.place);
        if matches!(*place, Place::TakenAlong(_)) {
            *place = Place::Served(result);
        }
        drop(place);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = lock(&self.thread).as_ref() {
            thread.unpark();
        }
    }
}

impl Party {
    /// Nobody but the call itself.
    pub(crate) fn alone() -> Party {
        Party {
            others: VecDeque::new(),
            company: Company::new(1),
        }
    }

    /// What the others want, in order.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> + '_ {
        self.others.iter().map(|ticket| ticket.request())
    }

    /// Hands the others their answers, in the same order.
    pub(crate) fn serve(&mut self, results: impl Iterator<Item = Result<Rows, Error>>) {
        for result in results {
            if let Some(ticket) = self.others.pop_front() {
                ticket.serve(result);
            }
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        for ticket in &self.others {
            ticket.serve(Err(Error::Broken(
                "the call that this one was run along with did not end\n".to_owned(),
            )));
        }
    }
}

/// Gives a right to the next call in line, or puts the connection away.
fn pass_on(state: &mut State, mut grant: Grant) {
    if let Some(ticket) = state.waiting.pop_front() {
        if grant.0.is_none() {
            grant.0 = state.idle.pop();
        }
        *lock(&ticket.place) = Place::Granted(grant);
        ticket.wake();
        return;
    }
    state.lent -= 1;
    state.idle.extend(grant.0);
}

impl Lease {
    /// Takes the connection out, to be driven; the right to it stays with the lease. The connection is not
    /// connected yet if the pool had no idle one.
    ///
    /// # Errors
    ///
    /// If the operating system has no more descriptors or the like.
    pub(crate) fn take(&mut self) -> io::Result<Connection> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => Connection::unconnected(),
        }
    }

    /// Puts the connection back in, to be given back with the lease. One without a session is not kept.
    pub(crate) fn restore(&mut self, connection: Connection) {
        if connection.session.is_some() {
            self.connection = Some(connection);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let grant = Grant(self.connection.take());
        pass_on(&mut lock(&self.pool.state), grant);
    }
}
