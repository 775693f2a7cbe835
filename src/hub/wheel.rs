//! Heartbeats, spread over their interval.

use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, Phase};

/// The most moments in an interval, and the least time between two.
const MOST_SLOTS: u128 = 64;
const SHORTEST: Duration = Duration::from_millis(10);

/// A wheel that turns once in an interval. Each connection is in one of its slots.
#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Vec<Vec<Arc<Connection>>>,
    /// The slot whose turn it is.
    turn: usize,
    /// The slot for whoever comes next.
    next: usize,
}

impl Wheel {
    pub(crate) fn new(interval: Duration) -> Wheel {
        let slots = interval.as_nanos() / SHORTEST.as_nanos();
        // At most 64, so it fits.
        let slots = slots.clamp(1, MOST_SLOTS) as usize;
        Wheel {
            slots: vec![Vec::new(); slots],
            turn: 0,
            next: 0,
        }
    }

    /// How often it has to be turned in an interval.
    pub(crate) fn slots(&self) -> u32 {
        // At most 64.
        self.slots.len() as u32
    }

    pub(crate) fn add(&mut self, connection: Arc<Connection>) {
        self.slots[self.next].push(connection);
        self.next = (self.next + 1) % self.slots.len();
    }

    /// Turns it by a slot: whose heartbeat it is.
    pub(crate) fn turn(&mut self) -> Vec<Arc<Connection>> {
        std::mem::take(&mut self.slots[self.turn])
    }

    /// Takes them back for their next turn, but for those who have gone. Whether the interval is over with that.
    pub(crate) fn turned(&mut self, mut connections: Vec<Arc<Connection>>) -> bool {
        connections.retain(|connection| connection.phase() != Phase::Gone);
        self.slots[self.turn].append(&mut connections);
        self.turn = (self.turn + 1) % self.slots.len();
        self.turn == 0
    }
}

#[cfg(test)]
mod tests {
    use mio::Token;

    use super::*;

    #[test]
    fn everybody_has_a_turn_in_each_interval_and_few_at_once() {
        let mut wheel = Wheel::new(Duration::from_secs(15));
        for number in 0..640 {
            let id = number.to_string();
            let connection = Connection::new(id, "room".into(), None, Vec::new(), Token(0));
            wheel.add(Arc::new(connection));
        }
        for _ in 0..2 {
            let mut beaten = 0;
            for slot in 0..64 {
                let connections = wheel.turn();
                assert_eq!(connections.len(), 10);
                beaten += connections.len();
                assert_eq!(wheel.turned(connections), slot == 63);
            }
            assert_eq!(beaten, 640);
        }
    }

    #[test]
    fn who_has_gone_has_no_more_turns() {
        let mut wheel = Wheel::new(Duration::from_millis(1));
        let connection = Arc::new(Connection::new(
            "a".into(),
            "b".into(),
            None,
            Vec::new(),
            Token(0),
        ));
        wheel.add(Arc::clone(&connection));
        let connections = wheel.turn();
        assert_eq!(connections.len(), 1);
        connection.end();
        assert!(wheel.turned(connections));
        assert!(wheel.turn().is_empty());
    }
}
