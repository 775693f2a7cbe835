//! The thread that looks after seats on native connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::seats::{Next, Outcome, Task, Work};
use super::{Change, Command, Event, Shared};
use crate::database::{Database, is_of_one_row};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::record;
use crate::session::Rows;

/// For a statement. A server that takes longer is as good as gone: clients wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does what there is to do until there will be no more, or another reader takes over.
pub(super) fn keep_seats(shared: &Arc<Shared>, reader: u64, database: &Database) {
    let never = Interrupt::new();
    loop {
        match shared.seats.next(reader, &never) {
            Next::Work(work) => match outcomes(shared, database, &work) {
                Some(outcomes) => shared.work_done(work, outcomes),
                None => {
                    shared.seats.put_back(work);
                    return shared.events.push(Event::TakeSeats);
                }
            },
            Next::Expire => shared.changes.push(Change::Expire),
            Next::Interrupted => {}
            Next::Over => return,
        }
    }
}

/// An outcome for each seat; `None` if another client has to do it.
fn outcomes(shared: &Shared, database: &Database, work: &Work) -> Option<Vec<Outcome>> {
    let interrupt = Arc::new(Interrupt::new());
    shared.command(Command::Raise(
        Arc::clone(&interrupt),
        Instant::now() + PATIENCE,
    ));
    perform(database, work.task(), work.connections(), &interrupt)
        .into_iter()
        .map(|result| match result {
            Ok(true) => Some(Outcome::Found),
            Ok(false) => Some(Outcome::Missing),
            Err(Error::Unsupported(_)) => None,
            Err(error) if is_of_one_row(&error) => Some(Outcome::Refused(error.to_string())),
            Err(error) => Some(Outcome::Failed(error.to_string())),
        })
        .collect()
}

/// Whether each row was there. It takes as few statements as their errors allow.
fn perform(
    database: &Database,
    task: Task,
    connections: &[Arc<Connection>],
    interrupt: &Interrupt,
) -> Vec<Result<bool, Error>> {
    let Some(request) = task.request(connections) else {
        return Vec::new();
    };
    let answer = database.call(request).run(interrupt);
    let answer = answer.unwrap_or_else(|| Err(Error::Broken("no answer in time\n".to_owned())));
    match answer.and_then(|rows| found(&rows, connections.len())) {
        Ok(found) => found.into_iter().map(Ok).collect(),
        // One of them is at fault, and nothing has happened.
        Err(error) if connections.len() > 1 && is_of_one_row(&error) => {
            let (first, second) = connections.split_at(connections.len() / 2);
            let mut results = perform(database, task, first, interrupt);
            results.extend(perform(database, task, second, interrupt));
            results
        }
        Err(error) => vec![Err(error); connections.len()],
    }
}

fn found(rows: &Rows, count: usize) -> Result<Vec<bool>, Error> {
    let mut found = vec![false; count];
    for row in &rows.rows {
        if let Some(found) = found.get_mut(record::request_number(row)?) {
            *found = true;
        }
    }
    Ok(found)
}
