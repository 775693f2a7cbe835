//! Clients' descriptors that a forked child must not keep: if the parent is killed, its clients are to notice, and they
//! do when the last descriptor is closed.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each descriptor. There is no lock, since the child's only thread cannot wait for those who held one.
static OPEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// For a million descriptors, as many as Linux allows a process.
const WORDS: usize = 1024 * 1024 / BITS;
const BITS: usize = 64;

/// A child closes this descriptor, until it is forgotten.
pub(crate) fn note(descriptor: RawFd) {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_or(bit, Ordering::SeqCst);
    }
}

/// Before the descriptor is closed: its number may be another file's after that.
pub(crate) fn forget(descriptor: RawFd) {
    if let Some((word, bit)) = place(descriptor) {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
}

/// In a forked child, between fork and whatever it does. What owns the descriptors there is never dropped.
pub(crate) fn close_all() {
    for (index, word) in OPEN.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::SeqCst);
        while bits != 0 {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            if let Ok(descriptor) = RawFd::try_from(index * BITS + bit as usize) {
                // SAFETY: `close` may be called between fork and exec. The descriptor was open at the fork, since it is
                // forgotten before it is closed, and in the child nobody uses its owner.
                unsafe { libc::close(descriptor) };
            }
        }
    }
}

fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let descriptor = usize::try_from(descriptor).ok()?;
    let word = OPEN.get(descriptor / BITS)?;
    Some((word, 1 << (descriptor % BITS)))
}
