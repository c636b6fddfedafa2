//! The three calls that a pickle may make. Each has one form and one result, and runs no code but
//! this.
//!
//! ```text
//!   datetime(ten bytes)    datetime(ten bytes, zone)    timezone(duration)    timedelta(days, s, µs)
//! ```

use super::document::Item;
use super::time::Time;
use super::value::Class;

/// Days that Python's durations may have, in either direction.
const MOST_DAYS: i128 = 999_999_999;

const DAY: i128 = 86_400_000_000;

/// What `class` makes of the arguments; nothing if it makes nothing of such.
pub(super) fn call<'a>(class: Class, arguments: &[Item<'a>]) -> Option<Item<'a>> {
    match (class, arguments) {
        (Class::Datetime, [Item::Bytes(bytes)]) => {
            Time::shown_by(bytes).map(|shown| Item::Time(Time { shown, zone: None }))
        }
        (Class::Datetime, [Item::Bytes(bytes), Item::Zone(offset)]) => {
            Time::shown_by(bytes).map(|shown| {
                let zone = Some(*offset);
                Item::Time(Time { shown, zone })
            })
        }
        (Class::Timezone, [Item::Span(offset)]) => {
            let within_a_day = offset.abs() < DAY;
            let offset = i64::try_from(*offset).ok().filter(|_| within_a_day);
            offset.map(Item::Zone)
        }
        (Class::Timedelta, [Item::Int(days), Item::Int(seconds), Item::Int(micros)]) => {
            span(*days, *seconds, *micros).map(Item::Span)
        }
        _ => None,
    }
}

fn span(days: i128, seconds: i128, micros: i128) -> Option<i128> {
    let seconds = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    let whole = days.checked_mul(DAY)?.checked_add(seconds)?;
    (whole.div_euclid(DAY).abs() <= MOST_DAYS).then_some(whole)
}
