//! What parses bytes that come from elsewhere, on bytes that nobody would send: never a panic, never a hang,
//! and where there is a right result, that one.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use pgbus_native_core::record::{self, Record, Timestamp};
use pgbus_native_core::{
    Config, Database, Error, Interrupt, Param, Progress, Request, Returns, Rows, Setting,
    SettingValue, Statement, statements as sql,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio_postgres::types::{ToSql, Type};

const EVERY_RETURNS: [Returns; 6] = [
    Returns::Members,
    Returns::Seats,
    Returns::StreamSeats,
    Returns::Texts,
    Returns::Number,
    Returns::Changes,
];

/// Reads rows in every way there is.
fn read(rows: &Rows) {
    for row in &rows.rows {
        for returns in EVERY_RETURNS {
            if let Ok(record) = Record::read(row, returns) {
                for time in [record.joined_at, record.last_seen_at]
                    .into_iter()
                    .flatten()
                {
                    let _ = (time.since_1970(), time.civil());
                }
            }
        }
        let _ = (record::text(row), record::number(row));
    }
}

/// So many cases, unless PROPTEST_CASES says otherwise. Nothing is written down: a failure shows the input in its
/// smallest form.
fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: asked.and_then(|cases| cases.parse().ok()).unwrap_or(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

// --- times ------------------------------------------------------------------------------------------

fn at(microseconds: i64) -> Timestamp {
    Timestamp {
        microseconds,
        with_time_zone: false,
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The date of a day counted from 2000-01-01, by turning the pages of the calendar.
fn date_by_counting(mut day: i64) -> (i64, i64, i64) {
    // The calendar repeats itself after four hundred years.
    let mut year = 2000 + 400 * day.div_euclid(146_097);
    day = day.rem_euclid(146_097);
    let mut month = 1;
    while day >= days_in(year, month) {
        day -= days_in(year, month);
        month += 1;
        if month > 12 {
            month = 1;
            year += 1;
        }
    }
    (year, month, day + 1)
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn a_clock_on_the_wall_shows_what_counting_days_gives(
        // From 4713 BC to 294276 AD, as far as the server counts.
        microseconds in prop_oneof![
            -211_813_488_000_000_000..9_223_371_331_200_000_000i64,
            -100_000_000_000_000_000..100_000_000_000_000_000i64,
        ],
    ) {
        let ([year, month, day, hour, minute, second], beyond) = at(microseconds).civil().unwrap();
        prop_assert_eq!((year, month, day), date_by_counting(microseconds.div_euclid(86_400_000_000)));
        let of_day = microseconds.rem_euclid(86_400_000_000);
        prop_assert_eq!(((hour * 60 + minute) * 60 + second) * 1_000_000 + i64::from(beyond), of_day);
        prop_assert!((0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second));

        let (seconds, beyond) = at(microseconds).since_1970().unwrap();
        let exactly = i128::from(seconds) * 1_000_000 + i128::from(beyond);
        prop_assert_eq!(exactly, i128::from(microseconds) + 946_684_800_000_000);
    }

    #[test]
    fn any_eight_bytes_are_a_time_or_none(microseconds: i64) {
        let infinite = matches!(microseconds, i64::MAX | i64::MIN);
        prop_assert_eq!(at(microseconds).since_1970().is_none(), infinite);
        prop_assert_eq!(at(microseconds).civil().is_none(), infinite);
    }
}

// --- array literals ---------------------------------------------------------------------------------

fn literal(elements: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut out = BytesMut::new();
    Param::Array(elements.to_vec())
        .to_sql(&Type::TEXT_ARRAY, &mut out)
        .unwrap();
    out.to_vec()
}

/// Reads a one-dimensional array literal by the rules of PostgreSQL's documentation.
fn read_literal(literal: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let mut rest = literal.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut elements = Vec::new();
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let mut element = Vec::new();
            let mut bytes = quoted;
            loop {
                match bytes {
                    [b'"', after @ ..] => {
                        rest = after;
                        break;
                    }
                    [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                        element.push(*byte);
                        bytes = after;
                    }
                    [] => return None,
                }
            }
            elements.push(Some(element));
        } else {
            rest = rest.strip_prefix(b"NULL")?;
            elements.push(None);
        }
        match rest {
            [] => {}
            [b',', after @ ..] if !after.is_empty() => rest = after,
            _ => return None,
        }
    }
    Some(elements)
}

/// Text out of which mistakes in quoting come.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        vec(
            select(vec![
                "\"", "\\", "{", "}", ",", "NULL", " ", "'", "ü", "😀", "\n", "a"
            ]),
            0..12
        )
        .prop_map(|parts| parts.concat()),
        "[^\u{0}]{0,20}",
    ]
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn an_array_literal_holds_what_was_put_into_it(elements in vec(proptest::option::of(vec(any::<u8>(), 0..20)), 0..8)) {
        prop_assert_eq!(read_literal(&literal(&elements)), Some(elements));
    }
}

