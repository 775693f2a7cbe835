//! Rows as Ruby values.

use std::os::raw::c_long;
use std::sync::OnceLock;

use magnus::rb_sys::{AsRawValue, FromRawValue, protect};
use magnus::value::ReprValue;
use magnus::{Error, Module, RModule, Ruby, Value};
use pgbus_native_core::record::{self, Record};
use pgbus_native_core::{Arrived, Error as CoreError, Returns, Row, Rows};
use rb_sys::{
    Qnil, VALUE, rb_ary_new_capa, rb_ary_push, rb_enc_interned_str, rb_gc_register_mark_object,
    rb_hash_new, rb_utf8_encoding, rb_utf8_str_new,
};

use crate::error::exception;
use crate::json::{Pairs, Reader};
use crate::time::{self, Zone};

/// The keys of a record, in the order of its columns.
const KEYS: [&str; 8] = [
    "id",
    "metadata",
    "joined_at",
    "last_seen_at",
    "connection_id",
    "seat",
    "state",
    "stream_name",
];

static INTERNED: OnceLock<[VALUE; 8]> = OnceLock::new();

/// Makes the keys, once.
pub fn init(_: &Ruby) -> Result<(), Error> {
    INTERNED.get_or_init(|| {
        KEYS.map(|key| {
            // SAFETY: called at load, with the GVL. Registered objects are neither freed nor moved.
            unsafe {
                let key = rb_enc_interned_str(
                    key.as_ptr().cast(),
                    key.len() as c_long,
                    rb_utf8_encoding(),
                );
                rb_gc_register_mark_object(key);
                key
            }
        })
    });
    Ok(())
}

/// Makes the records of a result, as its rows come in. It stays on the stack, where Ruby's GC finds its Array.
pub struct Records {
    array: VALUE,
    returns: Returns,
    zone: Zone,
    reader: Option<Reader>,
    attempt: u64,
}

impl Records {
    /// None yet.
    pub fn new(ruby: &Ruby, returns: Returns, zone: Zone) -> Records {
        Records {
            array: ruby.ary_new().as_raw(),
            returns,
            zone,
            reader: None,
            attempt: 0,
        }
    }

    /// Adds the records of rows that have come in. When the statement has been begun anew, the ones so far are
    /// void.
    ///
    /// # Errors
    ///
    /// See [`Records::add`].
    pub fn add_arrived(&mut self, ruby: &Ruby, arrived: &Arrived) -> Result<(), Error> {
        if arrived.attempt != self.attempt {
            self.attempt = arrived.attempt;
            self.array = ruby.ary_new().as_raw();
        }
        self.add(ruby, &arrived.rows)
    }

    /// Adds the records of more rows.
    ///
    /// # Errors
    ///
    /// If the rows are not the statement's, or Ruby raises (no memory).
    pub fn add(&mut self, ruby: &Ruby, rows: &[Row]) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let keys = INTERNED.get().copied().unwrap_or([Qnil as VALUE; 8]);
        protected(|| {
            let reader = self.reader.get_or_insert_with(|| {
                // SAFETY: the GVL is held, and this is `protected`; here and below. It stays on the stack with
                // the rest.
                unsafe { Reader::new() }
            });
            for row in rows {
                let record =
                    Record::read(row, self.returns).map_err(|error| exception(ruby, &error))?;
                // SAFETY: as above.
                unsafe { rb_ary_push(self.array, hash(ruby, &keys, reader, &record, self.zone)?) };
            }
            Ok(self.array)
        })
        .map(|_| ())
    }

    /// The Array of all records.
    pub fn finish(self) -> Value {
        // SAFETY: an Array that Ruby has made, alive until here.
        unsafe { Value::from_raw(self.array) }
    }
}

