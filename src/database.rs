//! Calls on a database.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::task::yield_now;
use tokio::time::timeout;

use crate::config::Config;
use crate::connect::Canceller;
use crate::error::Error;
use crate::fork::PerProcess;
use crate::interrupt::{Interrupt, lock};
use crate::outage::{News, Outages};
use crate::pool::{Connection, Driver, Lease, Party, Pool, Ticket, Turn, Waited};
use crate::record;
use crate::request::Request;
use crate::session::{Arrivals, Arrived, Manner, Rows, Session};

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
    outages: Arc<Outages>,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    retries: AtomicU64,
    connects: AtomicU64,
    batched: AtomicU64,
}

/// Figures of one process's use of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections that a statement runs on now.
    pub busy: usize,
    /// Connections held in all.
    pub connections: usize,
    /// Calls that wait for a connection.
    pub waiting: usize,
    /// Calls answered or given up, but for those that only another client can make ([`Error::Unsupported`]).
    pub calls: u64,
    /// Statements run a second time because their connection broke.
    pub retries: u64,
    /// Connections made, first ones and replacements.
    pub connects: u64,
    /// Calls that were run along in another one's statement.
    pub batched: u64,
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
        Call {
            config: Arc::clone(&self.config),
            pool: Arc::clone(&local.pool),
            counters: Arc::clone(&local.counters),
            outages: Arc::clone(&local.outages),
            deadline: Instant::now() + self.config.checkout_timeout,
            arrivals: None,
            stage: Stage::New(request),
        }
    }

    /// How it connects.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }

    /// This process's figures.
    pub fn stats(&self) -> Stats {
        let Some(local) = self.local.get() else {
            return Stats::default();
        };
        let (busy, connections, waiting) = local.pool.usage();
        Stats {
            busy,
            connections,
            waiting,
            calls: local.counters.calls.load(Ordering::Relaxed),
            retries: local.counters.retries.load(Ordering::Relaxed),
            connects: local.counters.connects.load(Ordering::Relaxed),
            batched: local.counters.batched.load(Ordering::Relaxed),
        }
    }

    /// Whether there is something for the log. Cheap enough to ask after each call.
    pub fn has_news(&self) -> bool {
        self.local
            .get()
            .is_some_and(|local| local.outages.has_news())
    }

    /// Takes what there is for the log, the oldest first; each is given to one caller.
    pub fn take_news(&self) -> Vec<News> {
        self.local
            .get()
            .map(|local| local.outages.take_news())
            .unwrap_or_default()
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
            outages: Arc::new(Outages::new()),
        })
    }
}

/// One statement on its way. It is run on one thread at a time, which drives the connection itself.
pub struct Call {
    config: Arc<Config>,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    outages: Arc<Outages>,
    deadline: Instant,
    arrivals: Option<Arc<Arrivals>>,
    stage: Stage,
}

/// How far a call has come.
#[derive(Debug)]
pub enum Progress {
    /// It has its answer.
    Answered(Result<Rows, Error>),
    /// Enough rows are there to be [taken](Call::take_rows).
    Rows,
    /// The interrupt was raised, or the time is over. The call can go on or be dropped.
    Paused,
}

enum Stage {
    /// Not run yet.
    New(Request),
    /// In line for a connection.
    Queued(Arc<Ticket>),
    /// The server works.
    Running(Box<Running>),
    /// The answer has been given.
    Over,
}

/// For a cancel request whose caller has left, and again for its statement to end. No caller waits for this.
const FOR_CANCELLING: Duration = Duration::from_secs(2);
/// For a new session in place of a broken one, while a caller waits for the news that his statement's fate is unknown.
const FOR_REPLACING: Duration = Duration::from_secs(2);

type Outcome = (Option<Session>, Vec<Result<Rows, Error>>);

struct Running {
    // Dropped in this order: the future holds a session that lives on the driver, and a lease that is
    // dropped lets the next call in.
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    driver: Driver,
    cancel: Arc<Mutex<Option<Canceller>>>,
    party: Party,
    lease: Lease,
}

