//! Every SQL statement of this project, once. Both routes run these: the native one by name, the
//! active_record one by the text.
//!
//! Rules that hold for all of them:
//! - Parameters carry no type of their own (see [`Param`](crate::Param)); a cast stands where the statement
//!   needs a type that the column does not give.
//! - Results are cast to built-in types, so that no driver has to look up a table's own types. Only the two
//!   times keep theirs: `timestamp` and `timestamptz` mean different things.
//! - Statements that change several rows lock them in key order, and sweepers pass over rows that others
//!   have locked, so that no two of them can deadlock.
//! - Locked rows are found again by their place (`ctid`), which is quick. Each partition of a table has a row at
//!   the same place, but all rows of a stream are in one, so the stream is named beside it.
//! - What is about one stream says `stream_name = $1`, so that the server looks at that stream's partition only.
//! - A destructive statement names `connection_id IS NULL` for member-keyed rows. On a table that was last
//!   seen without that column it asks the row itself (`to_jsonb(m)`), so that it cannot take a seat when the
//!   column has been added since.

/// What a statement's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// Records without seat columns.
    Members,
    /// Records with seat columns.
    Seats,
    /// Records with seat columns, each with its stream's name.
    StreamSeats,
    /// One text column.
    Texts,
    /// One row with one `int8`.
    Number,
    /// Nothing; the number of rows changed counts.
    Changes,
}

/// One SQL statement.
#[derive(Debug)]
pub struct Statement {
    /// Its name, in the terms of the Ruby API.
    pub name: &'static str,
    /// Its text.
    pub sql: &'static str,
    /// The shape of its result.
    pub returns: Returns,
    /// Whether running it twice has the outcome of running it once.
    pub repeatable: bool,
    /// How several requests of it are run at once, if they can be.
    pub batch: Option<Batch>,
}

/// One statement that does what several runs of a single-row one do. It takes the same parameters, each as an
/// array with an element for each request, locks the rows in key order, and returns the same columns and
/// behind them the request's number, from 1. A row that it does not find it leaves out.
#[derive(Debug)]
pub struct Batch {
    /// The statement.
    pub statement: &'static Statement,
    /// The parameters, counted from 0, that name the row. The first is the stream.
    pub key: [usize; 2],
    /// Whether the row is a seat; a member-keyed row with the same name is another one.
    pub seat: bool,
}

/// Names the process that runs this statement, by its id and its beginning. Not prepared: it runs once for each
/// session.
pub(crate) const OWN_BACKEND: &str = "SELECT pid, extract(epoch FROM backend_start)::text
     FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())";

/// Ends the process with that id and that beginning; no row if there is none. A role may end its own sessions.
pub(crate) fn end_backend(process: i32, started: &str) -> String {
    let started = started.replace('\'', "''");
    format!(
        "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_get_activity({process})
         WHERE extract(epoch FROM backend_start)::text = '{started}'"
    )
}

/// Hears what [`NOTIFY`] says. Not prepared, like everything that begins a session.
pub(crate) const LISTEN: &str = "LISTEN pgbus_native_broadcasts";

macro_rules! member_columns {
    () => {
        "m.member_id::text AS member_id, m.metadata::text AS metadata, m.joined_at, m.last_seen_at"
    };
}

macro_rules! seat_columns {
    () => {
        concat!(
            member_columns!(),
            ", m.connection_id::text AS connection_id, m.seat::text AS seat, m.state::text AS state"
        )
    };
}

/// A member-keyed row, on a table with seats.
macro_rules! no_seat {
    () => {
        "m.connection_id IS NULL"
    };
}

/// A member-keyed row, on a table that had no seats when it was last looked at.
macro_rules! no_seat_unseen {
    () => {
        "to_jsonb(m) ->> 'connection_id' IS NULL"
    };
}

/// The order in which every statement locks rows, whatever the types and collations of the columns: batched
/// requests are texts, and the columns may be `citext`, which sorts otherwise.
macro_rules! in_key_order {
    ($stream:literal, $alias:literal, $key:literal) => {
        concat!(
            " ORDER BY lower(",
            $stream,
            "::text) COLLATE \"C\", ",
            $stream,
            "::text COLLATE \"C\", lower(",
            $alias,
            $key,
            "::text) COLLATE \"C\", ",
            $alias,
            $key,
            "::text COLLATE \"C\" "
        )
    };
}