/// The Ruby value of a result without records: an Array of Strings or an Integer.
///
/// # Errors
///
/// If the rows are not the statement's, or Ruby raises (no memory).
pub fn build(ruby: &Ruby, returns: Returns, rows: &Rows) -> Result<Value, Error> {
    let core = |error: CoreError| exception(ruby, &error);
    let value = protected(|| match returns {
        Returns::Changes => Ok(ruby.integer_from_u64(rows.affected).as_raw()),
        Returns::Number => {
            let row = rows
                .rows
                .first()
                .ok_or_else(|| core(CoreError::Protocol("no row where one was due".to_owned())))?;
            let number = record::number(row).map_err(core)?;
            Ok(ruby.integer_from_i64(number).as_raw())
        }
        Returns::Texts | Returns::Members | Returns::Seats | Returns::StreamSeats => {
            // SAFETY: the GVL is held, and this is `protect`; here and below.
            let array = unsafe { rb_ary_new_capa(rows.rows.len() as c_long) };
            for row in &rows.rows {
                let bytes = record::text(row).map_err(core)?;
                // SAFETY: as above.
                unsafe { rb_ary_push(array, text(bytes)) };
            }
            Ok(array)
        }
    })?;
    // SAFETY: a value that Ruby has just made.
    Ok(unsafe { Value::from_raw(value) })
}

/// Runs what makes Ruby values. A Ruby exception may jump over the frames in between, which own nothing but
/// memory that the JSON reader's scratch buffer holds; the rows are owned outside.
fn protected(make: impl FnOnce() -> Result<VALUE, Error>) -> Result<VALUE, Error> {
    let mut failure = None;
    let value = protect(|| {
        make().unwrap_or_else(|error| {
            failure = Some(error);
            Qnil as VALUE
        })
    })?;
    failure.map_or(Ok(value), Err)
}

/// The record of a row.
///
/// # Safety
///
/// Called with the GVL and inside `protected`.
unsafe fn hash(
    ruby: &Ruby,
    keys: &[VALUE; 8],
    reader: &Reader,
    record: &Record<'_>,
    zone: Zone,
) -> Result<VALUE, Error> {
    let [
        id,
        metadata,
        joined_at,
        last_seen_at,
        connection_id,
        seat,
        state,
        stream_name,
    ] = *keys;
    // SAFETY: inside `protected`.
    unsafe {
        let hash = rb_hash_new();
        let mut pairs = Pairs::new(hash);
        pairs.push(id, text(record.member_id));
        pairs.push(metadata, object(ruby, reader, record.metadata)?);
        for (key, timestamp) in [
            (joined_at, record.joined_at),
            (last_seen_at, record.last_seen_at),
        ] {
            let value = match timestamp {
                Some(timestamp) => time::build(ruby, timestamp, zone)?,
                None => Qnil as VALUE,
            };
            pairs.push(key, value);
        }
        if let Some(columns) = record.seat {
            pairs.push(connection_id, text(columns.connection_id));
            pairs.push(seat, text(columns.seat));
            pairs.push(state, object(ruby, reader, columns.state)?);
        }
        if let Some(name) = record.stream_name {
            pairs.push(stream_name, text(Some(name)));
        }
        pairs.insert();
        Ok(hash)
    }
}

/// A UTF-8 String, or nil.
///
/// # Safety
///
/// Called with the GVL and inside `protect`.
unsafe fn text(bytes: Option<&[u8]>) -> VALUE {
    match bytes {
        // SAFETY: pointer and length are a slice's; inside `protected`.
        Some(bytes) => unsafe { rb_utf8_str_new(bytes.as_ptr().cast(), bytes.len() as c_long) },
        None => Qnil as VALUE,
    }
}

/// The object of a JSON column; `{}` for NULL, as `Record.parse_json` has it.
///
/// # Safety
///
/// Called with the GVL and inside `protected`.
unsafe fn object(ruby: &Ruby, reader: &Reader, bytes: Option<&[u8]>) -> Result<VALUE, Error> {
    let Some(bytes) = bytes else {
        // SAFETY: inside `protected`.
        return Ok(unsafe { rb_hash_new() });
    };
    // SAFETY: inside `protected`.
    if let Some(value) = unsafe { reader.parse(bytes) } {
        return Ok(value);
    }
    // SAFETY: inside `protected`; a String that was made just now.
    let string = unsafe { Value::from_raw(text(Some(bytes))) };
    let record: RModule = ruby
        .class_object()
        .const_get::<_, RModule>("Pgbus")?
        .const_get::<_, RModule>("Streams")?
        .const_get::<_, Value>("Presence")?
        .funcall("const_get", ("Record",))?;
    let parsed: Value = record.funcall("parse_json", (string,))?;
    Ok(parsed.as_raw())
}
