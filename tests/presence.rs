//! The core against a real PostgreSQL, named by `DATABASE_URL`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pgbus_native_core::record::{self, Record};
use pgbus_native_core::{
    Config, Database, Error, Interrupt, Param, Request, Returns, Rows, Setting, SettingValue,
    Statement, statements as sql,
};

/// A schema of its own with the presence table, gone with the value.
struct Table {
    schema: String,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Table {
    fn with_seats() -> Table {
        Table::new(
            "CREATE TABLE pgbus_presence_members (
               stream_name varchar NOT NULL, member_id varchar NOT NULL,
               metadata jsonb NOT NULL DEFAULT '{}',
               joined_at timestamp NOT NULL DEFAULT current_timestamp,
               last_seen_at timestamp NOT NULL DEFAULT current_timestamp,
               connection_id varchar, seat varchar, state jsonb NOT NULL DEFAULT '{}');
             CREATE UNIQUE INDEX ON pgbus_presence_members (stream_name, member_id)
               WHERE connection_id IS NULL;
             CREATE UNIQUE INDEX ON pgbus_presence_members (stream_name, connection_id)
               WHERE connection_id IS NOT NULL;",
        )
    }

    fn before_seats() -> Table {
        Table::new(
            "CREATE TABLE pgbus_presence_members (
               stream_name varchar NOT NULL, member_id varchar NOT NULL,
               metadata jsonb NOT NULL DEFAULT '{}',
               joined_at timestamptz NOT NULL DEFAULT current_timestamp,
               last_seen_at timestamptz NOT NULL DEFAULT current_timestamp);
             CREATE UNIQUE INDEX ON pgbus_presence_members (stream_name, member_id);",
        )
    }

    fn new(ddl: &str) -> Table {
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let table = Table {
            schema: format!("core_{}_{number}", std::process::id()),
        };
        admin(&format!("CREATE SCHEMA {}", table.schema));
        table.execute(ddl);
        table
    }

    fn execute(&self, statements: &str) -> Vec<Option<String>> {
        admin(&format!("SET search_path TO {};{statements}", self.schema))
    }

    fn config(&self) -> Config {
        let mut config = support::config();
        config.session = vec![
            Setting {
                name: "search_path".to_owned(),
                value: SettingValue::List(self.schema.clone()),
            },
            Setting {
                name: "timezone".to_owned(),
                value: SettingValue::Literal("UTC".to_owned()),
            },
            Setting {
                name: "application_name".to_owned(),
                value: SettingValue::Literal(self.schema.clone()),
            },
        ];
        config
    }

    fn database(&self) -> Database {
        Database::new(self.config())
    }

    /// Ends the sessions of this table's databases.
    fn terminate(&self) {
        self.execute(&format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '{}'",
            self.schema
        ));
    }

    fn active(&self) -> usize {
        let counts = self.execute(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND state = 'active'",
            self.schema
        ));
        counts
            .first()
            .and_then(|count| count.as_ref()?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        admin(&format!("DROP SCHEMA {} CASCADE", self.schema));
    }
}

/// Gives `work` a connection of its own.
fn connected<T>(work: impl AsyncFnOnce(&tokio_postgres::Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = support::server()
            .connect(tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        work(&client).await
    })
}

/// Runs statements and answers with the first column of what they return.
fn admin(statements: &str) -> Vec<Option<String>> {
    connected(async |client| {
        let messages = client.simple_query(statements).await.unwrap();
        messages
            .iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).map(str::to_owned)),
                _ => None,
            })
            .collect()
    })
}

