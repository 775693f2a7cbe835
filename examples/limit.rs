//! The limit that `bin/bench` holds the gem against: the same statements, prepared, straight through
//! tokio-postgres, with nothing around them.
//!
//! `limit URL` answers requests, a line each, with the nanoseconds that each call took. `bench/worker.rb`
//! answers the same requests for Ruby and describes them.

use std::error::Error;
use std::io::{self, Write};
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use pgbus_native_core::{Param, Statement, statements};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, Row, Statement as Prepared};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// As many as the gem's pool has.
const CONNECTIONS: usize = 4;
/// As many rows as the gem deletes in one statement.
const BATCH: usize = 10_000;
const TTL: &str = "30";
const METADATA: &str = r#"{"name":"Ada Lovelace","role":"editor"}"#;
const STATE: &str = r#"{"status":"typing","line":12}"#;

struct Limit {
    url: String,
    client: Client,
    join: Prepared,
    touch: Prepared,
    touch_several: Prepared,
    set_state: Prepared,
    leave: Prepared,
    members: Prepared,
    stale_streams: Prepared,
    expire_seats: Prepared,
}

fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("usage: limit URL")?;
    let runtime = runtime()?;
    let limit = runtime.block_on(Limit::connect(url))?;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["threads", stream, _, seconds] => threads(&limit.url, stream, seconds.parse()?),
            _ => runtime.block_on(limit.answer(&words)),
        };
        let text = match answer {
            Ok(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                numbers.join(" ")
            }
            Err(error) => format!("error {error}"),
        };
        writeln!(io::stdout(), "{text}")?;
    }
    Ok(())
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

impl Limit {
    async fn connect(url: String) -> Outcome<Limit> {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        let prepare = async |statement: &Statement| client.prepare(statement.sql).await;
        Ok(Limit {
            url,
            join: prepare(&statements::JOIN_SEAT).await?,
            touch: prepare(&statements::TOUCH_SEAT).await?,
            touch_several: prepare(&statements::TOUCH_SEATS).await?,
            set_state: prepare(&statements::SET_STATE).await?,
            leave: prepare(&statements::LEAVE_SEAT).await?,
            members: prepare(&statements::MEMBERS).await?,
            stale_streams: prepare(&statements::STALE_STREAMS).await?,
            expire_seats: prepare(&statements::EXPIRE_SEATS).await?,
            client,
        })
    }

    async fn answer(&self, words: &[&str]) -> Outcome<Vec<u64>> {
        match words {
            [
                work @ ("join" | "touch" | "set_state" | "leave"),
                stream,
                count,
            ] => {
                let mut times = Vec::new();
                for number in 1..=count.parse()? {
                    times.push(self.one_seat(work, stream, &format!("c{number}")).await?);
                }
                Ok(times)
            }
            ["members", stream, rows, count] => {
                let params = [Param::from(*stream)];
                self.several(&self.members, &params, rows.parse()?, count.parse()?)
                    .await
            }
            ["touch_ids", stream, ids, count] => {
                let params = [Param::from(*stream), connections(ids.parse()?)];
                self.several(&self.touch_several, &params, ids.parse()?, count.parse()?)
                    .await
            }
            ["expire", rows] => Ok(vec![self.expire(rows.parse()?).await?]),
            _ => Err(format!("unknown request: {}", words.join(" ")).into()),
        }
    }

    async fn one_seat(&self, work: &str, stream: &str, id: &str) -> Outcome<u64> {
        let stream = Param::from(stream);
        match work {
            "join" => self.timed(&self.join, &joined(stream, id), 1).await,
            "set_state" => {
                let params = [stream, Param::from(id), Param::from(STATE)];
                self.timed(&self.set_state, &params, 1).await
            }
            _ => {
                let params = [stream, Param::from(id)];
                let statement = if work == "touch" {
                    &self.touch
                } else {
                    &self.leave
                };
                self.timed(statement, &params, 1).await
            }
        }
    }

    async fn several(
        &self,
        statement: &Prepared,
        params: &[Param],
        rows: usize,
        count: usize,
    ) -> Outcome<Vec<u64>> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            times.push(self.timed(statement, params, rows).await?);
        }
        Ok(times)
    }

    async fn timed(&self, statement: &Prepared, params: &[Param], rows: usize) -> Outcome<u64> {
        let started = Instant::now();
        let returned = self.query(statement, params).await?;
        let time = nanoseconds(started);
        check(returned.len(), rows)?;
        Ok(time)
    }

    async fn expire(&self, rows: usize) -> Outcome<u64> {
        let started = Instant::now();
        let streams = self
            .query(&self.stale_streams, &[Param::from(TTL)])
            .await?
            .iter()
            .map(|row| {
                row.try_get::<_, String>(0)
                    .map(|name| Some(name.into_bytes()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ttls = Param::Array(vec![Some(TTL.as_bytes().to_vec()); streams.len()]);
        let params = [
            Param::Array(streams),
            ttls,
            Param::from(BATCH.to_string().as_str()),
        ];
        let mut expired = Vec::new();
        loop {
            let mut batch = self.query(&self.expire_seats, &params).await?;
            let last = batch.len() < BATCH;
            expired.append(&mut batch);
            if last {
                break;
            }
        }
        let time = nanoseconds(started);
        check(expired.len(), rows)?;
        Ok(time)
    }

    async fn query(
        &self,
        statement: &Prepared,
        params: &[Param],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut stream = pin!(self.client.query_raw(statement, params).await?);
        let mut rows = Vec::new();
        while let Some(row) = stream.try_next().await? {
            rows.push(row);
        }
        Ok(rows)
    }
}

/// Joins on all connections at once, a statement for each join: how many calls, in how many nanoseconds.
fn threads(url: &str, stream: &str, seconds: f64) -> Outcome<Vec<u64>> {
    let connected = (0..CONNECTIONS)
        .map(|_| {
            let runtime = runtime()?;
            let limit = runtime.block_on(Limit::connect(url.to_owned()))?;
            Ok((runtime, limit))
        })
        .collect::<Outcome<Vec<_>>>()?;
    let started = Instant::now();
    let deadline = started + Duration::from_secs_f64(seconds);
    let workers: Vec<_> = connected
        .into_iter()
        .enumerate()
        .map(|(number, (runtime, limit))| {
            let stream = stream.to_owned();
            thread::spawn(move || runtime.block_on(limit.join_until(deadline, &stream, number)))
        })
        .collect();
    let mut calls = 0;
    for worker in workers {
        calls += worker.join().map_err(|_| "a thread panicked")??;
    }
    Ok(vec![calls, nanoseconds(started)])
}

impl Limit {
    async fn join_until(&self, deadline: Instant, stream: &str, thread: usize) -> Outcome<u64> {
        let mut calls = 0;
        while Instant::now() < deadline {
            calls += 1;
            let params = joined(Param::from(stream), &format!("t{thread}-{calls}"));
            check(self.query(&self.join, &params).await?.len(), 1)?;
        }
        Ok(calls)
    }
}

fn joined(stream: Param, id: &str) -> [Param; 5] {
    [
        stream,
        "ada".into(),
        METADATA.into(),
        id.into(),
        "desk".into(),
    ]
}

fn connections(count: usize) -> Param {
    let id = |number| Some(format!("c{number}").into_bytes());
    Param::Array((1..=count).map(id).collect())
}

fn check(rows: usize, expected: usize) -> Outcome<()> {
    if rows == expected {
        return Ok(());
    }
    Err(format!("{rows} rows instead of {expected}").into())
}

fn nanoseconds(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