impl Call {
    /// The same call, whose rows are not in its answer but to be taken while it runs.
    pub fn streaming(mut self) -> Call {
        self.arrivals = Some(Arc::default());
        self
    }

    /// The rows of a streaming call that have come in since they were last taken.
    pub fn take_rows(&self) -> Arrived {
        self.arrivals
            .as_ref()
            .map(|arrivals| arrivals.take())
            .unwrap_or_default()
    }

    /// Runs until the answer is there, or until the interrupt is raised: then it returns `None` and can be
    /// run again or dropped. Blocks the thread.
    pub fn run(&mut self, interrupt: &Interrupt) -> Option<Result<Rows, Error>> {
        match self.advance(interrupt, usize::MAX) {
            Progress::Answered(answer) => Some(answer),
            Progress::Rows | Progress::Paused => None,
        }
    }

    /// Runs until the answer is there, the interrupt is raised, or a streaming call has enough rows. Blocks the
    /// thread.
    pub fn advance(&mut self, interrupt: &Interrupt, enough: usize) -> Progress {
        let progress = self.try_advance(interrupt, enough);
        self.count(progress)
    }

    fn count(&self, progress: Progress) -> Progress {
        match &progress {
            Progress::Answered(Err(Error::Unsupported(_))) | Progress::Rows | Progress::Paused => {}
            Progress::Answered(_) => {
                self.counters.calls.fetch_add(1, Ordering::Relaxed);
            }
        }
        progress
    }

    fn try_advance(&mut self, interrupt: &Interrupt, enough: usize) -> Progress {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::New(request) => {
                    if let Err(error) = self.enter(request) {
                        return Progress::Answered(Err(error));
                    }
                }
                Stage::Queued(ticket) => match self.pool.wait(&ticket, self.deadline, interrupt) {
                    Waited::Run(lease, party) => {
                        let mut requests = vec![ticket.request()];
                        requests.extend(party.requests());
                        if let Err(error) = self.start(requests, party, lease) {
                            return Progress::Answered(Err(error));
                        }
                    }
                    Waited::Served(result) => return Progress::Answered(result),
                    Waited::Interrupted => {
                        self.stage = Stage::Queued(ticket);
                        return Progress::Paused;
                    }
                    Waited::TimedOut => return Progress::Answered(Err(self.timed_out())),
                },
                Stage::Running(running) => {
                    return self.drive(running, enough, interrupt.raised());
                }
                Stage::Over => {
                    let error = Error::Protocol("the call is over".to_owned());
                    return Progress::Answered(Err(error));
                }
            }
        }
    }

    /// As [`Call::advance`], but only for a short while, without sleeping and without waiting in the queue. For a
    /// caller that holds something which it is slow to get back.
    pub fn advance_briefly(&mut self, patience: Duration, enough: usize) -> Progress {
        let progress = self.try_advance_briefly(patience, enough);
        self.count(progress)
    }

    fn try_advance_briefly(&mut self, patience: Duration, enough: usize) -> Progress {
        let end = Instant::now() + patience;
        let stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::New(request) => match self.enter(request) {
                Ok(()) => std::mem::replace(&mut self.stage, Stage::Over),
                Err(error) => return Progress::Answered(Err(error)),
            },
            stage => stage,
        };
        match stage {
            Stage::Running(running) => self.drive(running, enough, async {
                while Instant::now() < end {
                    yield_now().await;
                }
            }),
            stage => {
                self.stage = stage;
                Progress::Paused
            }
        }
    }

    fn enter(&mut self, request: Request) -> Result<(), Error> {
        match self.pool.enter(request) {
            Turn::Queue(ticket) => {
                self.stage = Stage::Queued(ticket);
                Ok(())
            }
            Turn::Run(request, lease) => self.start(vec![request], Party::alone(), lease),
        }
    }

    /// Drives the connection until there is an answer, there are enough rows, or `pause` is over.
    fn drive(
        &mut self,
        mut running: Box<Running>,
        enough: usize,
        pause: impl Future<Output = ()>,
    ) -> Progress {
        let arrivals = self.arrivals.as_deref();
        let future = running.future.as_mut();
        // Looked at each time that something has happened on the connection: the same task reads the rows.
        let enough_rows = poll_fn(|_| match arrivals {
            Some(arrivals) if arrivals.waiting() >= enough => Poll::Ready(()),
            _ => Poll::Pending,
        });
        let driven = running.driver.block_on(async {
            tokio::select! {
                biased;
                outcome = future => Ok(outcome),
                () = enough_rows => Err(Progress::Rows),
                () = pause => Err(Progress::Paused),
            }
        });
        match driven {
            Some(Ok(outcome)) => Progress::Answered(running.finish(outcome)),
            Some(Err(progress)) => {
                self.stage = Stage::Running(running);
                progress
            }
            None => Progress::Answered(Err(Error::Protocol("no runtime".to_owned()))),
        }
    }

    fn start(
        &mut self,
        requests: Vec<Request>,
        mut party: Party,
        mut lease: Lease,
    ) -> Result<(), Error> {
        let connection = match lease.take() {
            Ok(connection) => connection,
            Err(error) => {
                let error = failed(&error);
                party.serve(requests.iter().skip(1).map(|_| Err(error.clone())));
                return Err(error);
            }
        };
        let batched = u64::try_from(requests.len()).unwrap_or(u64::MAX) - 1;
        self.counters.batched.fetch_add(batched, Ordering::Relaxed);
        let cancel = Arc::default();
        let attempt = Attempt {
            config: Arc::clone(&self.config),
            counters: Arc::clone(&self.counters),
            outages: Arc::clone(&self.outages),
            cancel: Arc::clone(&cancel),
            arrivals: self.arrivals.clone(),
        };
        self.stage = Stage::Running(Box::new(Running {
            future: Box::pin(attempt.perform(connection.session, requests)),
            driver: connection.driver,
            cancel,
            party,
            lease,
        }));
        Ok(())
    }

    fn timed_out(&self) -> Error {
        let (busy, ..) = self.pool.usage();
        Error::PoolTimeout(format!(
            "could not obtain one of the {} native connections within {} seconds ({busy} busy); raise \
             Pgbus::Native's pool_size or look for statements that wait for a lock",
            self.config.pool_size,
            self.config.checkout_timeout.as_secs_f64(),
        ))
    }
}