fn run(database: &Database, statement: &'static Statement, params: &[&str]) -> Result<Rows, Error> {
    let params = params.iter().map(|&param| Param::from(param)).collect();
    let mut call = database.call(Request { statement, params });
    call.run(&Interrupt::new()).expect("nobody interrupts")
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_seat_is_joined_and_read_back() {
    let table = Table::with_seats();
    let database = table.database();
    let joined = run(
        &database,
        &sql::JOIN_SEAT,
        &["room", "7", r#"{"a":1}"#, "c1", "tab"],
    )
    .unwrap();
    let record = Record::read(&joined.rows[0], Returns::Seats).unwrap();
    assert_eq!(record.member_id, Some(&b"7"[..]));
    assert_eq!(record.metadata, Some(&br#"{"a": 1}"#[..]));
    assert_eq!(record.joined_at, record.last_seen_at);
    let seat = record.seat.unwrap();
    assert_eq!(seat.connection_id, Some(&b"c1"[..]));
    assert_eq!(seat.seat, Some(&b"tab"[..]));
    assert_eq!(seat.state, Some(&b"{}"[..]));

    let members = run(&database, &sql::MEMBERS, &["room"]).unwrap();
    assert_eq!(members.rows.len(), 1);
    let count = run(&database, &sql::COUNT, &["room"]).unwrap();
    assert_eq!(record::number(&count.rows[0]).unwrap(), 1);
}

#[test]
fn a_table_without_seats_gives_records_without_them() {
    let table = Table::before_seats();
    let database = table.database();
    let joined = run(
        &database,
        &sql::JOIN_MEMBER_BEFORE_SEATS,
        &["room", "7", "[]"],
    )
    .unwrap();
    let record = Record::read(&joined.rows[0], Returns::Members).unwrap();
    assert!(record.seat.is_none());
    assert!(record.joined_at.unwrap().with_time_zone);
    assert!(
        run(&database, &sql::SEAT_COLUMNS, &[])
            .unwrap()
            .rows
            .is_empty()
    );
}

#[test]
fn a_member_keyed_delete_spares_seats_that_came_after_the_probe() {
    let table = Table::with_seats();
    let database = table.database();
    run(
        &database,
        &sql::JOIN_SEAT,
        &["room", "7", "{}", "c1", "tab"],
    )
    .unwrap();
    run(&database, &sql::JOIN_MEMBER, &["room", "7", "{}"]).unwrap();
    for (statement, params) in [
        (&sql::TOUCH_MEMBER_BEFORE_SEATS, &["room", "7"][..]),
        (&sql::LEAVE_MEMBER_BEFORE_SEATS, &["room", "7"][..]),
    ] {
        assert_eq!(run(&database, statement, params).unwrap().affected, 1);
    }
    let swept = run(&database, &sql::SWEEP_BEFORE_SEATS, &["room", "infinity"]).unwrap();
    assert_eq!(swept.affected, 0);
    assert_eq!(
        run(&database, &sql::MEMBERS, &["room"]).unwrap().rows.len(),
        1
    );
}

#[test]
fn every_statement_runs_without_names_too() {
    let table = Table::with_seats();
    let mut config = table.config();
    config.prepared_statements = false;
    let database = Database::new(config);
    for statement in sql::ALL {
        let params: &[&str] = match statement.name {
            "SEAT_COLUMNS" => &[],
            "JOIN_MEMBER" => &["room", "7", "{}"],
            "JOIN_SEAT" => &["room", "7", "{}", "c1", "tab"],
            "TOUCH_SEATS" => &["room", "{c1}"],
            "SET_STATE" => &["room", "c1", "{}"],
            "TOUCH_MEMBER"
            | "TOUCH_MEMBER_BEFORE_SEATS"
            | "LEAVE_MEMBER"
            | "LEAVE_MEMBER_BEFORE_SEATS"
            | "LEAVE_SEAT"
            | "TOUCH_SEAT" => &["room", "7"],
            "MEMBERS" | "MEMBERS_BEFORE_SEATS" | "COUNT" => &["room"],
            "SWEEP" | "SWEEP_BEFORE_SEATS" => &["room", "2000-01-01"],
            "STALE_STREAMS" => &["1.5"],
            "EXPIRE_SEATS" => &["{room}", "{1.5}", "10"],
            "NOTIFY" => &["{broadcast}"],
            "JOIN_MEMBERS" => &["{room}", "{7}", "{\"{}\"}"],
            "JOIN_SEATS" => &["{room}", "{7}", "{\"{}\"}", "{c1}", "{NULL}"],
            "SET_STATES" => &["{room}", "{c1}", "{\"{}\"}"],
            "TOUCH_MEMBERS"
            | "TOUCH_MEMBERS_BEFORE_SEATS"
            | "TOUCH_EACH_SEAT"
            | "LEAVE_SEATS"
            | "LEAVE_MEMBERS"
            | "LEAVE_MEMBERS_BEFORE_SEATS" => &["{room}", "{7}"],
            // Their conflict target is not this table's.
            "JOIN_MEMBER_BEFORE_SEATS" | "JOIN_MEMBERS_BEFORE_SEATS" => continue,
            other => panic!("no example for {other}"),
        };
        run(&database, statement, params)
            .unwrap_or_else(|error| panic!("{}: {error}", statement.name));
    }
    let named = "SELECT count(*) FROM pg_prepared_statements";
    assert_eq!(table.execute(named), [Some("0".to_owned())]);
}

#[test]
fn expiry_takes_each_streams_own_ttl_and_stops_at_its_limit() {
    let table = Table::with_seats();
    let database = table.database();
    table.execute(
        "INSERT INTO pgbus_presence_members (stream_name, member_id, connection_id, last_seen_at)
         SELECT s, 'm', 'c' || n, (now() AT TIME ZONE 'UTC') - interval '10 s'
         FROM unnest('{a,b}'::text[]) s, generate_series(1, 5) n;
         INSERT INTO pgbus_presence_members (stream_name, member_id, last_seen_at)
         VALUES ('a', 'keyed', '2000-01-01')",
    );
    let stale = run(&database, &sql::STALE_STREAMS, &["5"]).unwrap();
    assert_eq!(stale.rows.len(), 2);
    let first = run(&database, &sql::EXPIRE_SEATS, &["{a,b}", "{5,60}", "3"]).unwrap();
    assert_eq!(first.rows.len(), 3);
    let rest = run(&database, &sql::EXPIRE_SEATS, &["{a,b}", "{5,60}", "3"]).unwrap();
    assert_eq!(rest.rows.len(), 2);
    for row in first.rows.iter().chain(&rest.rows) {
        assert_eq!(
            Record::read(row, Returns::StreamSeats).unwrap().stream_name,
            Some(&b"a"[..])
        );
    }
    let left = run(&database, &sql::COUNT, &["a"]).unwrap();
    assert_eq!(record::number(&left.rows[0]).unwrap(), 1);
}

#[test]
fn a_connection_found_dead_is_replaced_before_anything_is_sent() {
    let table = Table::with_seats();
    let database = table.database();
    run(&database, &sql::JOIN_MEMBER, &["room", "7", "{}"]).unwrap();
    table.terminate();
    // A delete: it would not be repeated.
    let left = run(&database, &sql::LEAVE_MEMBER, &["room", "7"]).unwrap();
    assert_eq!(left.affected, 1);
    assert_eq!(database.stats().retries, 0);
    assert_eq!(database.stats().connects, 2);
}

/// Blocks calls of the table by a lock, while `during` runs.
fn with_table_locked(table: &Table, during: impl FnOnce() + Send) {
    let schema = table.schema.clone();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            connected(async |client| {
                let lock = format!("BEGIN; LOCK {schema}.pgbus_presence_members");
                client.batch_execute(&lock).await.unwrap();
                locked.send(()).unwrap();
                let _ = released.recv();
                client.batch_execute("ROLLBACK").await.unwrap();
            });
        });
        is_locked.recv().unwrap();
        during();
        release.send(()).unwrap();
    });
}

