//! One session with the server: connecting, setting it up, running statements.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use futures_util::pin_mut;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{CancelToken, Client, Row, Statement as Prepared};

use crate::backend::Backend;
use crate::config::Config;
use crate::connect::{Canceller, Connected, Lookout, connect};
use crate::error::Error;
use crate::interrupt::lock;
use crate::request::Request;
use crate::statements;

/// For ending what a lost session may still be doing, while a caller waits: once for cancelling its statement, and
/// again for ending its server process.
const FOR_ENDING: Duration = Duration::from_secs(1);

/// The answer to a request.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// What the statement returned.
    pub rows: Vec<Row>,
    /// How many rows it changed or returned.
    pub affected: u64,
    /// How it was run.
    pub manner: Manner,
}

/// How a request was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// How many requests were run in one statement, this one among them.
    pub batch_size: usize,
    /// How often it was run again because its connection broke.
    pub retries: u32,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            batch_size: 1,
            retries: 0,
        }
    }
}

/// The rows of a statement as they come in, for a caller that uses them while more are on their way.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Arrived>);

/// Rows that have come in since one last looked.
#[derive(Debug, Default)]
pub struct Arrived {
    /// How often the statement has been begun. When it is repeated, all rows come again.
    pub attempt: u64,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Arrivals {
    fn begin(&self) {
        let mut arrived = lock(&self.0);
        arrived.attempt += 1;
        arrived.rows.clear();
    }

    fn push(&self, row: Row) {
        lock(&self.0).rows.push(row);
    }

    /// How many rows have come in.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.0).rows.len()
    }

    /// Takes the rows that have come in.
    pub(crate) fn take(&self) -> Arrived {
        let mut arrived = lock(&self.0);
        Arrived {
            attempt: arrived.attempt,
            rows: std::mem::take(&mut arrived.rows),
        }
    }
}

/// A connected session. Its traffic moves only while a future of its runtime is being driven.
pub(crate) struct Session {
    client: Client,
    canceller: Canceller,
    lookout: Lookout,
    opened: Instant,
    /// `None` if it is not known, or serves others as well.
    backend: Option<Backend>,
    /// Named statements that this session has prepared; `None` if names are not to be used.
    prepared: Option<HashMap<&'static str, Prepared>>,
}

impl Session {
    /// Connects and sets the session up. The connection's own task is left on the current runtime.
    pub(crate) async fn open(config: &Config) -> Result<Session, Error> {
        let Connected {
            client,
            canceller,
            lookout,
            server,
            ..
        } = connect(config).await?;
        let backend = set_up(&client, canceller.token(), &config.session_sql())
            .await
            .map_err(|error| Error::from_connect(&error, &server))?;
        Ok(Session {
            client,
            canceller,
            lookout,
            opened: Instant::now(),
            backend,
            prepared: config.prepared_statements.then(HashMap::new),
        })
    }

    /// When it was connected.
    pub(crate) fn opened(&self) -> Instant {
        self.opened
    }

    pub(crate) fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Cancels what the server may still be running for this broken session. It may not know yet that the
    /// connection is gone, and the statement may wait for a lock: it must not happen after what is answered, or
    /// repeated, now. A statement that has not begun yet is not cancelled by this, see [`Session::end`].
    pub(crate) async fn cancel_lost(&self) {
        let _ = timeout(FOR_ENDING, self.canceller.send()).await;
    }

    /// Ends what there may still be of another session, which is broken. If the server does not let us, its cancelled
    /// statement is all that there is.
    pub(crate) async fn end(&self, lost: &Session) {
        if let Some(backend) = &lost.backend {
            let _ = timeout(FOR_ENDING, backend.end(&self.client)).await;
        }
    }

    /// Whether the server is still there, as far as what has arrived on the socket tells.
    pub(crate) async fn is_alive(&self) -> bool {
        if self.lookout.is_quiet() && !self.client.is_closed() {
            return true;
        }
        // An idle session's socket is not read. The first yield lets the runtime look at it, the second lets
        // the connection's task read what is there, a farewell or the end of the stream.
        yield_now().await;
        yield_now().await;
        !self.client.is_closed()
    }

    /// Runs a statement. Its rows go to `arrivals`, if there are any, else into the answer.
    pub(crate) async fn run(
        &mut self,
        request: &Request,
        arrivals: Option<&Arrivals>,
    ) -> Result<Rows, Error> {
        let result = self.try_run(request, arrivals).await;
        match result {
            Err(error) if self.lost_statement(&error) => {
                if let Some(prepared) = self.prepared.as_mut() {
                    prepared.clear();
                }
                let again = self.try_run(request, arrivals).await;
                again.map_err(|error| sort(&error))
            }
            other => other.map_err(|error| sort(&error)),
        }
    }

    async fn try_run(
        &mut self,
        request: &Request,
        arrivals: Option<&Arrivals>,
    ) -> Result<Rows, tokio_postgres::Error> {
        if let Some(arrivals) = arrivals {
            arrivals.begin();
        }
        let statement = request.statement;
        let stream = match self.prepared.as_mut() {
            None => {
                let params = request.params.iter().map(|param| (param, Type::UNKNOWN));
                self.client.query_typed_raw(statement.sql, params).await?
            }
            Some(prepared) => {
                let named = match prepared.get(statement.name) {
                    Some(named) => named.clone(),
                    None => {
                        let named = self.client.prepare(statement.sql).await?;
                        prepared.insert(statement.name, named.clone());
                        named
                    }
                };
                self.client.query_raw(&named, request.params.iter()).await?
            }
        };
        pin_mut!(stream);
        let mut rows = Vec::new();
        while let Some(row) = stream.try_next().await? {
            match arrivals {
                Some(arrivals) => arrivals.push(row),
                None => rows.push(row),
            }
        }
        let affected = stream.rows_affected().unwrap_or(0);
        Ok(Rows {
            rows,
            affected,
            manner: Manner::default(),
        })
    }

    /// Whether a named statement is gone (`DEALLOCATE ALL`, `DISCARD ALL`) or its plan no longer fits the
    /// table (a column changed its type). Both are found before anything has run.
    fn lost_statement(&self, error: &tokio_postgres::Error) -> bool {
        const INVALID_SQL_STATEMENT_NAME: &str = "26000";
        const FEATURE_NOT_SUPPORTED: &str = "0A000";
        self.prepared.is_some()
            && error.code().is_some_and(|code| {
                matches!(
                    code.code(),
                    INVALID_SQL_STATEMENT_NAME | FEATURE_NOT_SUPPORTED
                )
            })
    }
}

/// Makes the settings and asks for the server's process, in one round trip.
async fn set_up(
    client: &Client,
    token: &CancelToken,
    settings: &str,
) -> Result<Option<Backend>, tokio_postgres::Error> {
    let both = settings.to_owned() + statements::OWN_BACKEND;
    match client.simple_query(&both).await {
        Ok(answer) => Ok(Backend::from_answer(&answer, token).await),
        // Where a role may not ask for its process, its settings hold all the same.
        Err(error) if error.as_db_error().is_some() && !client.is_closed() => {
            client.batch_execute(settings).await.map(|()| None)
        }
        Err(error) => Err(error),
    }
}

fn sort(error: &tokio_postgres::Error) -> Error {
    Error::from_statement(error)
}