/// Gives the call up. A statement under way is cancelled on the server by a thread of its own, so that this
/// returns at once; its connection is closed, never reused, since the answer and the effect of the cancel
/// request may still be on their way.
impl Drop for Call {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Queued(_) | Stage::Running(_)) {
            self.counters.calls.fetch_add(1, Ordering::Relaxed);
        }
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Queued(ticket) => self.pool.leave(&ticket),
            Stage::Running(running) => {
                let under_way = UnderWay::new();
                // Without a thread to be had, the connection is closed with its statement still running.
                let _ = thread::Builder::new()
                    .name("pgbus cancel".to_owned())
                    .spawn(move || {
                        running.end_without_caller();
                        drop(under_way);
                    });
            }
            Stage::New(_) | Stage::Over => {}
        }
    }
}

impl Running {
    /// Gives the connection back, then the others and the caller their answers.
    fn finish(self, (session, results): Outcome) -> Result<Rows, Error> {
        let Running {
            driver,
            mut party,
            mut lease,
            ..
        } = self;
        lease.restore(Connection { session, driver });
        drop(lease);
        let mut results = results.into_iter();
        let own = results.next();
        party.serve(results);
        own.unwrap_or_else(|| Err(Error::Protocol("no answer to the request".to_owned())))
    }

    /// Ends a statement whose caller has left: for those who still wait for it, or by cancelling it.
    fn end_without_caller(mut self: Box<Self>) {
        self.party.company.leave();
        let company = Arc::clone(&self.party.company);
        let mut future = self.future.as_mut();
        let outcome = self.driver.block_on(async {
            tokio::select! {
                biased;
                () = company.deserted() => {}
                outcome = &mut future => return Some(outcome),
            }
            let canceller = lock(&self.cancel).clone();
            if let Some(canceller) = canceller {
                let _ = timeout(FOR_CANCELLING, canceller.send()).await;
                let _ = timeout(FOR_CANCELLING, future).await;
            }
            None
        });
        if let Some(Some(outcome)) = outcome {
            let _ = self.finish(outcome);
        }
    }
}