// --- a real server, named by DATABASE_URL -----------------------------------------------------------

static ECHO: Statement = Statement {
    name: "ECHO",
    sql: "SELECT coalesce('=' || e, 'null') FROM unnest($1::text[]) WITH ORDINALITY AS t (e, n) ORDER BY n",
    returns: Returns::Texts,
    repeatable: true,
    batch: None,
};

static SHOW: Statement = Statement {
    name: "SHOW",
    sql: "SELECT current_setting($1)",
    returns: Returns::Texts,
    repeatable: true,
    batch: None,
};

static CIVIL: Statement = Statement {
    name: "CIVIL",
    sql: "SELECT to_char('2000-01-01'::timestamp + make_interval(days => $1) + ($2::text || ' us')::interval,
                         'FMYYYY-FMMM-FMDD FMHH24:FMMI:FMSS.US BC')",
    returns: Returns::Texts,
    repeatable: true,
    batch: None,
};

fn texts(database: &Database, statement: &'static Statement, params: Vec<Param>) -> Vec<String> {
    let mut call = database.call(Request { statement, params });
    let rows = call.run(&Interrupt::new()).unwrap().unwrap();
    rows.rows
        .iter()
        .map(|row| String::from_utf8(record::text(row).unwrap().unwrap().to_vec()).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn the_server_reads_an_array_as_it_was_meant(elements in vec(proptest::option::of(text()), 0..8)) {
        thread_local!(static DATABASE: Database = Database::new(support::config()));
        let bytes = elements.iter().map(|e| e.as_ref().map(|e| e.as_bytes().to_vec())).collect();
        let echo = DATABASE.with(|database| texts(database, &ECHO, vec![Param::Array(bytes)]));
        let expected: Vec<String> = elements
            .iter()
            .map(|e| e.as_ref().map_or("null".to_owned(), |e| format!("={e}")))
            .collect();
        prop_assert_eq!(echo, expected);
    }

    #[test]
    fn the_server_reads_the_same_date_and_time(microseconds in -60_000_000_000_000_000..200_000_000_000_000_000i64) {
        thread_local!(static DATABASE: Database = Database::new(support::config()));
        let days = microseconds.div_euclid(86_400_000_000);
        let of_day = microseconds.rem_euclid(86_400_000_000);
        let params = [days, of_day].map(|number| Param::from(number.to_string().as_str()));
        let theirs = DATABASE.with(|database| texts(database, &CIVIL, params.to_vec()));
        let ([year, month, day, hour, minute, second], beyond) = at(microseconds).civil().unwrap();
        // The server writes the year 0 as 1 BC.
        let (year, era) = if year > 0 { (year, "AD") } else { (1 - year, "BC") };
        let ours = format!("{year}-{month}-{day} {hour}:{minute}:{second}.{beyond:06} {era}");
        prop_assert_eq!(theirs, vec![ours]);
    }
}

proptest! {
    #![proptest_config(config(50))]

    #[test]
    fn a_session_setting_has_the_value_that_was_given(value in text()) {
        let mut config = support::config();
        let setting = |name: &str, value: String| Setting { name: name.to_owned(), value: SettingValue::Literal(value) };
        config.session = vec![
            setting("standard_conforming_strings", "on".to_owned()),
            setting("fuzz.value", value.clone()),
            setting("fuzz.after", "intact".to_owned()),
        ];
        let database = Database::new(config);
        prop_assert_eq!(texts(&database, &SHOW, vec![Param::from("fuzz.value")]), vec![value]);
        prop_assert_eq!(texts(&database, &SHOW, vec![Param::from("fuzz.after")]), vec!["intact".to_owned()]);
    }
}

// --- connection settings ----------------------------------------------------------------------------

const KEYWORDS: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "passwords",
    "dbname",
    "options",
    "application_name",
    "fallback_application_name",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "target_session_attrs",
    "load_balance_hosts",
    "channel_binding",
    "sslmode",
    "sslcert",
    "sslkey",
    "sslrootcert",
    "sslcrl",
    "sslpassword",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "sslnegotiation",
    "sslsni",
    "gssencmode",
    "require_auth",
    "requirepeer",
    "replication",
    "client_encoding",
    "service",
    "nonsense",
];

