//! Reading the columns of a row as they come from the wire, without copying them.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use crate::error::Error;
use crate::statements::Returns;

/// A time column's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// Microseconds since 2000-01-01 00:00:00, as the server counts; `i64::MAX` and `i64::MIN` are the
    /// infinities.
    pub microseconds: i64,
    /// Whether the column is a `timestamptz`: then it counts from midnight UTC, else from midnight in a zone
    /// that the column does not name.
    pub with_time_zone: bool,
}

/// Seconds between 1970-01-01 and 2000-01-01.
const EPOCH_2000: i64 = 946_684_800;

impl Timestamp {
    /// Whole seconds since 1970-01-01 and the microseconds beyond them, or `None` for an infinity.
    pub fn since_1970(&self) -> Option<(i64, u32)> {
        if matches!(self.microseconds, i64::MAX | i64::MIN) {
            return None;
        }
        let seconds = self.microseconds.div_euclid(1_000_000) + EPOCH_2000;
        // The remainder is below 1,000,000.
        let beyond = self.microseconds.rem_euclid(1_000_000) as u32;
        Some((seconds, beyond))
    }

    /// Year, month, day, hour, minute and second of a clock on the wall, and the microseconds beyond them,
    /// or `None` for an infinity.
    pub fn civil(&self) -> Option<([i64; 6], u32)> {
        let (seconds, beyond) = self.since_1970()?;
        let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(day);
        Some((
            [
                year,
                month,
                day,
                second / 3600,
                second / 60 % 60,
                second % 60,
            ],
            beyond,
        ))
    }
}

/// The proleptic Gregorian date of a day counted from 1970-01-01, by Howard Hinnant's `civil_from_days`.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The columns of a record, in the order in which every statement returns them.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// `member_id`
    pub member_id: Option<&'a [u8]>,
    /// `metadata`, JSON text
    pub metadata: Option<&'a [u8]>,
    /// `joined_at`
    pub joined_at: Option<Timestamp>,
    /// `last_seen_at`
    pub last_seen_at: Option<Timestamp>,
    /// What only a table with seats has.
    pub seat: Option<SeatColumns<'a>>,
    /// `stream_name`, where the statement spans streams.
    pub stream_name: Option<&'a [u8]>,
}

/// The columns that `add_presence_seats` adds.
#[derive(Debug, Clone, Copy)]
pub struct SeatColumns<'a> {
    /// `connection_id`
    pub connection_id: Option<&'a [u8]>,
    /// `seat`
    pub seat: Option<&'a [u8]>,
    /// `state`, JSON text
    pub state: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// Reads a row of a statement that returns records, of the kind that it says.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] if the row is not such a row.
    pub fn read(row: &'a Row, returns: Returns) -> Result<Record<'a>, Error> {
        Ok(Record {
            member_id: bytes(row, 0)?,
            metadata: bytes(row, 1)?,
            joined_at: time(row, 2)?,
            last_seen_at: time(row, 3)?,
            seat: match returns {
                Returns::Seats | Returns::StreamSeats => Some(SeatColumns {
                    connection_id: bytes(row, 4)?,
                    seat: bytes(row, 5)?,
                    state: bytes(row, 6)?,
                }),
                _ => None,
            },
            stream_name: match returns {
                Returns::StreamSeats => bytes(row, 7)?,
                _ => None,
            },
        })
    }
}

/// Reads the first column as text.
///
/// # Errors
///
/// [`Error::Protocol`] if there is no such column.
pub fn text(row: &Row) -> Result<Option<&[u8]>, Error> {
    bytes(row, 0)
}

/// Reads the first column as a number.
///
/// # Errors
///
/// [`Error::Protocol`] if it is not an `int8`.
pub fn number(row: &Row) -> Result<i64, Error> {
    row.try_get(0).map_err(|error| unexpected(&error))
}

/// The number of the request that a row of a batch answers, counted from 0: the last column, from 1.
pub(crate) fn request_number(row: &Row) -> Result<usize, Error> {
    let last = row.len().saturating_sub(1);
    let number: i64 = row.try_get(last).map_err(|error| unexpected(&error))?;
    usize::try_from(number - 1)
        .map_err(|_| Error::Protocol(format!("a batch has no request {number}")))
}

fn bytes(row: &Row, column: usize) -> Result<Option<&[u8]>, Error> {
    row.try_get::<_, Option<Raw>>(column)
        .map(|raw| raw.map(|Raw(bytes)| bytes))
        .map_err(|error| unexpected(&error))
}

fn time(row: &Row, column: usize) -> Result<Option<Timestamp>, Error> {
    row.try_get(column).map_err(|error| unexpected(&error))
}

fn unexpected(error: &tokio_postgres::Error) -> Error {
    Error::Protocol(format!("unexpected column from the server: {error}"))
}

struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(
        _: &Type,
        raw: &'a [u8],
    ) -> Result<Raw<'a>, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Raw(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl<'a> FromSql<'a> for Timestamp {
    fn from_sql(
        ty: &Type,
        raw: &'a [u8],
    ) -> Result<Timestamp, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Timestamp {
            microseconds: i64::from_be_bytes(raw.try_into()?),
            with_time_zone: *ty == Type::TIMESTAMPTZ,
        })
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::TIMESTAMP | Type::TIMESTAMPTZ)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: i64) -> Timestamp {
        Timestamp {
            microseconds,
            with_time_zone: false,
        }
    }

    #[test]
    fn counts_from_1970_on_both_sides() {
        assert_eq!(at(0).since_1970(), Some((946_684_800, 0)));
        assert_eq!(at(-1).since_1970(), Some((946_684_799, 999_999)));
        assert_eq!(at(-946_684_800_000_001).since_1970(), Some((-1, 999_999)));
    }

    #[test]
    fn infinities_are_no_times() {
        assert_eq!(at(i64::MAX).since_1970(), None);
        assert_eq!(at(i64::MIN).civil(), None);
    }

    #[test]
    fn reads_the_wall_clock() {
        assert_eq!(at(0).civil(), Some(([2000, 1, 1, 0, 0, 0], 0)));
        assert_eq!(at(-1).civil(), Some(([1999, 12, 31, 23, 59, 59], 999_999)));
        let leap_day = (59 * 86_400 + 3 * 3600 + 4 * 60 + 5) * 1_000_000 + 6;
        assert_eq!(at(leap_day).civil(), Some(([2000, 2, 29, 3, 4, 5], 6)));
    }
}