macro_rules! join_member {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO pgbus_presence_members AS m (stream_name, member_id, metadata, joined_at, last_seen_at)
             VALUES ($1, $2, $3::jsonb, NOW(), NOW())
             ON CONFLICT ",
            $conflict,
            " DO UPDATE SET metadata = EXCLUDED.metadata, last_seen_at = EXCLUDED.last_seen_at
             RETURNING ",
            member_columns!()
        )
    };
}

macro_rules! touch_member {
    ($member_keyed:expr) => {
        concat!(
            "UPDATE pgbus_presence_members m SET last_seen_at = NOW()
             WHERE m.stream_name = $1 AND m.member_id = $2 AND ",
            $member_keyed
        )
    };
}

macro_rules! leave_member {
    ($member_keyed:expr) => {
        concat!(
            "DELETE FROM pgbus_presence_members m
             WHERE m.stream_name = $1 AND m.member_id = $2 AND ",
            $member_keyed,
            " RETURNING ",
            member_columns!()
        )
    };
}

macro_rules! members {
    ($columns:expr) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM pgbus_presence_members m WHERE m.stream_name = $1 ORDER BY m.joined_at"
        )
    };
}

macro_rules! sweep {
    ($member_keyed:expr) => {
        concat!(
            "DELETE FROM pgbus_presence_members m
             WHERE m.ctid = ANY (ARRAY(
               SELECT m.ctid FROM pgbus_presence_members m
               WHERE m.stream_name = $1 AND m.last_seen_at < $2::timestamptz AND ",
            $member_keyed,
            "  ORDER BY m.member_id FOR UPDATE SKIP LOCKED))
               AND m.stream_name = $1 AND m.last_seen_at < $2::timestamptz AND ",
            $member_keyed,
            " RETURNING ",
            member_columns!()
        )
    };
}

/// The requests of a batch, a row for each, with the request's number.
macro_rules! given {
    ($arrays:literal, $columns:literal) => {
        concat!(
            "WITH given AS MATERIALIZED (SELECT * FROM unnest(",
            $arrays,
            ") WITH ORDINALITY AS g (",
            $columns,
            ", number)), "
        )
    };
}

/// A batch's requests whose rows are there, locked in key order.
macro_rules! found {
    ($key:literal, $member_keyed:expr, $lock:literal) => {
        concat!(
            "found AS MATERIALIZED (
               SELECT given.* FROM given JOIN pgbus_presence_members m
                 ON m.stream_name = given.stream_name AND m.",
            $key,
            " = given.",
            $key,
            " AND ",
            $member_keyed,
            in_key_order!("m.stream_name", "m.", $key),
            $lock,
            " OF m) "
        )
    };
}

/// Which row a found request is about.
macro_rules! row_of_found {
    ($key:literal, $member_keyed:expr) => {
        concat!(
            " WHERE m.stream_name = found.stream_name AND m.",
            $key,
            " = found.",
            $key,
            " AND ",
            $member_keyed,
            " RETURNING "
        )
    };
}

macro_rules! join_members {
    ($conflict:literal) => {
        concat!(
            given!(
                "$1::text[], $2::text[], $3::text[]",
                "stream_name, member_id, metadata"
            ),
            "m AS (
               INSERT INTO pgbus_presence_members AS j
                 (stream_name, member_id, metadata, joined_at, last_seen_at)
               SELECT stream_name, member_id, metadata::jsonb, NOW(), NOW() FROM given",
            in_key_order!("stream_name", "", "member_id"),
            "ON CONFLICT ",
            $conflict,
            " DO UPDATE SET metadata = EXCLUDED.metadata, last_seen_at = EXCLUDED.last_seen_at
               RETURNING j.*)
             SELECT ",
            member_columns!(),
            ", given.number FROM m JOIN given
               ON m.stream_name = given.stream_name AND m.member_id = given.member_id"
        )
    };
}

macro_rules! touch_members {
    ($member_keyed:expr) => {
        concat!(
            given!("$1::text[], $2::text[]", "stream_name, member_id"),
            found!("member_id", $member_keyed, "FOR NO KEY UPDATE"),
            "UPDATE pgbus_presence_members m SET last_seen_at = NOW() FROM found",
            row_of_found!("member_id", $member_keyed),
            "found.number"
        )
    };
}

macro_rules! leave_members {
    ($member_keyed:expr) => {
        concat!(
            given!("$1::text[], $2::text[]", "stream_name, member_id"),
            found!("member_id", $member_keyed, "FOR UPDATE"),
            "DELETE FROM pgbus_presence_members m USING found",
            row_of_found!("member_id", $member_keyed),
            member_columns!(),
            ", found.number"
        )
    };
}

macro_rules! batch {
    () => {
        None
    };
    ($statement:ident MEMBER) => {
        Some(Batch {
            statement: &$statement,
            key: [0, 1],
            seat: false,
        })
    };
    ($statement:ident SEAT) => {
        Some(Batch {
            statement: &$statement,
            key: [0, 1],
            seat: true,
        })
    };
    ($statement:ident JOINED_SEAT) => {
        Some(Batch {
            statement: &$statement,
            key: [0, 3],
            seat: true,
        })
    };
}

macro_rules! statements {
    ($($(#[$doc:meta])* $id:ident: $returns:ident, $(batch: $batch:ident $key:ident,)?
        repeatable: $repeatable:literal, $sql:expr;)*) => {
        $($(#[$doc])* pub static $id: Statement = Statement {
            name: stringify!($id),
            sql: $sql,
            returns: Returns::$returns,
            repeatable: $repeatable,
            batch: batch!($($batch $key)?),
        };)*

        /// All of them.
        pub static ALL: &[&Statement] = &[$(&$id),*];
    };
}

statements! {
    /// Has the table its seat columns? One row for yes, none for no. No parameters.
    SEAT_COLUMNS: Texts, repeatable: true,
        "SELECT column_name::text AS column_name FROM information_schema.columns
         WHERE table_name = 'pgbus_presence_members' AND column_name = 'connection_id'
           AND table_schema = ANY (current_schemas(false))";

    /// `$1` stream, `$2` member, `$3` metadata; on a table without seats.
    JOIN_MEMBER_BEFORE_SEATS: Members, batch: JOIN_MEMBERS_BEFORE_SEATS MEMBER, repeatable: true,
        join_member!("(stream_name, member_id)");

    /// `$1` stream, `$2` member, `$3` metadata; on a table with seats.
    JOIN_MEMBER: Members, batch: JOIN_MEMBERS MEMBER, repeatable: true,
        join_member!("(stream_name, member_id) WHERE connection_id IS NULL");

    /// `$1` stream, `$2` member, `$3` metadata, `$4` connection, `$5` seat or NULL.
    JOIN_SEAT: Seats, batch: JOIN_SEATS JOINED_SEAT, repeatable: true, concat!(
        "INSERT INTO pgbus_presence_members AS m
           (stream_name, member_id, metadata, connection_id, seat, joined_at, last_seen_at)
         VALUES ($1, $2, $3::jsonb, $4, $5, NOW(), NOW())
         ON CONFLICT (stream_name, connection_id) WHERE connection_id IS NOT NULL
         DO UPDATE SET member_id = EXCLUDED.member_id, metadata = EXCLUDED.metadata,
                       seat = EXCLUDED.seat, last_seen_at = EXCLUDED.last_seen_at
         RETURNING ",
        seat_columns!()
    );

    /// `$1` stream, `$2` member; on a table without seats.
    TOUCH_MEMBER_BEFORE_SEATS: Changes, batch: TOUCH_MEMBERS_BEFORE_SEATS MEMBER, repeatable: true,
        touch_member!(no_seat_unseen!());

    /// `$1` stream, `$2` member; on a table with seats.
    TOUCH_MEMBER: Changes, batch: TOUCH_MEMBERS MEMBER, repeatable: true,
        touch_member!(no_seat!());

    /// `$1` stream, `$2` connection; answers with it if it is there.
    TOUCH_SEAT: Texts, batch: TOUCH_EACH_SEAT SEAT, repeatable: true,
        "UPDATE pgbus_presence_members m SET last_seen_at = NOW()
         WHERE m.stream_name = $1 AND m.connection_id = $2::text
         RETURNING m.connection_id::text AS connection_id";

    /// `$1` stream, `$2` connections; answers with those that are there. A row that was changed between the
    /// snapshot and the lock has moved, so that the update does not see it: whoever changed it has touched it.
    TOUCH_SEATS: Texts, repeatable: true, concat!(
        "WITH found AS MATERIALIZED (
           SELECT m.ctid AS place, m.connection_id FROM pgbus_presence_members m
           WHERE m.stream_name = $1 AND m.connection_id = ANY ($2::text[])",
        in_key_order!("m.stream_name", "m.", "connection_id"),
        "FOR NO KEY UPDATE),
         touched AS (
           UPDATE pgbus_presence_members m SET last_seen_at = NOW()
           WHERE m.ctid = ANY (ARRAY(SELECT place FROM found)) AND m.stream_name = $1)
         SELECT connection_id::text AS connection_id FROM found"
    );

    /// `$1` stream, `$2` connection, `$3` the state to merge in.
    SET_STATE: Seats, batch: SET_STATES SEAT, repeatable: true, concat!(
        "UPDATE pgbus_presence_members m SET state = m.state::jsonb || $3::jsonb, last_seen_at = NOW()
         WHERE m.stream_name = $1 AND m.connection_id = $2
         RETURNING ",
        seat_columns!()
    );

    /// `$1` stream, `$2` member; on a table without seats.
    LEAVE_MEMBER_BEFORE_SEATS: Members, batch: LEAVE_MEMBERS_BEFORE_SEATS MEMBER, repeatable: false,
        leave_member!(no_seat_unseen!());

    /// `$1` stream, `$2` member; on a table with seats.
    LEAVE_MEMBER: Members, batch: LEAVE_MEMBERS MEMBER, repeatable: false,
        leave_member!(no_seat!());

    /// `$1` stream, `$2` connection.
    LEAVE_SEAT: Seats, batch: LEAVE_SEATS SEAT, repeatable: false, concat!(
        "DELETE FROM pgbus_presence_members m WHERE m.stream_name = $1 AND m.connection_id = $2 RETURNING ",
        seat_columns!()
    );

    /// `$1` stream; on a table without seats.
    MEMBERS_BEFORE_SEATS: Members, repeatable: true, members!(member_columns!());

    /// `$1` stream; on a table with seats.
    MEMBERS: Seats, repeatable: true, members!(seat_columns!());

    /// `$1` stream.
    COUNT: Number, repeatable: true,
        "SELECT COUNT(*) AS number FROM pgbus_presence_members m WHERE m.stream_name = $1";

    /// `$1` stream, `$2` cutoff; on a table without seats. The cutoff is an instant: text without an offset
    /// is read in the session's time zone, the one in which `timestamp` columns are written.
    SWEEP_BEFORE_SEATS: Members, repeatable: false, sweep!(no_seat_unseen!());

    /// `$1` stream, `$2` cutoff; on a table with seats. For the cutoff see [`SWEEP_BEFORE_SEATS`].
    SWEEP: Members, repeatable: false, sweep!(no_seat!());

    /// `$1` seconds; the streams with a seat last seen longer ago. The lower bound excludes nothing: with it the
    /// server's kept plan expects few stale seats, as there mostly are, and takes the index.
    STALE_STREAMS: Texts, repeatable: true,
        "SELECT DISTINCT m.stream_name::text AS stream_name FROM pgbus_presence_members m
         WHERE m.connection_id IS NOT NULL AND m.last_seen_at >= '-infinity'
           AND m.last_seen_at < (SELECT NOW() - make_interval(secs => $1))";

    /// `$1` streams, `$2` the ttl of each in seconds, `$3` the most rows to take. Takes the lock on a row
    /// before it looks at the time for good, so a seat touched meanwhile stays. A subquery that locks is never
    /// merged into the join, so each stream is looked up by itself: by an index, in its own partition.
    EXPIRE_SEATS: StreamSeats, repeatable: false, concat!(
        "WITH stale AS MATERIALIZED (
           SELECT due.stream_name, due.place
           FROM (SELECT stream_name, NOW() - make_interval(secs => seconds) AS cutoff
                 FROM unnest($1::text[], $2::float8[]) AS t (stream_name, seconds)
                 ORDER BY stream_name) ttls
           CROSS JOIN LATERAL (
             SELECT m.stream_name, m.ctid AS place FROM pgbus_presence_members m
             WHERE m.stream_name = ttls.stream_name AND m.connection_id IS NOT NULL
               AND m.last_seen_at < ttls.cutoff
             ORDER BY m.connection_id FOR UPDATE SKIP LOCKED) due
           LIMIT $3)
         DELETE FROM pgbus_presence_members m
         USING unnest(ARRAY(SELECT stream_name FROM stale), ARRAY(SELECT place FROM stale))
           AS found (stream_name, place)
         WHERE m.stream_name = found.stream_name AND m.ctid = found.place
         RETURNING ",
        seat_columns!(),
        ", m.stream_name::text AS stream_name"
    );

    /// `$1` payloads, told to every session that listens, in order. They do not outlive a crash of the server, so nobody
    /// has to wait for its disk: but only in a transaction that is this statement's own, since another one's rows are to
    /// be as durable as its session says.
    NOTIFY: Changes, repeatable: false,
        "SELECT pg_notify('pgbus_native_broadcasts', payload)
         FROM (SELECT CASE WHEN now() = statement_timestamp()
                           THEN set_config('synchronous_commit', 'off', true) END) AS own,
              unnest($1::text[]) WITH ORDINALITY AS t (payload, number) ORDER BY number";

    /// A batch of [`JOIN_MEMBER_BEFORE_SEATS`].
    JOIN_MEMBERS_BEFORE_SEATS: Members, repeatable: true, join_members!("(stream_name, member_id)");

    /// A batch of [`JOIN_MEMBER`].
    JOIN_MEMBERS: Members, repeatable: true,
        join_members!("(stream_name, member_id) WHERE connection_id IS NULL");

    /// A batch of [`JOIN_SEAT`].
    JOIN_SEATS: Seats, repeatable: true, concat!(
        given!(
            "$1::text[], $2::text[], $3::text[], $4::text[], $5::text[]",
            "stream_name, member_id, metadata, connection_id, seat"
        ),
        "m AS (
           INSERT INTO pgbus_presence_members AS j
             (stream_name, member_id, metadata, connection_id, seat, joined_at, last_seen_at)
           SELECT stream_name, member_id, metadata::jsonb, connection_id, seat, NOW(), NOW() FROM given",
        in_key_order!("stream_name", "", "connection_id"),
        "ON CONFLICT (stream_name, connection_id) WHERE connection_id IS NOT NULL
           DO UPDATE SET member_id = EXCLUDED.member_id, metadata = EXCLUDED.metadata,
                         seat = EXCLUDED.seat, last_seen_at = EXCLUDED.last_seen_at
           RETURNING j.*)
         SELECT ",
        seat_columns!(),
        ", given.number FROM m JOIN given
           ON m.stream_name = given.stream_name AND m.connection_id = given.connection_id"
    );

    /// A batch of [`TOUCH_MEMBER_BEFORE_SEATS`].
    TOUCH_MEMBERS_BEFORE_SEATS: Changes, repeatable: true, touch_members!(no_seat_unseen!());

    /// A batch of [`TOUCH_MEMBER`].
    TOUCH_MEMBERS: Changes, repeatable: true, touch_members!(no_seat!());

    /// A batch of [`TOUCH_SEAT`].
    TOUCH_EACH_SEAT: Texts, repeatable: true, concat!(
        given!("$1::text[], $2::text[]", "stream_name, connection_id"),
        found!("connection_id", "TRUE", "FOR NO KEY UPDATE"),
        "UPDATE pgbus_presence_members m SET last_seen_at = NOW() FROM found",
        row_of_found!("connection_id", "TRUE"),
        "m.connection_id::text AS connection_id, found.number"
    );

    /// A batch of [`SET_STATE`].
    SET_STATES: Seats, repeatable: true, concat!(
        given!("$1::text[], $2::text[], $3::text[]", "stream_name, connection_id, new_state"),
        found!("connection_id", "TRUE", "FOR NO KEY UPDATE"),
        "UPDATE pgbus_presence_members m
         SET state = m.state::jsonb || found.new_state::jsonb, last_seen_at = NOW() FROM found",
        row_of_found!("connection_id", "TRUE"),
        seat_columns!(),
        ", found.number"
    );

    /// A batch of [`LEAVE_MEMBER_BEFORE_SEATS`].
    LEAVE_MEMBERS_BEFORE_SEATS: Members, repeatable: false, leave_members!(no_seat_unseen!());

    /// A batch of [`LEAVE_MEMBER`].
    LEAVE_MEMBERS: Members, repeatable: false, leave_members!(no_seat!());

    /// A batch of [`LEAVE_SEAT`].
    LEAVE_SEATS: Seats, repeatable: false, concat!(
        given!("$1::text[], $2::text[]", "stream_name, connection_id"),
        found!("connection_id", "TRUE", "FOR UPDATE"),
        "DELETE FROM pgbus_presence_members m USING found",
        row_of_found!("connection_id", "TRUE"),
        seat_columns!(),
        ", found.number"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|statement| statement.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn what_deletes_or_tells_is_never_repeated() {
        for statement in ALL {
            let twice_is_more = ["DELETE FROM", "pg_notify"]
                .iter()
                .any(|text| statement.sql.contains(text));
            assert_eq!(statement.repeatable, !twice_is_more, "{}", statement.name);
        }
    }
}