fn keyword_value() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "",
            "0",
            "1",
            "-1",
            "2",
            "on",
            "off",
            "any",
            "prefer",
            "require",
            "disable",
            "allow",
            "verify-full",
            "primary",
            "read-write",
            "random",
            "127.0.0.1",
            "::1",
            "/tmp",
            "localhost",
            "a,b,c",
            ",",
            "5432,5433",
            "99999",
            "18446744073709551616",
            "TLSv1.2",
            "system",
            "\n",
            "none,scram-sha-256",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
    ]
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn settings_are_understood_or_refused(settings in vec((select(KEYWORDS), keyword_value()), 0..8)) {
        let config = Config::from_keywords(settings.iter().map(|(k, v)| (*k, v.as_str())));
        match config {
            Ok(config) => {
                let _ = Database::new(config).stats();
            }
            Err(error) => prop_assert!(matches!(error, Error::Unsupported(_) | Error::Connect { .. }), "{error:?}"),
        }
    }
}

// --- a server that sends anything -------------------------------------------------------------------

/// A message of the server, right in form unless it is Bytes.
#[derive(Debug, Clone)]
enum Message {
    ParseComplete,
    BindComplete,
    NoData,
    ParameterDescription(Vec<u32>),
    RowDescription(Vec<(String, u32, i16)>),
    DataRow(Vec<Option<Vec<u8>>>),
    CommandComplete(String),
    ReadyForQuery(u8),
    ErrorResponse(Vec<(u8, String)>),
    NoticeResponse(Vec<(u8, String)>),
    ParameterStatus(String, String),
    /// A tag, a length that may lie, and a body.
    Other(u8, i32, Vec<u8>),
    Bytes(Vec<u8>),
}

