//! What a caller asks for: a statement and its parameters.

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use crate::statements::Statement;

/// A statement of [`crate::statements`] with its parameters, in order.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to run.
    pub statement: &'static Statement,
    /// One for each `$n`.
    pub params: Vec<Param>,
}

/// A parameter, sent as text: the server reads it as the type that the statement needs, so one statement
/// serves tables with `varchar`, `text` and `citext` columns, and it is the server that checks the encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Param {
    /// SQL NULL.
    Null,
    /// Text in the session's encoding, UTF-8.
    Text(Vec<u8>),
    /// An array; `None` is a NULL element.
    Array(Vec<Option<Vec<u8>>>),
}

/// What names the row that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    seat: bool,
    stream: Vec<u8>,
    id: Vec<u8>,
}

impl Request {
    /// The row that this request is about, if it is about one row and can be run in a batch.
    pub(crate) fn key(&self) -> Option<Key> {
        let batch = self.statement.batch.as_ref()?;
        let [stream, id] = batch.key.map(|index| self.params.get(index)?.single()?);
        Some(Key {
            seat: batch.seat,
            stream: stream?.to_vec(),
            id: id?.to_vec(),
        })
    }

    /// One request that does what these, all of one batchable statement, do.
    pub(crate) fn batch(requests: &[Request]) -> Option<Request> {
        let first = requests.first()?;
        let params = (0..first.params.len()).map(|index| {
            let elements = requests.iter().map(|request| {
                let single = request.params.get(index)?.single()?;
                Some(single.map(<[u8]>::to_vec))
            });
            elements.collect::<Option<_>>().map(Param::Array)
        });
        Some(Request {
            statement: first.statement.batch.as_ref()?.statement,
            params: params.collect::<Option<_>>()?,
        })
    }
}

impl Param {
    /// The value, unless it is an array; `Some(None)` is NULL.
    fn single(&self) -> Option<Option<&[u8]>> {
        match self {
            Param::Null => Some(None),
            Param::Text(text) => Some(Some(text)),
            Param::Array(_) => None,
        }
    }
}

/// Writes a text[] literal with every element quoted.
fn write_array(elements: &[Option<Vec<u8>>], out: &mut BytesMut) {
    out.put_u8(b'{');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        let Some(element) = element else {
            out.put_slice(b"NULL");
            continue;
        };
        out.put_u8(b'"');
        for &byte in element {
            if matches!(byte, b'"' | b'\\') {
                out.put_u8(b'\\');
            }
            out.put_u8(byte);
        }
        out.put_u8(b'"');
    }
    out.put_u8(b'}');
}

impl From<&str> for Param {
    fn from(text: &str) -> Param {
        Param::Text(text.as_bytes().to_vec())
    }
}

impl ToSql for Param {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Param::Null => Ok(IsNull::Yes),
            Param::Text(text) => {
                out.extend_from_slice(text);
                Ok(IsNull::No)
            }
            Param::Array(elements) => {
                write_array(elements, out);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statements;

    fn literal(elements: &[Option<&str>]) -> String {
        let elements: Vec<_> = elements
            .iter()
            .map(|element| element.map(|text| text.as_bytes().to_vec()))
            .collect();
        let mut out = BytesMut::new();
        write_array(&elements, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn quotes_every_element_of_an_array() {
        assert_eq!(literal(&[]), "{}");
        assert_eq!(literal(&[Some("a"), Some("")]), r#"{"a",""}"#);
        assert_eq!(literal(&[Some("NULL"), None]), r#"{"NULL",NULL}"#);
        assert_eq!(literal(&[Some(r#"a"b\c{,}"#)]), r#"{"a\"b\\c{,}"}"#);
    }

    fn request(statement: &'static Statement, params: Vec<Param>) -> Request {
        Request { statement, params }
    }

    #[test]
    fn a_batch_is_a_row_for_each_request() {
        let touch = |id: &str| {
            request(
                &statements::TOUCH_SEAT,
                vec![Param::from("room"), Param::from(id)],
            )
        };
        let batch = Request::batch(&[touch("a"), touch("b")]).unwrap();
        assert_eq!(batch.statement.name, "TOUCH_EACH_SEAT");
        let ids = vec![Some(b"a".to_vec()), Some(b"b".to_vec())];
        assert_eq!(batch.params[1], Param::Array(ids));
        assert_ne!(touch("a").key(), touch("b").key());
        assert_eq!(touch("a").key(), touch("a").key());
    }

    #[test]
    fn what_is_about_several_rows_or_none_stands_alone() {
        let room = Param::from("room");
        let ids = Param::Array(vec![Some(b"a".to_vec())]);
        for lone in [
            request(&statements::TOUCH_SEATS, vec![room.clone(), ids]),
            request(&statements::LEAVE_SEAT, vec![Param::Null, room.clone()]),
            request(&statements::LEAVE_SEAT, vec![room.clone(), Param::Null]),
            request(&statements::COUNT, vec![room]),
        ] {
            assert_eq!(lone.key(), None);
        }
    }
}
