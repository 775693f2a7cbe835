//! What processes tell each other by NOTIFY, whose payloads are at most 7,999 bytes: a broadcast in as many parts as it
//! takes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use super::Broadcast;

/// Bytes of a payload, its heading among them.
const LARGEST: usize = 7999;
/// Bytes that the heading may have: two names of 16 and 20 digits, two numbers, and spaces.
const HEADING: usize = 80;
/// For the rest of a message whose first parts have come.
const PATIENCE: Duration = Duration::from_secs(60);

/// The payloads of a broadcast. They are ASCII: the database may have any encoding.
pub(crate) fn parts(sender: &str, number: u64, broadcast: &Broadcast) -> Vec<String> {
    let text = ascii(
        &json!({
            "stream": broadcast.stream,
            "frame": String::from_utf8_lossy(&broadcast.frame),
            "exclude": broadcast.exclude,
            "visible_to": broadcast.visible_to,
        })
        .to_string(),
    );
    let size = LARGEST - HEADING;
    let count = text.len().div_ceil(size);
    (0..count)
        .map(|part| {
            let chunk = &text[part * size..((part + 1) * size).min(text.len())];
            format!("{sender} {number} {part} {count} {chunk}")
        })
        .collect()
}

/// JSON text with nothing but ASCII in it. Outside of strings JSON has nothing else anyway.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

/// Puts parts together.
#[derive(Debug, Default)]
pub(crate) struct Assembly(HashMap<(String, u64), Begun>);

#[derive(Debug)]
struct Begun {
    text: String,
    next: usize,
    since: Instant,
}

impl Assembly {
    /// The broadcast that a payload completes, unless it comes from `own`, who has it already. What makes no sense is
    /// dropped.
    pub(crate) fn add(&mut self, payload: &str, own: &str) -> Option<Broadcast> {
        let mut fields = payload.splitn(5, ' ');
        let sender = fields.next()?;
        if sender == own {
            return None;
        }
        let number: u64 = fields.next()?.parse().ok()?;
        let part: usize = fields.next()?.parse().ok()?;
        let count: usize = fields.next()?.parse().ok()?;
        let chunk = fields.next()?;
        if count == 1 {
            return read(chunk);
        }
        self.0.retain(|_, begun| begun.since.elapsed() < PATIENCE);
        let key = (sender.to_owned(), number);
        if part == 0 {
            let begun = Begun {
                text: String::new(),
                next: 0,
                since: Instant::now(),
            };
            self.0.insert(key.clone(), begun);
        }
        let begun = self.0.get_mut(&key)?;
        // They are sent in one statement, so they come in order; a gap means a lost connection.
        if begun.next != part {
            self.0.remove(&key);
            return None;
        }
        begun.text.push_str(chunk);
        begun.next += 1;
        if begun.next < count {
            return None;
        }
        read(&self.0.remove(&key)?.text)
    }
}

fn read(text: &str) -> Option<Broadcast> {
    let value: Value = serde_json::from_str(text).ok()?;
    let exclude = value.get("exclude")?.as_array()?;
    Some(Broadcast {
        stream: value.get("stream")?.as_str()?.to_owned(),
        frame: Bytes::from(value.get("frame")?.as_str()?.to_owned()),
        exclude: exclude
            .iter()
            .filter_map(|id| Some(id.as_str()?.to_owned()))
            .collect(),
        visible_to: match value.get("visible_to")? {
            Value::Null => None,
            label => Some(label.as_str()?.to_owned()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broadcast(frame: &str) -> Broadcast {
        Broadcast {
            stream: "Räume \" 1".into(),
            frame: Bytes::from(frame.to_owned()),
            exclude: vec!["c1".into()],
            visible_to: Some("admins".into()),
        }
    }

    #[test]
    fn what_is_sent_arrives_whatever_its_size() {
        for length in [0, 1, 7900, 8000, 100_000] {
            let sent = broadcast(&"ä😀\u{2028}\r\n\"".repeat(length));
            let parts = parts("0123456789abcdef", u64::MAX, &sent);
            assert!(
                parts
                    .iter()
                    .all(|part| part.is_ascii() && part.len() <= LARGEST)
            );
            let mut assembly = Assembly::default();
            let (last, first) = parts.split_last().unwrap();
            assert!(
                first
                    .iter()
                    .all(|part| assembly.add(part, "other").is_none())
            );
            assert_eq!(assembly.add(last, "other"), Some(sent));
            assert!(assembly.0.is_empty());
        }
    }

    #[test]
    fn ones_own_are_passed_over() {
        let parts = parts("me", 1, &broadcast("x"));
        assert_eq!(Assembly::default().add(&parts[0], "me"), None);
    }

    #[test]
    fn messages_of_several_senders_are_kept_apart() {
        let long = broadcast(&"x".repeat(20_000));
        let (one, other) = (parts("one", 1, &long), parts("other", 1, &long));
        let mut assembly = Assembly::default();
        let mut whole = 0;
        for payload in one.iter().zip(&other).flat_map(|(a, b)| [a, b]) {
            whole += usize::from(assembly.add(payload, "me") == Some(long.clone()));
        }
        assert_eq!(whole, 2);
    }

    #[test]
    fn what_lacks_a_part_is_dropped() {
        let parts = parts("one", 1, &broadcast(&"x".repeat(30_000)));
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(&parts[0], "me"), None);
        for part in &parts[2..] {
            assert_eq!(assembly.add(part, "me"), None);
        }
        assert!(assembly.0.is_empty());
    }

    #[test]
    fn nonsense_is_dropped() {
        for payload in [
            "",
            " ",
            "a 1 0 1 {",
            "a 1 0 1 {}",
            "a x 0 1 {}",
            "a 1 1 2 {}",
            "a 1 0 0 ",
        ] {
            assert_eq!(Assembly::default().add(payload, "me"), None, "{payload}");
        }
    }
}