impl Message {
    fn write(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let tag = match self {
            Message::ParseComplete => b'1',
            Message::BindComplete => b'2',
            Message::NoData => b'n',
            Message::ParameterDescription(types) => {
                body.extend((types.len() as u16).to_be_bytes());
                types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
                b't'
            }
            Message::RowDescription(columns) => {
                body.extend((columns.len() as u16).to_be_bytes());
                for (name, oid, size) in columns {
                    string(&mut body, name);
                    body.extend([0; 6]);
                    body.extend(oid.to_be_bytes());
                    body.extend(size.to_be_bytes());
                    body.extend([0xFF; 4]);
                    body.extend(1u16.to_be_bytes());
                }
                b'T'
            }
            Message::DataRow(columns) => {
                body.extend((columns.len() as u16).to_be_bytes());
                for column in columns {
                    match column {
                        None => body.extend((-1i32).to_be_bytes()),
                        Some(bytes) => {
                            body.extend((bytes.len() as u32).to_be_bytes());
                            body.extend(bytes);
                        }
                    }
                }
                b'D'
            }
            Message::CommandComplete(text) => {
                string(&mut body, text);
                b'C'
            }
            Message::ReadyForQuery(status) => {
                body.push(*status);
                b'Z'
            }
            Message::ErrorResponse(fields) => {
                write_fields(&mut body, fields);
                b'E'
            }
            Message::NoticeResponse(fields) => {
                write_fields(&mut body, fields);
                b'N'
            }
            Message::ParameterStatus(name, value) => {
                string(&mut body, name);
                string(&mut body, value);
                b'S'
            }
            Message::Other(tag, lie, bytes) => {
                out.push(*tag);
                out.extend((bytes.len() as i32 + 4).wrapping_add(*lie).to_be_bytes());
                out.extend(bytes);
                return;
            }
            Message::Bytes(bytes) => {
                out.extend(bytes);
                return;
            }
        };
        out.push(tag);
        out.extend((body.len() as u32 + 4).to_be_bytes());
        out.extend(body);
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend(text.bytes().filter(|byte| *byte != 0));
    out.push(0);
}

fn write_fields(out: &mut Vec<u8>, fields: &[(u8, String)]) {
    for (kind, text) in fields {
        out.push(*kind);
        string(out, text);
    }
    out.push(0);
}

const TYPES: &[u32] = &[
    16, 20, 23, 25, 705, 1043, 1114, 1184, 1009, 3802, 114, 0, 99_999,
];

fn column() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::weighted(
        0.9,
        prop_oneof![vec(any::<u8>(), 0..12), vec(any::<u8>(), 8..=8)],
    )
}

fn fields() -> impl Strategy<Value = Vec<(u8, String)>> {
    let kinds = select(b"SVCMDHPpqWstcdnFLR?".to_vec());
    let texts = prop_oneof![
        select(vec![
            "ERROR", "FATAL", "PANIC", "42P01", "26000", "0A000", "57P01", "00000", "-1", ""
        ])
        .prop_map(str::to_owned),
        "\\PC{0,10}",
    ];
    vec((kinds, texts), 0..8)
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        2 => Just(Message::ParseComplete),
        2 => Just(Message::BindComplete),
        1 => Just(Message::NoData),
        1 => vec(select(TYPES), 0..4).prop_map(Message::ParameterDescription),
        2 => vec(("[a-z]{0,5}", select(TYPES), any::<i16>()), 0..9).prop_map(Message::RowDescription),
        4 => vec(column(), 0..9).prop_map(Message::DataRow),
        2 => "\\PC{0,10}".prop_map(Message::CommandComplete),
        2 => any::<u8>().prop_map(Message::ReadyForQuery),
        1 => fields().prop_map(Message::ErrorResponse),
        1 => fields().prop_map(Message::NoticeResponse),
        1 => ("\\PC{0,5}", "\\PC{0,5}").prop_map(|(name, value)| Message::ParameterStatus(name, value)),
        1 => (any::<u8>(), -6..6i32, vec(any::<u8>(), 0..12))
            .prop_map(|(tag, lie, body)| Message::Other(tag, lie, body)),
        1 => vec(any::<u8>(), 0..12).prop_map(Message::Bytes),
    ]
}

/// The answer to preparing a statement and the one to running it, right in form: the columns' types and the
/// rows are anything.
fn plausible() -> impl Strategy<Value = Vec<Vec<Message>>> {
    let columns = vec(("[a-z]{0,5}", select(&TYPES[..10]), any::<i16>()), 0..9);
    let rows = vec(vec(column(), 0..9), 0..6);
    (
        vec(select(&TYPES[..10]), 0..4),
        columns,
        rows,
        "(SELECT|DELETE|UPDATE) ?[0-9]{0,3}",
    )
        .prop_map(|(parameters, columns, rows, tag)| {
            let prepared = vec![
                Message::ParseComplete,
                Message::ParameterDescription(parameters),
                Message::RowDescription(columns),
                Message::ReadyForQuery(b'I'),
            ];
            let mut answer = vec![Message::BindComplete];
            answer.extend(rows.into_iter().map(Message::DataRow));
            answer.extend([Message::CommandComplete(tag), Message::ReadyForQuery(b'I')]);
            vec![prepared, answer]
        })
}

