//! When a call keeps the GVL while it waits for the server.
//!
//! Ruby takes up to a hundred milliseconds to give the GVL back to a thread while another one computes, a
//! thousand times what a near server needs for an answer. Then it is better to keep it for that long. Where
//! nothing computes it comes back at once, and keeping it would only hold up other calls; and a server that is
//! not near enough does not answer in time. Both are found out as calls go by.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Getting the GVL back took so long that something computes.
const SLOW: Duration = Duration::from_millis(10);
/// After so many misses in a row the server is too far away.
const MOST_MISSES: u32 = 5;
/// What was found out is trusted for so long.
const TRUST: Duration = Duration::from_secs(1);

/// Whether calls on one database keep the GVL for a moment.
#[derive(Debug)]
pub struct Grace {
    patience: Duration,
    /// Until when something is known to compute, in milliseconds.
    contended_until: AtomicU64,
    /// How many calls are without the GVL, or wait to get it back.
    outside: AtomicU32,
    /// How many calls in a row the server has not answered in time.
    misses: AtomicU32,
    /// Until when it is not worth another try, in milliseconds.
    hopeless_until: AtomicU64,
}

impl Grace {
    /// For at most `patience` a call; never if that is zero.
    pub fn new(patience: Duration) -> Grace {
        Grace {
            patience,
            contended_until: AtomicU64::new(0),
            outside: AtomicU32::new(0),
            misses: AtomicU32::new(0),
            hopeless_until: AtomicU64::new(0),
        }
    }

    /// How long to keep the GVL for a call that begins now, if at all: not while another call waits to get it
    /// back, since a thread that never gives it up would starve it.
    pub fn patience(&self) -> Option<Duration> {
        if self.patience.is_zero()
            || self.contended_until.load(Ordering::Relaxed) == 0
            || self.outside.load(Ordering::Relaxed) > 0
        {
            return None;
        }
        let worth_it =
            self.is_contended() && milliseconds() >= self.hopeless_until.load(Ordering::Relaxed);
        worth_it.then_some(self.patience)
    }

    /// How long a call that has the GVL keeps it between two parts of an answer. Where something computes, getting
    /// it back once more would take much longer.
    pub fn pause(&self) -> Duration {
        if self.is_contended() {
            Duration::from_millis(5)
        } else {
            Duration::from_micros(500)
        }
    }

    fn is_contended(&self) -> bool {
        milliseconds() < self.contended_until.load(Ordering::Relaxed)
    }

    /// Notes that a call gives up the GVL, until what is returned is dropped.
    pub fn outside(&self) -> Outside<'_> {
        self.outside.fetch_add(1, Ordering::Relaxed);
        Outside(self)
    }

    /// Learns how long it took to get the GVL back.
    pub fn got_back_after(&self, waited: Duration) {
        if waited >= SLOW {
            self.contended_until.store(later(), Ordering::Relaxed);
        }
    }

    /// Learns that a call was answered in time.
    pub fn was_worth_it(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }

    /// Learns that a call was not answered in time. One miss may be a statement that waits for a lock.
    pub fn was_in_vain(&self) {
        if self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_MISSES {
            self.hopeless_until.store(later(), Ordering::Relaxed);
        }
    }
}

/// A call without the GVL.
pub struct Outside<'a>(&'a Grace);

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        self.0.outside.fetch_sub(1, Ordering::Relaxed);
    }
}

fn milliseconds() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn later() -> u64 {
    milliseconds() + TRUST.as_millis() as u64
}
