//! Waking a thread that waits for PostgreSQL.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

use tokio::sync::Notify;

/// Asks a running [`Call`](crate::Call) to come back early.
///
/// Raised from any thread; lowered by the thread that runs the call, before it runs it again.
#[derive(Debug, Default)]
pub struct Interrupt {
    raised: AtomicBool,
    /// Wakes a thread inside a connection's runtime.
    notify: Notify,
    /// The thread that waits for a connection, to be unparked.
    parked: Mutex<Option<Thread>>,
}

impl Interrupt {
    /// An interrupt that is not raised.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Wakes the thread that runs the call, now or as soon as it waits.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        self.notify.notify_one();
        if let Some(thread) = lock(&self.parked).as_ref() {
            thread.unpark();
        }
    }

    /// Forgets an earlier raise.
    pub fn lower(&self) {
        self.raised.store(false, Ordering::SeqCst);
    }

    /// Whether it was raised since it was last lowered.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Resolves once the interrupt is raised.
    pub(crate) async fn raised(&self) {
        while !self.is_raised() {
            self.notify.notified().await;
        }
    }

    /// Names the current thread as the one to unpark.
    pub(crate) fn park_here(&self) {
        *lock(&self.parked) = Some(thread::current());
    }
}

/// Locks, also after a panic of another holder: no state here is left half-changed by one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
