//! Threads that run calls for callers who must not block, such as fibers under a scheduler.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use crate::database::Call;
use crate::error::Error;
use crate::fork::PerProcess;
use crate::interrupt::{Interrupt, lock};
use crate::session::Rows;

/// How many calls are under way at once, over all databases; more wait in line. Well above the size of a pool,
/// so that there is something to run along.
const MOST_WORKERS: usize = 64;
/// How long a worker stays without work.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// A call that a worker runs. Its descriptor becomes readable when the answer is there.
pub struct Job {
    call: Mutex<Option<Call>>,
    answer: Mutex<Option<Result<Rows, Error>>>,
    interrupt: Interrupt,
    over: AtomicBool,
    /// Two ends of one connection, which every Unix has: what is written to `bell` makes `done` readable.
    bell: UnixStream,
    done: UnixStream,
}

impl Job {
    /// Hands a call to a worker.
    ///
    /// # Errors
    ///
    /// If the system has not two descriptors or no thread left. Nothing was run then.
    pub fn start(call: Call) -> io::Result<Arc<Job>> {
        let (bell, done) = UnixStream::pair()?;
        let job = Arc::new(Job {
            call: Mutex::new(Some(call)),
            answer: Mutex::new(None),
            interrupt: Interrupt::new(),
            over: AtomicBool::new(false),
            bell,
            done,
        });
        WORKERS
            .get_or_init(Workers::default)
            .submit(Arc::clone(&job))?;
        Ok(job)
    }

    /// The descriptor to wait on. It lives as long as the job.
    pub fn descriptor(&self) -> RawFd {
        self.done.as_raw_fd()
    }

    /// Whether the call has ended, and the descriptor is readable.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The answer of a call that is over, given once; `None` if the call panicked.
    pub fn answer(&self) -> Option<Result<Rows, Error>> {
        lock(&self.answer).take()
    }

    /// Gives the call up, wherever it is.
    pub fn abandon(&self) {
        self.interrupt.raise();
    }

    fn run(&self) {
        let Some(mut call) = lock(&self.call).take() else {
            return;
        };
        if self.interrupt.is_raised() {
            return;
        }
        match call.run(&self.interrupt) {
            Some(answer) => *lock(&self.answer) = Some(answer),
            None => drop(call),
        }
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
        // It neither blocks nor fails: nothing was written before, and the other end is open.
        let _ = (&self.bell).write_all(&[1]);
    }
}

static WORKERS: PerProcess<Workers> = PerProcess::new();

#[derive(Default)]
struct Workers {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Job>>,
    idle: usize,
    threads: usize,
}

impl Workers {
    fn submit(&'static self, job: Arc<Job>) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= MOST_WORKERS {
            self.wake.notify_one();
            return Ok(());
        }
        match thread::Builder::new()
            .name("pgbus worker".to_owned())
            .spawn(|| self.work())
        {
            Ok(_) => {
                state.threads += 1;
                Ok(())
            }
            // The threads there are will come to it.
            Err(_) if state.threads > 0 => Ok(()),
            Err(error) => {
                state.queue.pop_back();
                Err(error)
            }
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // A panic ends the job, not the worker; the waiter is told by the missing answer.
                let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
                job.end();
                drop(job);
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self.wait(state);
            state = woken;
            state.idle -= 1;
            if waited && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let (state, result) = self
            .wake
            .wait_timeout(state, IDLE_TIME)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        (state, result.timed_out())
    }
}
