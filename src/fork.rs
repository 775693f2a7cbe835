//! State that must not be shared with a forked child.
//!
//! A child inherits its parent's memory: sockets, epoll descriptors and locks, some of them held by threads
//! that do not exist in it. Dropping any of it would act on the parent's connections (a Terminate message, an
//! epoll deregistration), and taking an inherited lock may hang. So a child forgets what it inherited, without
//! dropping it, and builds its own on first use.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::hub::inheritance;

static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTER: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    inheritance::close_all();
}

/// Counts the forks between this process and the one that loaded the library.
pub fn generation() -> u64 {
    REGISTER.call_once(|| {
        // SAFETY: the handler changes atomics and closes descriptors, which is allowed between fork and exec, and
        // this library is never unloaded, so its address stays valid.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::SeqCst)
}

/// A value that each process makes for itself, on first use.
#[derive(Debug)]
pub struct PerProcess<T> {
    current: AtomicPtr<Tagged<T>>,
}

#[derive(Debug)]
struct Tagged<T> {
    generation: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// A holder with no value yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess {
            current: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// This process's value, made by `make` if there is none. Two threads may both make one; one is kept.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let generation = generation();
        let found = self.current.load(Ordering::Acquire);
        // SAFETY: a pointer in `current` is null or came from `Box::into_raw` below. It is freed only by
        // `drop`, which has the holder to itself.
        if let Some(tagged) = unsafe { found.as_ref() } {
            if tagged.generation == generation {
                return &tagged.value;
            }
        }
        let made = Box::into_raw(Box::new(Tagged {
            generation,
            value: make(),
        }));
        match self
            .current
            .compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire)
        {
            // What an earlier process left in `found` is forgotten on purpose.
            // SAFETY: `made` is now owned by `current`, see above.
            Ok(_) => unsafe { &(*made).value },
            Err(theirs) => {
                // SAFETY: `made` was never shared; `theirs` was put there by another thread of this process.
                unsafe {
                    drop(Box::from_raw(made));
                    &(*theirs).value
                }
            }
        }
    }

    /// This process's value, if it has made one.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: as in `get_or_init`.
        let tagged = unsafe { self.current.load(Ordering::Acquire).as_ref() }?;
        (tagged.generation == generation()).then_some(&tagged.value)
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let found = *self.current.get_mut();
        // SAFETY: `&mut self` says that nobody else has a reference to the value.
        if let Some(tagged) = unsafe { found.as_ref() } {
            if tagged.generation == generation() {
                // SAFETY: it came from `Box::into_raw` in this process and is not used again.
                drop(unsafe { Box::from_raw(found) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_its_value_once() {
        let holder = PerProcess::new();
        assert!(holder.get().is_none());
        assert_eq!(*holder.get_or_init(|| 1), 1);
        assert_eq!(*holder.get_or_init(|| 2), 1);
        assert_eq!(holder.get(), Some(&1));
    }

    #[test]
    fn makes_another_value_after_a_fork() {
        let holder = PerProcess::new();
        assert_eq!(*holder.get_or_init(|| 1), 1);
        // SAFETY: the child only reads atomics and leaves without running anything of the parent's.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let fresh = holder.get().is_none() && *holder.get_or_init(|| 2) == 2;
            // SAFETY: `_exit` ends the child at once.
            unsafe { libc::_exit(if fresh { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `pid` is our child and `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert_eq!(holder.get(), Some(&1));
    }
}