/// Reads what a client sends up to where it waits for an answer; false at the end.
fn await_sync(client: &mut TcpStream) -> bool {
    let mut head = [0; 5];
    let mut body = Vec::new();
    while client.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        body.resize((length as usize).saturating_sub(4), 0);
        if client.read_exact(&mut body).is_err() {
            return false;
        }
        if matches!(head[0], b'S' | b'Q') {
            return true;
        }
    }
    false
}

/// Lets anybody in and then sends these answers.
fn serve(mut client: TcpStream, answers: &[Vec<Message>]) {
    // A client that waits for more than comes is to see the end soon.
    let _ = client.set_read_timeout(Some(Duration::from_millis(50)));
    let mut startup = [0; 4];
    if client.read_exact(&mut startup).is_err() {
        return;
    }
    let mut parameters = vec![0; (u32::from_be_bytes(startup) as usize).clamp(4, 10_000) - 4];
    if client.read_exact(&mut parameters).is_err() {
        return;
    }
    let mut out = Vec::new();
    Message::Other(b'R', 0, vec![0; 4]).write(&mut out);
    Message::Other(b'K', 0, vec![0; 8]).write(&mut out);
    Message::ReadyForQuery(b'I').write(&mut out);
    for answer in answers {
        if client.write_all(&out).is_err() || !await_sync(&mut client) {
            return;
        }
        out.clear();
        answer.iter().for_each(|message| message.write(&mut out));
    }
    let _ = client.write_all(&out);
}

/// A server that serves the first connection. It hangs up on all others: cancel requests, and a second try.
fn listen(listener: &TcpListener, answers: &[Vec<Message>], over: &AtomicBool) {
    thread::scope(|scope| {
        for (number, client) in listener.incoming().enumerate() {
            if over.load(Ordering::SeqCst) {
                return;
            }
            if let (0, Ok(client)) = (number, client) {
                scope.spawn(|| serve(client, answers));
            }
        }
    });
}

/// Runs a statement on such a server, and fails if that neither ends nor fails in a few seconds.
fn run_on(answers: Vec<Vec<Message>>, statement: &'static Statement, named: bool, streaming: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let server = {
        let over = Arc::clone(&over);
        thread::spawn(move || listen(&listener, &answers, &over))
    };
    let port = address.port().to_string();
    let keywords = [
        ("host", "127.0.0.1"),
        ("port", &port),
        ("user", "u"),
        ("dbname", "d"),
        ("sslmode", "disable"),
    ];
    let mut config = Config::from_keywords(keywords).unwrap();
    config.prepared_statements = named;
    let database = Database::new(config);
    let interrupt = Arc::new(Interrupt::new());
    let (done, is_done) = mpsc::channel::<()>();
    let watched = Arc::clone(&interrupt);
    thread::spawn(move || {
        if is_done.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout) {
            watched.raise();
        }
    });
    let params = vec![Param::from("x"); statement.sql.matches('$').count().min(5)];
    let mut call = database.call(Request { statement, params });
    if streaming {
        call = call.streaming();
    }
    loop {
        match call.advance(&interrupt, 1) {
            Progress::Answered(answer) => {
                read(&Rows {
                    rows: call.take_rows().rows,
                    affected: 0,
                    ..Rows::default()
                });
                if let Ok(rows) = answer {
                    read(&rows);
                }
                break;
            }
            Progress::Rows => read(&Rows {
                rows: call.take_rows().rows,
                affected: 0,
                ..Rows::default()
            }),
            Progress::Paused => panic!("still running after 10 s"),
        }
    }
    drop(call);
    drop(database);
    drop(done);
    over.store(true, Ordering::SeqCst);
    drop(TcpStream::connect(address));
    server.join().unwrap();
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn any_rows_are_read_or_refused(answers in plausible(), statement in select(sql::ALL), streaming: bool) {
        run_on(answers, statement, true, streaming);
    }

    #[test]
    fn any_messages_are_read_or_refused(
        answers in vec(vec(message(), 0..6), 1..4), statement in select(sql::ALL), named: bool, streaming: bool,
    ) {
        run_on(answers, statement, named, streaming);
    }
}
