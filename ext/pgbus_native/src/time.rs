//! Time columns as Ruby times.

use magnus::value::ReprValue;
use magnus::{Error, Ruby, Value};
use pgbus_native_core::record::Timestamp;
use rb_sys::{VALUE, rb_time_timespec_new, timespec};

/// How a `timestamp` without time zone is read: ActiveRecord's `default_timezone`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// `:utc`
    Utc,
    /// `:local`, the process's time zone
    Local,
}

/// What `rb_time_timespec_new` takes as the offset of a UTC time.
const UTC: i32 = i32::MAX - 1;

/// The Time for a column's value; for an infinity the String that the pg gem gives.
///
/// # Safety
///
/// Called with the GVL and inside `protect`.
pub unsafe fn build(ruby: &Ruby, timestamp: Timestamp, zone: Zone) -> Result<VALUE, Error> {
    use magnus::rb_sys::AsRawValue;

    let Some((seconds, microseconds)) = timestamp.since_1970() else {
        let text = if timestamp.microseconds > 0 {
            "infinity"
        } else {
            "-infinity"
        };
        return Ok(ruby.str_new(text).as_raw());
    };
    if zone == Zone::Local && !timestamp.with_time_zone {
        return local(ruby, timestamp).map(|time| time.as_raw());
    }
    let instant = timespec {
        tv_sec: seconds,
        tv_nsec: i64::from(microseconds) * 1000,
    };
    // The session's offset for a `timestamptz`, else UTC.
    let offset = if timestamp.with_time_zone { 0 } else { UTC };
    // SAFETY: the pointer is valid for the call; the caller holds the GVL.
    Ok(unsafe { rb_time_timespec_new(&raw const instant, offset) })
}

/// Ruby's own reading of a wall clock, daylight saving included.
fn local(ruby: &Ruby, timestamp: Timestamp) -> Result<Value, Error> {
    let ([year, month, day, hour, minute, second], microseconds) =
        timestamp.civil().unwrap_or_default();
    ruby.class_time().funcall(
        "local",
        (year, month, day, hour, minute, second, microseconds),
    )
}
