//! The connections of one database in one process.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use crate::interrupt::{Interrupt, lock};
use crate::session::Session;

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

/// Hands out at most `size` connections, first come, first served.
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
    /// Threads that wait, in order.
    waiting: VecDeque<Arc<Waiter>>,
}

/// A thread that waits for a connection.
struct Waiter {
    thread: thread::Thread,
    granted: Mutex<Option<Grant>>,
}

/// The right to one of the pool's connections, and the connection if there was an idle one.
struct Grant(Option<Connection>);

/// Why there is no connection.
pub(crate) enum Refusal {
    /// The interrupt was raised.
    Interrupted,
    /// The deadline passed.
    TimedOut,
    /// The operating system has no more descriptors or the like.
    Failed(io::Error),
}

/// A connection lent by a pool, which gets it back when this is dropped.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    connection: Option<Connection>,
}

impl Pool {
    pub(crate) fn new(size: usize) -> Pool {
        Pool {
            size: size.max(1),
            state: Mutex::new(State::default()),
        }
    }

    /// How many connections there are: lent out, and in all.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.lent, state.lent + state.idle.len())
    }

    /// Closes the connections that are not in use.
    pub(crate) fn close_idle(&self) {
        let idle = std::mem::take(&mut lock(&self.state).idle);
        drop(idle);
    }

    /// Takes a connection, waiting for one until the deadline.
    pub(crate) fn lease(
        self: &Arc<Pool>,
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> Result<Lease, Refusal> {
        let grant = match self.take_or_queue() {
            Ok(grant) => grant,
            Err(waiter) => self.wait(&waiter, deadline, interrupt)?,
        };
        let mut lease = Lease {
            pool: Arc::clone(self),
            connection: grant.0,
        };
        if lease.connection.is_none() {
            // An error drops the lease, which gives the right back.
            lease.connection = Some(Connection::unconnected().map_err(Refusal::Failed)?);
        }
        Ok(lease)
    }

    fn take_or_queue(&self) -> Result<Grant, Arc<Waiter>> {
        let mut state = lock(&self.state);
        // Nobody overtakes a thread that waits already.
        if state.waiting.is_empty() && state.lent < self.size {
            state.lent += 1;
            return Ok(Grant(state.idle.pop()));
        }
        let waiter = Arc::new(Waiter {
            thread: thread::current(),
            granted: Mutex::new(None),
        });
        state.waiting.push_back(Arc::clone(&waiter));
        Err(waiter)
    }

    fn wait(
        &self,
        waiter: &Arc<Waiter>,
        deadline: Instant,
        interrupt: &Interrupt,
    ) -> Result<Grant, Refusal> {
        interrupt.park_here();
        let refusal = loop {
            if let Some(grant) = lock(&waiter.granted).take() {
                return Ok(grant);
            }
            if interrupt.is_raised() {
                break Refusal::Interrupted;
            }
            match deadline.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => break Refusal::TimedOut,
            }
        };
        let mut state = lock(&self.state);
        state.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
        // A grant may have come after the last look.
        let granted = lock(&waiter.granted).take();
        match (granted, refusal) {
            (Some(grant), Refusal::TimedOut) => Ok(grant),
            (Some(grant), refusal) => {
                pass_on(&mut state, grant);
                Err(refusal)
            }
            (None, refusal) => Err(refusal),
        }
    }

    fn give_back(&self, connection: Option<Connection>) {
        pass_on(&mut lock(&self.state), Grant(connection));
    }
}

/// Gives a right to the next thread in line, or puts the connection away.
fn pass_on(state: &mut State, mut grant: Grant) {
    if let Some(waiter) = state.waiting.pop_front() {
        if grant.0.is_none() {
            grant.0 = state.idle.pop();
        }
        *lock(&waiter.granted) = Some(grant);
        waiter.thread.unpark();
        return;
    }
    state.lent -= 1;
    state.idle.extend(grant.0);
}

impl Lease {
    /// Takes the connection out, to be driven; the right to it stays with the lease.
    pub(crate) fn take(&mut self) -> Option<Connection> {
        self.connection.take()
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
        self.pool.give_back(self.connection.take());
    }
}