/// How many cancel requests this process has under way.
static CANCELLING: PerProcess<AtomicUsize> = PerProcess::new();

fn cancelling() -> &'static AtomicUsize {
    CANCELLING.get_or_init(AtomicUsize::default)
}

/// A cancel request under way.
struct UnderWay;

impl UnderWay {
    fn new() -> UnderWay {
        cancelling().fetch_add(1, Ordering::SeqCst);
        UnderWay
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        cancelling().fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until the cancel requests under way are done, at most `patience`. For a process about to end.
pub fn finish_cancelling(patience: Duration) {
    let deadline = Instant::now() + patience;
    while cancelling().load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
}

/// What performing a request needs beside a connection.
struct Attempt {
    config: Arc<Config>,
    counters: Arc<Counters>,
    outages: Arc<Outages>,
    cancel: Arc<Mutex<Option<Canceller>>>,
    /// For the rows of a streaming call.
    arrivals: Option<Arc<Arrivals>>,
}

impl Attempt {
    /// Runs requests of one statement, and says with each answer how.
    async fn perform(self, session: Option<Session>, requests: Vec<Request>) -> Outcome {
        let mut manner = Manner {
            batch_size: requests.len(),
            retries: 0,
        };
        let (session, mut results) = self.try_perform(session, &requests, &mut manner).await;
        for rows in results.iter_mut().flatten() {
            rows.manner = manner;
        }
        (session, results)
    }

    /// A session found dead beforehand is replaced; what a session breaks under is repeated once, on another one,
    /// if it is repeatable.
    async fn try_perform(
        &self,
        session: Option<Session>,
        requests: &[Request],
        manner: &mut Manner,
    ) -> Outcome {
        let repeatable = requests
            .first()
            .is_some_and(|request| request.statement.repeatable);
        let mut session = match self.live(session).await {
            Ok(session) => session,
            Err(error) => return (None, vec![Err(error); requests.len()]),
        };
        // What is run for several callers is in their answers.
        let arrivals = self.arrivals.as_deref().filter(|_| requests.len() == 1);
        let (mut results, lost) = self.carry_out(&mut session, requests, arrivals).await;
        if lost.is_empty() {
            return (Some(session), results);
        }
        if !repeatable {
            return (self.after(&session).await, results);
        }
        self.counters.retries.fetch_add(1, Ordering::Relaxed);
        manner.retries += 1;
        let broken = session;
        session = match self.connect().await {
            Ok(session) => session,
            Err(error) => {
                for index in lost {
                    results[index] = Err(error.clone());
                }
                return (None, results);
            }
        };
        session.end(&broken).await;
        let again: Vec<Request> = lost.iter().map(|&index| requests[index].clone()).collect();
        let (repeated, lost_again) = self.carry_out(&mut session, &again, arrivals).await;
        for (index, result) in lost.into_iter().zip(repeated) {
            results[index] = result;
        }
        if lost_again.is_empty() {
            return (Some(session), results);
        }
        (self.after(&session).await, results)
    }

    /// A session in place of a broken one, which has ended then, if it can be had quickly.
    async fn after(&self, broken: &Session) -> Option<Session> {
        let session = timeout(FOR_REPLACING, self.connect()).await.ok()?.ok()?;
        session.end(broken).await;
        Some(session)
    }

    /// A session that the server is still at the other end of, as far as can be told.
    async fn live(&self, session: Option<Session>) -> Result<Session, Error> {
        if let Some(session) = session {
            if session.is_alive().await {
                return Ok(session);
            }
            self.outages
                .lost(session.opened(), "the server closed the connection");
        }
        self.connect().await
    }

    async fn connect(&self) -> Result<Session, Error> {
        self.counters.connects.fetch_add(1, Ordering::Relaxed);
        let session = Session::open(&self.config).await;
        match &session {
            // No outage: another client may be let in.
            Ok(_) | Err(Error::Unsupported(_)) => {}
            Err(error) => self.outages.lost(Instant::now(), &error.to_string()),
        }
        session
    }

    /// Answers each request and says which ones the session broke under. What the server may still be doing of
    /// those is over then.
    async fn carry_out(
        &self,
        session: &mut Session,
        requests: &[Request],
        arrivals: Option<&Arrivals>,
    ) -> (Vec<Result<Rows, Error>>, Vec<usize>) {
        *lock(&self.cancel) = Some(session.canceller());
        let results = carry_out(session, requests, arrivals).await;
        let mut lost = Vec::new();
        for (index, result) in results.iter().enumerate() {
            if let Err(Error::Broken(reason)) = result {
                self.outages.lost(session.opened(), reason);
                lost.push(index);
            }
        }
        if lost.is_empty() {
            self.outages.answered();
        } else {
            session.cancel_lost().await;
        }
        (results, lost)
    }
}

type Results<'a> = Pin<Box<dyn Future<Output = Vec<Result<Rows, Error>>> + Send + 'a>>;

/// Answers each request, with as few statements as its neighbours' errors allow.
fn carry_out<'a>(
    session: &'a mut Session,
    requests: &'a [Request],
    arrivals: Option<&'a Arrivals>,
) -> Results<'a> {
    Box::pin(async move {
        if let [request] = requests {
            return vec![session.run(request, arrivals).await];
        }
        let Some(batch) = Request::batch(requests) else {
            let error = Error::Protocol("requests that make no batch".to_owned());
            return vec![Err(error); requests.len()];
        };
        match session.run(&batch, None).await {
            Ok(rows) => {
                let mut results = distribute(rows, requests.len());
                for (result, request) in results.iter_mut().zip(requests) {
                    // Not found: alone, the request compares as its column's own type does (citext) and says
                    // for itself that there is nothing.
                    if matches!(result, Ok(rows) if rows.rows.is_empty()) {
                        *result = session.run(request, None).await;
                    }
                }
                results
            }
            Err(error) if !is_of_one_row(&error) => vec![Err(error); requests.len()],
            // One of them is at fault, and nothing has happened.
            Err(_) => {
                let (first, second) = requests.split_at(requests.len() / 2);
                let mut results = carry_out(session, first, None).await;
                results.extend(carry_out(session, second, None).await);
                results
            }
        }
    })
}

/// Whether a row's own content can be what the server refuses, by the class of its SQLSTATE: cardinality, data,
/// constraints, triggers, size. Anything else (a timeout, a lock, a missing table) would meet each row alike.
pub(crate) fn is_of_one_row(error: &Error) -> bool {
    let class = error.code().and_then(|code| code.get(..2));
    matches!(
        (error, class),
        (
            Error::Server(_),
            Some("21" | "22" | "23" | "38" | "39" | "44" | "54" | "P0")
        )
    )
}

/// Sorts a batch's rows by the request that each answers.
fn distribute(batch: Rows, requests: usize) -> Vec<Result<Rows, Error>> {
    let mut results: Vec<Result<Rows, Error>> = Vec::with_capacity(requests);
    results.resize_with(requests, || Ok(Rows::default()));
    for row in batch.rows {
        match record::request_number(&row) {
            Ok(number) => {
                if let Some(Ok(rows)) = results.get_mut(number) {
                    rows.rows.push(row);
                    rows.affected += 1;
                }
            }
            Err(error) => return vec![Err(error); requests],
        }
    }
    results
}

fn failed(error: &std::io::Error) -> Error {
    Error::Connect {
        message: format!("no connection could be prepared: {error}"),
        code: None,
    }
}
