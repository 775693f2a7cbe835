//! Calls on a database.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_postgres::{CancelToken, NoTls};

use crate::config::Config;
use crate::error::Error;
use crate::fork::PerProcess;
use crate::interrupt::{Interrupt, lock};
use crate::pool::{Connection, Driver, Lease, Pool, Refusal};
use crate::request::Request;
use crate::session::{Rows, Session};

/// A database as one process sees it. Usable from any thread; after a fork the child has a pool of its own,
/// made on its first call, and leaves the parent's connections alone.
pub struct Database {
    config: Arc<Config>,
    local: PerProcess<Local>,
}

/// What belongs to one process.
struct Local {
    pool: Arc<Pool>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    retries: AtomicU64,
    connects: AtomicU64,
}

/// Figures of one process's use of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections that a statement runs on now.
    pub busy: usize,
    /// Connections held in all.
    pub connections: usize,
    /// Calls begun.
    pub calls: u64,
    /// Statements run a second time because their connection broke.
    pub retries: u64,
    /// Connections made, first ones and replacements.
    pub connects: u64,
}

impl Database {
    /// A database that connects on its first call.
    pub fn new(config: Config) -> Database {
        Database {
            config: Arc::new(config),
            local: PerProcess::new(),
        }
    }

    /// Begins a call; nothing happens until it is run.
    pub fn call(&self, request: Request) -> Call {
        let local = self.local();
        local.counters.calls.fetch_add(1, Ordering::Relaxed);
        Call {
            config: Arc::clone(&self.config),
            pool: Arc::clone(&local.pool),
            counters: Arc::clone(&local.counters),
            deadline: Instant::now() + self.config.checkout_timeout,
            stage: Stage::Waiting(request),
        }
    }

    /// This process's figures.
    pub fn stats(&self) -> Stats {
        let Some(local) = self.local.get() else {
            return Stats::default();
        };
        let (busy, connections) = local.pool.usage();
        Stats {
            busy,
            connections,
            calls: local.counters.calls.load(Ordering::Relaxed),
            retries: local.counters.retries.load(Ordering::Relaxed),
            connects: local.counters.connects.load(Ordering::Relaxed),
        }
    }

    /// Closes this process's unused connections. Later calls connect again.
    pub fn close_idle(&self) {
        if let Some(local) = self.local.get() {
            local.pool.close_idle();
        }
    }

    fn local(&self) -> &Local {
        self.local.get_or_init(|| Local {
            pool: Arc::new(Pool::new(self.config.pool_size)),
            counters: Arc::default(),
        })
    }
}

/// One statement on its way. It is run on one thread at a time, which drives the connection itself.
pub struct Call {
    config: Arc<Config>,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    deadline: Instant,
    stage: Stage,
}

enum Stage {
    /// For a connection.
    Waiting(Request),
    /// For the server.
    Running(Box<Running>),
    /// The answer has been given, or the call given up.
    Over,
}

type Outcome = (Option<Session>, Result<Rows, Error>);

struct Running {
    // Dropped in this order: the future holds a session that lives on the driver, and a lease that is
    // dropped lets the next call in.
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    driver: Driver,
    cancel: Arc<Mutex<Option<CancelToken>>>,
    lease: Lease,
}