#[test]
fn what_breaks_under_a_statement_is_repeated_unless_it_deletes() {
    let table = Table::with_seats();
    let database = table.database();
    run(&database, &sql::JOIN_MEMBER, &["room", "7", "{}"]).unwrap();
    with_table_locked(&table, || {
        thread::scope(|scope| {
            let leaving = scope.spawn(|| run(&database, &sql::LEAVE_MEMBER, &["room", "7"]));
            wait_until("the delete waits for the lock", || table.active() == 1);
            table.terminate();
            assert!(matches!(leaving.join().unwrap(), Err(Error::Broken(_))));
        });
    });
    assert_eq!(database.stats().retries, 0);
    thread::scope(|scope| {
        let mut touching = None;
        with_table_locked(&table, || {
            touching = Some(scope.spawn(|| run(&database, &sql::TOUCH_MEMBER, &["room", "7"])));
            wait_until("the touch waits for the lock", || table.active() == 1);
            table.terminate();
            wait_until("it is repeated", || database.stats().retries == 1);
        });
        let touched = touching.unwrap().join().unwrap().unwrap();
        assert_eq!(touched.affected, 1);
    });
}

#[test]
fn an_interrupted_call_goes_on_or_is_cancelled_on_the_server() {
    let table = Table::with_seats();
    let database = table.database();
    run(&database, &sql::COUNT, &["room"]).unwrap();
    with_table_locked(&table, || {
        let interrupt = Arc::new(Interrupt::new());
        let mut call = database.call(Request {
            statement: &sql::COUNT,
            params: vec![Param::from("room")],
        });
        let raiser = Arc::clone(&interrupt);
        let waker = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            raiser.raise();
        });
        assert!(call.run(&interrupt).is_none());
        waker.join().unwrap();
        assert_eq!(table.active(), 1);
        drop(call);
        wait_until("the query is cancelled", || table.active() == 0);
    });
    wait_until("the right to a connection is back", || {
        database.stats().busy == 0
    });
    let count = run(&database, &sql::COUNT, &["room"]).unwrap();
    assert_eq!(record::number(&count.rows[0]).unwrap(), 0);
}

