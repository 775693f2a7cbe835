//! When a database is out of reach, told once for each time, however many calls and connections it meets.

use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::interrupt::lock;

/// What an operator wants to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A connection was lost, or none could be made: why.
    Lost(String),
    /// A call was answered again, so long after the loss.
    Back(Duration),
}

/// Watches the connections of one database in one process.
#[derive(Debug)]
pub(crate) struct Outages {
    state: Mutex<State>,
    /// Whether there is an outage, to be read without the lock.
    out: AtomicBool,
    /// Whether there is news, likewise.
    fresh: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// When the last outage began. Connections from before it may be lost by it, too, and found lost later.
    began: Option<Instant>,
    news: Vec<News>,
}

impl Outages {
    pub(crate) fn new() -> Outages {
        Outages {
            state: Mutex::new(State {
                began: None,
                news: Vec::new(),
            }),
            out: AtomicBool::new(false),
            fresh: AtomicBool::new(false),
        }
    }

    /// A connection made at some time is lost; or could not be made, now.
    pub(crate) fn lost(&self, made: Instant, reason: &str) {
        let mut state = lock(&self.state);
        let known = state.began.is_some_and(|began| made < began);
        if known || self.out.load(Ordering::Acquire) {
            return;
        }
        state.began = Some(Instant::now());
        state.news.push(News::Lost(reason.trim_end().to_owned()));
        self.out.store(true, Ordering::Release);
        self.fresh.store(true, Ordering::Release);
    }

    /// The server has answered.
    pub(crate) fn answered(&self) {
        if !self.out.load(Ordering::Acquire) {
            return;
        }
        let mut state = lock(&self.state);
        if self.out.swap(false, Ordering::AcqRel) {
            let after = state.began.map(|began| began.elapsed());
            state.news.push(News::Back(after.unwrap_or_default()));
            self.fresh.store(true, Ordering::Release);
        }
    }

    /// Whether there is something to be taken.
    pub(crate) fn has_news(&self) -> bool {
        self.fresh.load(Ordering::Acquire)
    }

    /// Takes the news, the oldest first: each is told to one caller.
    pub(crate) fn take_news(&self) -> Vec<News> {
        let mut state = lock(&self.state);
        self.fresh.store(false, Ordering::Release);
        mem::take(&mut state.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(news: &[News]) -> Vec<&'static str> {
        news.iter()
            .map(|news| match news {
                News::Lost(_) => "lost",
                News::Back(_) => "back",
            })
            .collect()
    }

    #[test]
    fn an_outage_is_told_once_however_many_meet_it() {
        let outages = Outages::new();
        let made = Instant::now();
        outages.answered();
        assert!(!outages.has_news());
        outages.lost(made, "gone\n");
        outages.lost(made, "gone again");
        outages.lost(Instant::now(), "refused");
        outages.answered();
        outages.answered();
        // One of the old connections, which nobody had used meanwhile.
        outages.lost(made, "gone, too");

        assert!(outages.has_news());
        let news = outages.take_news();
        assert_eq!(kinds(&news), ["lost", "back"]);
        assert_eq!(news.first(), Some(&News::Lost("gone".to_owned())));
        assert!(!outages.has_news());
    }

    #[test]
    fn the_next_outage_is_told_again() {
        let outages = Outages::new();
        outages.lost(Instant::now(), "one");
        let made = Instant::now();
        outages.answered();
        outages.lost(made, "two");

        assert_eq!(kinds(&outages.take_news()), ["lost", "back", "lost"]);
    }
}