impl Call {
    /// Runs until the answer is there, or until the interrupt is raised: then it returns `None` and can be
    /// run again or [given up](Call::abandon). Blocks the thread.
    pub fn run(&mut self, interrupt: &Interrupt) -> Option<Result<Rows, Error>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Waiting(request) => match self.pool.lease(self.deadline, interrupt) {
                    Ok(lease) => match self.start(request, lease) {
                        Ok(running) => self.stage = Stage::Running(Box::new(running)),
                        Err(error) => return Some(Err(error)),
                    },
                    Err(Refusal::Interrupted) => {
                        self.stage = Stage::Waiting(request);
                        return None;
                    }
                    Err(Refusal::TimedOut) => return Some(Err(self.timed_out())),
                    Err(Refusal::Failed(error)) => return Some(Err(failed(&error))),
                },
                Stage::Running(mut running) => match running.drive(interrupt) {
                    Some(outcome) => return Some(running.finish(outcome)),
                    None => {
                        self.stage = Stage::Running(running);
                        return None;
                    }
                },
                Stage::Over => {
                    return Some(Err(Error::Protocol("the call is over".to_owned())));
                }
            }
        }
    }

    /// Gives the call up. Its statement is cancelled on the server by a thread of its own, so that this
    /// returns at once; the connection is closed, never reused, since the answer and the effect of the
    /// cancel request may still be on their way.
    pub fn abandon(self) {
        if let Stage::Running(running) = self.stage {
            let _ = thread::Builder::new()
                .name("pgbus cancel".to_owned())
                .spawn(move || running.cancel());
        }
    }

    fn start(&self, request: Request, mut lease: Lease) -> Result<Running, Error> {
        let Some(connection) = lease.take() else {
            return Err(Error::Protocol("a lease without a connection".to_owned()));
        };
        let cancel = Arc::default();
        let attempt = Attempt {
            config: Arc::clone(&self.config),
            counters: Arc::clone(&self.counters),
            cancel: Arc::clone(&cancel),
        };
        Ok(Running {
            future: Box::pin(attempt.perform(connection.session, request)),
            driver: connection.driver,
            cancel,
            lease,
        })
    }

    fn timed_out(&self) -> Error {
        let (busy, _) = self.pool.usage();
        Error::PoolTimeout(format!(
            "could not obtain one of the {} native connections within {} seconds ({busy} busy); raise \
             Pgbus::Native's pool_size or look for statements that wait for a lock",
            self.config.pool_size,
            self.config.checkout_timeout.as_secs_f64(),
        ))
    }
}

impl Running {
    /// Drives the connection until the outcome is there or the interrupt is raised.
    fn drive(&mut self, interrupt: &Interrupt) -> Option<Outcome> {
        let future = self.future.as_mut();
        self.driver.block_on(async {
            tokio::select! {
                biased;
                outcome = future => Some(outcome),
                () = interrupt.raised() => None,
            }
        })?
    }

    fn finish(mut self, (session, result): Outcome) -> Result<Rows, Error> {
        self.lease.restore(Connection {
            session,
            driver: self.driver,
        });
        result
    }

    fn cancel(mut self: Box<Self>) {
        /// For the cancel request, and again for the statement to end.
        const PATIENCE: Duration = Duration::from_secs(2);
        CANCELLING.fetch_add(1, Ordering::SeqCst);
        let token = lock(&self.cancel).clone();
        let future = self.future.as_mut();
        self.driver.block_on(async {
            if let Some(token) = token {
                let _ = timeout(PATIENCE, token.cancel_query(NoTls)).await;
                let _ = timeout(PATIENCE, future).await;
            }
        });
        CANCELLING.fetch_sub(1, Ordering::SeqCst);
    }
}

static CANCELLING: AtomicUsize = AtomicUsize::new(0);

/// Waits until the cancel requests under way are done, at most `patience`. For a process about to end.
pub fn finish_cancelling(patience: Duration) {
    let deadline = Instant::now() + patience;
    while CANCELLING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
}

/// What performing a request needs beside a connection.
struct Attempt {
    config: Arc<Config>,
    counters: Arc<Counters>,
    cancel: Arc<Mutex<Option<CancelToken>>>,
}

impl Attempt {
    /// Runs the statement on a live session. A session found dead beforehand is replaced; one that breaks
    /// under a repeatable statement is replaced once and the statement repeated.
    async fn perform(self, session: Option<Session>, request: Request) -> Outcome {
        let mut session = match session {
            Some(session) if session.is_alive().await => session,
            _ => match self.connect().await {
                Ok(session) => session,
                Err(error) => return (None, Err(error)),
            },
        };
        *lock(&self.cancel) = Some(session.cancel_token());
        match session.run(&request).await {
            Err(Error::Broken(_)) if request.statement.repeatable => {
                self.counters.retries.fetch_add(1, Ordering::Relaxed);
                match self.connect().await {
                    Ok(fresh) => session = fresh,
                    Err(error) => return (None, Err(error)),
                }
                *lock(&self.cancel) = Some(session.cancel_token());
                kept(session.run(&request).await, session)
            }
            result => kept(result, session),
        }
    }

    async fn connect(&self) -> Result<Session, Error> {
        self.counters.connects.fetch_add(1, Ordering::Relaxed);
        Session::open(&self.config).await
    }
}

/// Keeps the session unless the statement broke it.
fn kept(result: Result<Rows, Error>, session: Session) -> Outcome {
    match result {
        Err(Error::Broken(_)) => (None, result),
        _ => (Some(session), result),
    }
}

fn failed(error: &std::io::Error) -> Error {
    Error::Connect {
        message: format!("no connection could be prepared: {error}"),
        code: None,
    }
}
