//! Who is connected to this process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::{Connection, Phase};

/// All connections by id, and those that can be found by their streams.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    all: HashMap<Arc<str>, Arc<Connection>>,
    streams: HashMap<Arc<str>, Vec<Arc<Connection>>>,
}

impl Registry {
    /// How many there are, those that are only arriving among them: a limit is to hold for a crowd, too.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Lets one arrive; false if its id is taken.
    pub(crate) fn admit(&mut self, connection: &Arc<Connection>) -> bool {
        if self.all.contains_key(&connection.id) {
            return false;
        }
        let id = Arc::clone(&connection.id);
        self.all.insert(id, Arc::clone(connection));
        true
    }

    /// It gets what its stream gets from now on.
    pub(crate) fn open(&mut self, connection: &Arc<Connection>) {
        let stream = Arc::clone(&connection.stream);
        let others = self.streams.entry(stream).or_default();
        connection.place.store(others.len(), Ordering::Relaxed);
        others.push(Arc::clone(connection));
    }

    pub(crate) fn remove(&mut self, connection: &Connection) {
        self.all.remove(&connection.id);
        let Some(others) = self.streams.get_mut(&connection.stream) else {
            return;
        };
        let place = connection.place.load(Ordering::Relaxed);
        // One that never opened stands nowhere.
        if !others
            .get(place)
            .is_some_and(|other| std::ptr::eq(Arc::as_ptr(other), connection))
        {
            return;
        }
        others.swap_remove(place);
        if let Some(moved) = others.get(place) {
            moved.place.store(place, Ordering::Relaxed);
        }
        if others.is_empty() {
            self.streams.remove(&connection.stream);
        }
    }

    pub(crate) fn find(&self, id: &str) -> Option<&Arc<Connection>> {
        self.all.get(id)
    }

    pub(crate) fn of_stream(&self, stream: &str) -> Vec<Arc<Connection>> {
        self.streams.get(stream).cloned().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.all.values().cloned().collect()
    }

    /// Those that can be found.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.all
            .values()
            .filter(|connection| connection.phase() == Phase::Open)
    }
}

#[cfg(test)]
mod tests {
    use mio::Token;

    use super::*;

    fn connection(id: &str, stream: &str) -> Arc<Connection> {
        Arc::new(Connection::new(
            id.into(),
            stream.into(),
            None,
            Vec::new(),
            Token(0),
        ))
    }

    fn ids(registry: &Registry, stream: &str) -> Vec<String> {
        let mut ids: Vec<_> = registry
            .of_stream(stream)
            .iter()
            .map(|connection| connection.id.to_string())
            .collect();
        ids.sort();
        ids
    }

    #[test]
    fn whoever_leaves_leaves_the_others_where_they_are_found() {
        let mut registry = Registry::default();
        let all: Vec<_> = ["a", "b", "c", "d"].map(|id| connection(id, "room")).into();
        for connection in &all {
            assert!(registry.admit(connection));
            registry.open(connection);
        }
        registry.remove(&all[1]);
        registry.remove(&all[3]);
        assert_eq!(ids(&registry, "room"), ["a", "c"]);
        registry.remove(&all[0]);
        registry.remove(&all[2]);
        assert!(registry.streams.is_empty());
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn one_that_only_arrives_takes_nobody_else_along() {
        let mut registry = Registry::default();
        let [open, arriving] = ["a", "b"].map(|id| connection(id, "room"));
        assert!(registry.admit(&open) && registry.admit(&arriving));
        registry.open(&open);
        registry.remove(&arriving);
        assert_eq!(ids(&registry, "room"), ["a"]);
    }

    #[test]
    fn an_id_is_given_once() {
        let mut registry = Registry::default();
        assert!(registry.admit(&connection("a", "room")));
        assert!(!registry.admit(&connection("a", "other")));
    }
}