#[test]
fn no_more_connections_than_the_pool_allows_and_each_call_gets_its_own_answer() {
    let table = Table::with_seats();
    let mut config = table.config();
    config.pool_size = 3;
    let database = Database::new(config);
    thread::scope(|scope| {
        for thread in 0..16 {
            let database = &database;
            scope.spawn(move || {
                for round in 0..25 {
                    let id = format!("{thread}-{round}");
                    let joined =
                        run(database, &sql::JOIN_SEAT, &["room", &id, "{}", &id, "tab"]).unwrap();
                    let record = Record::read(&joined.rows[0], Returns::Seats).unwrap();
                    assert_eq!(record.member_id, Some(id.as_bytes()));
                }
            });
        }
    });
    assert!(database.stats().connections <= 3);
    assert_eq!(database.stats().connects, 3);
    let count = run(&database, &sql::COUNT, &["room"]).unwrap();
    assert_eq!(record::number(&count.rows[0]).unwrap(), 400);
}

/// What some calls answer that all wait for the only connection and are then run together.
fn run_together(table: &Table, requests: Vec<Request>) -> (Vec<Result<Rows, Error>>, u64) {
    run_together_with(table.config(), table, requests)
}

fn run_together_with(
    mut config: Config,
    table: &Table,
    requests: Vec<Request>,
) -> (Vec<Result<Rows, Error>>, u64) {
    config.pool_size = 1;
    let database = Database::new(config);
    run(&database, &sql::COUNT, &["room"]).unwrap();
    let mut answers = Vec::new();
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        with_table_locked(table, || {
            let first = scope.spawn(|| run(&database, &sql::COUNT, &["room"]));
            wait_until("the connection is busy", || table.active() == 1);
            for request in requests {
                let database = &database;
                let queued = database.stats().waiting;
                waiting.push(scope.spawn(move || {
                    let mut call = database.call(request);
                    call.run(&Interrupt::new()).expect("nobody interrupts")
                }));
                wait_until("the call waits", || database.stats().waiting == queued + 1);
            }
            drop(first);
        });
        answers.extend(waiting.into_iter().map(|call| call.join().unwrap()));
    });
    (answers, database.stats().batched)
}

fn request(statement: &'static Statement, params: &[&str]) -> Request {
    Request {
        statement,
        params: params.iter().map(|&param| Param::from(param)).collect(),
    }
}

fn ids(answers: &[Result<Rows, Error>]) -> Vec<String> {
    answers
        .iter()
        .map(|answer| {
            let rows = answer.as_ref().unwrap();
            let record = Record::read(&rows.rows[0], Returns::Seats).unwrap();
            let id = record.seat.unwrap().connection_id.unwrap();
            String::from_utf8_lossy(id).into_owned()
        })
        .collect()
}

