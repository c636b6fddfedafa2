//! Dates and times in Python's form: ten bytes, and an optional UTC offset.
//!
//! ```text
//!   year (2, big-endian) | month | day | hour | minute | second | microsecond (3, big-endian)
//! ```
//!
//! The highest bit of the month distinguishes two equal readings of a clock that was set back. It
//! has no meaning for the times that agents write, so this module ignores it.

use jiff::SignedDuration;
use jiff::civil::DateTime;

use rdzv_core::time::Wall;

/// Python's first time, in microseconds after 1970.
const FIRST: i64 = -62_135_596_800_000_000;

/// Python's last time, in microseconds after 1970.
const LAST: i64 = 253_402_300_799_999_999;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// A date with a time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Microseconds from the beginning of 1970 to the time that the clock shows.
    pub shown: i64,
    /// Offset of the clock from UTC, in microseconds to the east.
    ///
    /// `None` for a naive time, which each reader interprets.
    pub zone: Option<i64>,
}

impl Time {
    /// Returns a time in UTC, clamped to Python's range.
    pub fn utc(wall: Wall, naive: bool) -> Self {
        Self {
            shown: wall.unix_micros().clamp(FIRST, LAST),
            zone: (!naive).then_some(0),
        }
    }

    /// Returns the time in UTC; a naive time counts as UTC.
    pub fn wall(self) -> Wall {
        Wall::from_unix_micros(self.shown.saturating_sub(self.zone.unwrap_or(0)))
    }

    /// Decodes Python's ten bytes; `None` if Python has no such day or time.
    pub(super) fn shown_by(bytes: &[u8]) -> Option<i64> {
        let &[y1, y0, month, day, hour, minute, second, m2, m1, m0] = bytes else {
            return None;
        };
        let year = i16::try_from(u16::from_be_bytes([y1, y0])).ok()?;
        let micros = i32::from_be_bytes([0, m2, m1, m0]);
        let part = |byte: u8| i8::try_from(byte).ok();
        let shown = DateTime::new(
            year,
            part(month & 0x7f)?,
            part(day)?,
            part(hour)?,
            part(minute)?,
            part(second)?,
            micros.checked_mul(1000)?,
        )
        .ok()?;
        let micros = i64::try_from(shown.duration_since(EPOCH).as_micros()).ok()?;
        (FIRST..=LAST).contains(&micros).then_some(micros)
    }

    /// Encodes the time as Python's ten bytes.
    pub(super) fn bytes(self) -> [u8; 10] {
        let since = SignedDuration::from_micros(self.shown.clamp(FIRST, LAST));
        let shown = EPOCH
            .checked_add(since)
            .expect("Python's years are within those of the calendar");
        let [y1, y0] = shown.year().to_be_bytes();
        let [_, m2, m1, m0] = (shown.subsec_nanosecond() / 1000).to_be_bytes();
        let [month, day] = [shown.month(), shown.day()].map(i8::cast_unsigned);
        let clock = [shown.hour(), shown.minute(), shown.second()];
        let [hour, minute, second] = clock.map(i8::cast_unsigned);
        [y1, y0, month, day, hour, minute, second, m2, m1, m0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_calendar_are_kept() {
        for (shown, bytes) in [
            (FIRST, [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]),
            (LAST, [0x27, 0x0f, 12, 31, 23, 59, 59, 0x0f, 0x42, 0x3f]),
            (0, [0x07, 0xb2, 1, 1, 0, 0, 0, 0, 0, 0]),
            (-1, [0x07, 0xb1, 12, 31, 23, 59, 59, 0x0f, 0x42, 0x3f]),
        ] {
            assert_eq!(Time { shown, zone: None }.bytes(), bytes);
            assert_eq!(Time::shown_by(&bytes), Some(shown));
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_becomes_its_end() {
        let late = Time::utc(Wall::from_unix_micros(i64::MAX), false);
        assert_eq!(late.wall(), Wall::from_unix_micros(LAST));
        let early = Time::utc(Wall::from_unix_micros(i64::MIN), true);
        assert_eq!(early.wall(), Wall::from_unix_micros(FIRST));
    }

    #[test]
    fn the_bit_for_a_clock_set_back_is_passed_over() {
        let plain = Time::shown_by(&[0x07, 0xea, 1, 2, 3, 4, 5, 0, 0, 0]);
        assert!(plain.is_some());
        let marked = Time::shown_by(&[0x07, 0xea, 0x81, 2, 3, 4, 5, 0, 0, 0]);
        assert_eq!(marked, plain);
    }

    #[test]
    fn what_no_calendar_has_is_no_time() {
        for bytes in [
            &[0x07, 0xea, 2, 30, 0, 0, 0, 0, 0, 0][..],
            &[0x07, 0xea, 13, 1, 0, 0, 0, 0, 0, 0],
            &[0x07, 0xea, 1, 1, 24, 0, 0, 0, 0, 0],
            &[0x07, 0xea, 1, 1, 0, 0, 0, 0xff, 0xff, 0xff],
            &[0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
            &[0xff, 0xff, 1, 1, 0, 0, 0, 0, 0, 0],
            &[0x07, 0xea, 1, 1],
            &[],
        ] {
            assert_eq!(Time::shown_by(bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn an_offset_is_taken_off() {
        let hour = 3_600_000_000;
        let time = Time {
            shown: hour,
            zone: Some(hour),
        };
        assert_eq!(time.wall(), Wall::from_unix_micros(0));
    }
}
