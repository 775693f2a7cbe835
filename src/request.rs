//! What a caller asks for: a statement and its parameters.

use bytes::BytesMut;
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
}

impl Param {
    /// A `text[]` of the given elements; `None` is a NULL element.
    pub fn array<'a>(elements: impl IntoIterator<Item = Option<&'a [u8]>>) -> Param {
        let mut literal = vec![b'{'];
        for (index, element) in elements.into_iter().enumerate() {
            if index > 0 {
                literal.push(b',');
            }
            let Some(element) = element else {
                literal.extend_from_slice(b"NULL");
                continue;
            };
            literal.push(b'"');
            for &byte in element {
                if matches!(byte, b'"' | b'\\') {
                    literal.push(b'\\');
                }
                literal.push(byte);
            }
            literal.push(b'"');
        }
        literal.push(b'}');
        Param::Text(literal)
    }
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

    fn literal(elements: &[Option<&str>]) -> String {
        match Param::array(elements.iter().map(|e| e.map(str::as_bytes))) {
            Param::Text(text) => String::from_utf8_lossy(&text).into_owned(),
            Param::Null => "NULL".to_owned(),
        }
    }

    #[test]
    fn quotes_every_element_of_an_array() {
        assert_eq!(literal(&[]), "{}");
        assert_eq!(literal(&[Some("a"), Some("")]), r#"{"a",""}"#);
        assert_eq!(literal(&[Some("NULL"), None]), r#"{"NULL",NULL}"#);
        assert_eq!(literal(&[Some(r#"a"b\c{,}"#)]), r#"{"a\"b\\c{,}"}"#);
    }
}