#[test]
fn waiting_calls_of_a_kind_are_run_in_one_statement_and_each_gets_its_own_answer() {
    let table = Table::with_seats();
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    let joins = names
        .iter()
        .map(|id| request(&sql::JOIN_SEAT, &["room", id, "{}", id, "tab"]));
    let (answers, batched) = run_together(&table, joins.collect());
    assert_eq!(batched, 19);
    assert_eq!(ids(&answers), names);
    let committed = "SELECT count(DISTINCT xmin::text)::text FROM pgbus_presence_members";
    assert_eq!(table.execute(committed), [Some("1".to_owned())]);

    let states = names
        .iter()
        .map(|id| request(&sql::SET_STATE, &["room", id, r#"{"a":1}"#]));
    let (answers, batched) = run_together(&table, states.collect());
    assert_eq!((ids(&answers), batched), (names.clone(), 19));

    let leaves = names
        .iter()
        .map(|id| request(&sql::LEAVE_SEAT, &["room", id]));
    let (answers, batched) = run_together(&table, leaves.collect());
    assert_eq!((ids(&answers), batched), (names, 19));
}

#[test]
fn one_bad_row_does_not_fail_its_neighbours() {
    let table = Table::with_seats();
    table.execute("ALTER TABLE pgbus_presence_members ALTER seat TYPE varchar(5)");
    let joins = (0..7).map(|n| {
        let id = format!("c{n}");
        let seat = if n == 3 { "too long" } else { "tab" };
        request(&sql::JOIN_SEAT, &["room", "7", "{}", &id, seat])
    });
    let (mut answers, batched) = run_together(&table, joins.collect());
    assert_eq!(batched, 6);
    let refused = answers.remove(3).unwrap_err();
    assert_eq!(refused.code(), Some("22001"));
    assert_eq!(ids(&answers), ["c0", "c1", "c2", "c4", "c5", "c6"]);
}

#[test]
fn what_no_row_is_to_blame_for_is_told_to_all_at_once() {
    let table = Table::with_seats();
    table.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_sleep(10); RETURN new; END';
         CREATE TRIGGER slow BEFORE INSERT ON pgbus_presence_members
           FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    let mut config = table.config();
    config.session.push(Setting {
        name: "statement_timeout".to_owned(),
        value: SettingValue::Literal("500ms".to_owned()),
    });
    let joins = (0..8).map(|n| {
        let id = format!("c{n}");
        request(&sql::JOIN_SEAT, &["room", "7", "{}", &id, "tab"])
    });
    let begun = Instant::now();
    let (answers, _) = run_together_with(config, &table, joins.collect());
    for answer in answers {
        assert_eq!(answer.unwrap_err().code(), Some("57014"));
    }
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_batch_says_which_rows_are_not_there() {
    let table = Table::with_seats();
    run(
        &table.database(),
        &sql::JOIN_SEAT,
        &["room", "7", "{}", "c1", "tab"],
    )
    .unwrap();
    let leaves = ["c0", "c1", "c2"].map(|id| request(&sql::LEAVE_SEAT, &["room", id]));
    let (answers, _) = run_together(&table, leaves.to_vec());
    let found = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().affected);
    assert_eq!(found.collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn a_batch_compares_as_the_columns_type_does() {
    let table = Table::with_seats();
    table.execute(
        "CREATE EXTENSION IF NOT EXISTS citext SCHEMA public;
         ALTER TABLE pgbus_presence_members ALTER connection_id TYPE public.citext",
    );
    let mut config = table.config();
    config.session[0].value = SettingValue::List(format!("{}, public", table.schema));
    let database = Database::new(config.clone());
    run(
        &database,
        &sql::JOIN_SEAT,
        &["room", "7", "{}", "ABC", "tab"],
    )
    .unwrap();
    run(
        &database,
        &sql::JOIN_SEAT,
        &["room", "7", "{}", "DEF", "tab"],
    )
    .unwrap();
    let states = ["abc", "def"].map(|id| request(&sql::SET_STATE, &["room", id, r#"{"a":1}"#]));
    let (answers, batched) = run_together_with(config, &table, states.to_vec());
    assert_eq!(
        (ids(&answers), batched),
        (vec!["ABC".to_owned(), "DEF".to_owned()], 1)
    );
}

#[test]
fn calls_on_one_row_keep_their_order() {
    let table = Table::with_seats();
    let calls = vec![
        request(&sql::JOIN_SEAT, &["room", "first", "{}", "c1", "tab"]),
        request(&sql::LEAVE_SEAT, &["room", "c1"]),
        request(&sql::JOIN_SEAT, &["room", "second", "{}", "c1", "tab"]),
        request(&sql::JOIN_SEAT, &["room", "other", "{}", "c2", "tab"]),
    ];
    let (answers, batched) = run_together(&table, calls);
    // The first and the last go together.
    assert_eq!(batched, 1);
    let left = answers[1].as_ref().unwrap();
    let record = Record::read(&left.rows[0], Returns::Seats).unwrap();
    assert_eq!(record.member_id, Some(&b"first"[..]));
    let members = table.execute("SELECT member_id FROM pgbus_presence_members ORDER BY 1");
    assert_eq!(
        members,
        [Some("other".to_owned()), Some("second".to_owned())]
    );
}

#[test]
fn a_caller_that_gives_up_does_not_take_its_neighbours_along() {
    let table = Table::with_seats();
    let mut config = table.config();
    config.pool_size = 1;
    let database = Database::new(config);
    run(&database, &sql::COUNT, &["room"]).unwrap();
    let interrupts = [Interrupt::new(), Interrupt::new(), Interrupt::new()];
    thread::scope(|scope| {
        let mut calls = Vec::new();
        with_table_locked(&table, || {
            let counting = scope.spawn(|| run(&database, &sql::COUNT, &["room"]));
            wait_until("the connection is busy", || table.active() == 1);
            for (n, interrupt) in interrupts.iter().enumerate() {
                let database = &database;
                calls.push(scope.spawn(move || {
                    let id = format!("c{n}");
                    let join = request(&sql::JOIN_SEAT, &["room", "7", "{}", &id, "tab"]);
                    database.call(join).run(interrupt)
                }));
                wait_until("the call waits", || database.stats().waiting == n + 1);
            }
            table.execute("SELECT 1");
            drop(counting);
        });
        // Whatever the leader and a follower do, the rest get their answers.
        interrupts[1].raise();
        let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        assert!(answers[0].is_some() && answers[2].is_some());
    });
    wait_until("everything is given back", || database.stats().busy == 0);
    run(&database, &sql::COUNT, &["room"]).unwrap();
}

#[test]
fn a_caller_that_is_away_does_not_keep_its_neighbours_waiting() {
    let table = Table::with_seats();
    let mut config = table.config();
    config.pool_size = 1;
    let database = Database::new(config);
    run(&database, &sql::COUNT, &["room"]).unwrap();
    let interrupts: [Interrupt; 5] = std::array::from_fn(|_| Interrupt::new());
    let left = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut calls = Vec::new();
        let mut away = None;
        with_table_locked(&table, || {
            let counting = scope.spawn(|| run(&database, &sql::COUNT, &["room"]));
            wait_until("the connection is busy", || table.active() == 1);
            for (n, interrupt) in interrupts.iter().enumerate() {
                let id = format!("c{n}");
                let join = request(&sql::JOIN_SEAT, &["room", "7", "{}", &id, "tab"]);
                let mut call = database.call(join);
                if n == 2 {
                    let (left, over) = (&left, &over);
                    away = Some(scope.spawn(move || {
                        assert!(call.run(interrupt).is_none());
                        left.store(true, Ordering::SeqCst);
                        // As in a signal's handler, which takes its time.
                        wait_until("the others have their answers", || {
                            over.load(Ordering::SeqCst)
                        });
                        interrupt.lower();
                        call.run(interrupt)
                    }));
                } else {
                    calls.push(scope.spawn(move || call.run(interrupt)));
                }
                wait_until("the call waits", || database.stats().waiting == n + 1);
            }
            interrupts[2].raise();
            wait_until("it is away", || left.load(Ordering::SeqCst));
            drop(counting);
        });
        for call in calls {
            call.join().unwrap().unwrap().unwrap();
        }
        over.store(true, Ordering::SeqCst);
        let answer = away.unwrap().join().unwrap().unwrap().unwrap();
        assert_eq!((answer.rows.len(), answer.manner.batch_size), (1, 5));
    });
}

#[test]
fn a_call_that_finds_no_connection_says_so_after_the_timeout() {
    let table = Table::with_seats();
    let mut config = table.config();
    config.pool_size = 1;
    config.checkout_timeout = Duration::from_millis(100);
    let database = Database::new(config);
    run(&database, &sql::COUNT, &["room"]).unwrap();
    thread::scope(|scope| {
        let mut waiting = None;
        with_table_locked(&table, || {
            waiting = Some(scope.spawn(|| run(&database, &sql::COUNT, &["room"])));
            wait_until("the connection is busy", || table.active() == 1);
            let refused = run(&database, &sql::COUNT, &["room"]);
            assert!(matches!(refused, Err(Error::PoolTimeout(_))), "{refused:?}");
        });
        waiting.unwrap().join().unwrap().unwrap();
    });
}

#[test]
fn named_statements_survive_their_loss_and_a_changed_column() {
    let table = Table::with_seats();
    let mut config = table.config();
    config.pool_size = 1;
    let database = Database::new(config);
    run(&database, &sql::JOIN_MEMBER, &["room", "7", "{}"]).unwrap();
    run(&database, &sql::MEMBERS, &["room"]).unwrap();
    table.execute(
        "ALTER TABLE pgbus_presence_members ALTER joined_at TYPE timestamptz USING joined_at AT TIME ZONE 'UTC'",
    );
    let members = run(&database, &sql::MEMBERS, &["room"]).unwrap();
    let record = Record::read(&members.rows[0], Returns::Seats).unwrap();
    assert!(record.joined_at.unwrap().with_time_zone);
    assert_eq!(database.stats().connects, 1);
}

#[test]
fn named_statements_survive_their_deallocation() {
    static DEALLOCATE: Statement = Statement {
        name: "DEALLOCATE",
        sql: "DEALLOCATE ALL",
        returns: Returns::Changes,
        repeatable: false,
        batch: None,
    };
    let table = Table::with_seats();
    let mut config = table.config();
    config.pool_size = 1;
    let database = Database::new(config);
    run(&database, &sql::JOIN_MEMBER, &["room", "7", "{}"]).unwrap();
    // The statement that does it is one of those that are gone afterwards.
    run(&database, &DEALLOCATE, &[]).unwrap();
    let left = run(&database, &sql::LEAVE_MEMBER, &["room", "7"]).unwrap();
    assert_eq!(left.affected, 1);
    run(&database, &DEALLOCATE, &[]).unwrap();
    run(&database, &sql::JOIN_MEMBER, &["room", "7", "{}"]).unwrap();
    assert_eq!(database.stats().connects, 1);
}

#[test]
fn a_server_error_has_its_sqlstate_and_no_effect_on_the_connection() {
    let table = Table::before_seats();
    let database = table.database();
    let error = run(&database, &sql::LEAVE_SEAT, &["room", "c1"]).unwrap_err();
    assert_eq!(error.code(), Some("42703"));
    assert!(
        error
            .to_string()
            .starts_with("ERROR:  column m.connection_id does not exist\n")
    );
    run(&database, &sql::COUNT, &["room"]).unwrap();
    assert_eq!(database.stats().connects, 1);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let config = Config::from_keywords([
        ("host", "127.0.0.1"),
        ("port", "1"),
        ("user", "u"),
        ("password", "secret"),
        ("dbname", "d"),
    ])
    .unwrap();
    let error = run(&Database::new(config), &sql::COUNT, &["room"]).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }));
    let message = error.to_string();
    assert!(message.contains("\"127.0.0.1\", port 1"), "{message}");
    assert!(!message.contains("secret"));
}
