//! What can go wrong, sorted by what the caller can do about it.

use std::fmt;

use tokio_postgres::error::{DbError, Severity};

/// The error of a call.
#[derive(Debug, Clone)]
pub enum Error {
    /// No connection could be made. Nothing was sent.
    Connect {
        /// What to tell the user; names the server, never the password.
        message: String,
        /// The SQLSTATE with which the server refused, if it answered.
        code: Option<String>,
    },
    /// All connections stayed busy for the whole of the checkout timeout. Nothing was sent.
    PoolTimeout(String),
    /// The connection broke under the statement, which may or may not have been carried out.
    Broken(String),
    /// The server refused the statement, which has had no effect.
    Server(ServerError),
    /// The settings ask for something that this client cannot do.
    Unsupported(String),
    /// The server sent something that does not belong to the statement.
    Protocol(String),
}

/// An error reported by the server.
#[derive(Debug, Clone)]
pub struct ServerError {
    /// The SQLSTATE, five characters.
    pub code: String,
    /// Severity, message, detail and hint, laid out as libpq does.
    pub message: String,
}

impl Error {
    /// Sorts an error of a statement that was sent.
    pub(crate) fn from_statement(error: &tokio_postgres::Error) -> Error {
        match error.as_db_error() {
            // FATAL and PANIC end the session: the statement's fate is unknown.
            Some(db) if is_fatal(db) => Error::Broken(libpq_message(db)),
            Some(db) => Error::Server(ServerError {
                code: db.code().code().to_owned(),
                message: libpq_message(db),
            }),
            None if error.is_closed() => {
                Error::Broken("server closed the connection unexpectedly\n".to_owned())
            }
            None => Error::Broken(format!("{}\n", with_causes(error))),
        }
    }

    /// Sorts an error met on the way to a connection to `server`.
    pub(crate) fn from_connect(error: &tokio_postgres::Error, server: &str) -> Error {
        let (reason, code) = match error.as_db_error() {
            Some(db) => (
                libpq_message(db).trim_end().to_owned(),
                Some(db.code().code().to_owned()),
            ),
            None => (with_causes(error), None),
        };
        Error::Connect {
            message: format!("connection to {server} failed: {reason}"),
            code,
        }
    }

    /// The SQLSTATE, for an error that the server reported.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Server(error) => Some(&error.code),
            Error::Connect { code, .. } => code.as_deref(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Server(error) => f.write_str(&error.message),
            Error::Connect { message, .. }
            | Error::PoolTimeout(message)
            | Error::Broken(message)
            | Error::Unsupported(message)
            | Error::Protocol(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

fn is_fatal(db: &DbError) -> bool {
    match db.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => matches!(db.severity(), "FATAL" | "PANIC"),
    }
}

fn libpq_message(db: &DbError) -> String {
    let mut text = format!("{}:  {}\n", db.severity(), db.message());
    for (label, part) in [
        ("DETAIL", db.detail()),
        ("HINT", db.hint()),
        ("CONTEXT", db.where_()),
    ] {
        if let Some(part) = part {
            text.push_str(&format!("{label}:  {part}\n"));
        }
    }
    text
}

/// The error and its causes in one line; the outer one alone often says no more than "db error".
fn with_causes(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}
