//! What one thread hands to another that sleeps until there is something.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread::{self, Thread};

use crate::interrupt::{Interrupt, lock};

/// A queue with any number of writers and one reader at a time.
#[derive(Debug)]
pub(crate) struct Inbox<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    reader: Option<Thread>,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Inbox<T> {
        Inbox(Mutex::new(State {
            items: VecDeque::new(),
            closed: false,
            reader: None,
        }))
    }

    pub(crate) fn push(&self, item: T) {
        self.push_all([item]);
    }

    pub(crate) fn push_all(&self, items: impl IntoIterator<Item = T>) {
        let mut state = lock(&self.0);
        state.items.extend(items);
        state.wake();
    }

    /// What is there is still read.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.0);
        state.closed = true;
        state.wake();
    }

    /// Everything that is there, as soon as it is something; nothing if the interrupt was raised, and `None` when the
    /// inbox is closed and empty. Blocks the thread.
    pub(crate) fn read(&self, interrupt: &Interrupt) -> Option<Vec<T>> {
        interrupt.park_here();
        lock(&self.0).reader = Some(thread::current());
        loop {
            {
                let mut state = lock(&self.0);
                if !state.items.is_empty() {
                    return Some(state.items.drain(..).collect());
                }
                if state.closed {
                    return None;
                }
            }
            if interrupt.is_raised() {
                return Some(Vec::new());
            }
            thread::park();
        }
    }
}

impl<T> State<T> {
    fn wake(&self) {
        if let Some(reader) = &self.reader {
            reader.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_over_in_order_and_ends_when_closed() {
        let inbox = Inbox::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..100).for_each(|number| inbox.push(number));
                inbox.close();
            });
            let mut read = Vec::new();
            while let Some(items) = inbox.read(&Interrupt::new()) {
                read.extend(items);
            }
            assert_eq!(read, (0..100).collect::<Vec<_>>());
        });
    }

    #[test]
    fn comes_back_when_interrupted() {
        let inbox: Inbox<()> = Inbox::new();
        let interrupt = Interrupt::new();
        std::thread::scope(|scope| {
            scope.spawn(|| interrupt.raise());
            assert_eq!(inbox.read(&interrupt), Some(Vec::new()));
        });
    }
}
