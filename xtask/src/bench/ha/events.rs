//! The events that the agent of a node has written (`--events-file`).

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// One event.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// Nanoseconds since the epoch.
    pub(super) time: u64,
    pub(super) name: String,
    pub(super) fields: Value,
}

/// All events in a file, in their order. A file that is not there yet has none.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Event>> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(Vec::new());
    };
    // An agent that is killed leaves no half line: each is written in one piece.
    text.lines().map(event).collect()
}

fn event(line: &str) -> anyhow::Result<Event> {
    let mut value: Value =
        serde_json::from_str(line).with_context(|| format!("an event reads '{line}'"))?;
    let time = value["time"].as_str().and_then(nanoseconds);
    Ok(Event {
        time: time.with_context(|| format!("an event has no time: {line}"))?,
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        fields: value["fields"].take(),
    })
}

/// Of a time like `2031-05-06T07:08:08.125001Z`.
fn nanoseconds(text: &str) -> Option<u64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<u64>);
    let mut next = || date.next()?.ok();
    let (year, month, day) = (next()?, next()?, next()?);
    let mut clock = clock.split(':');
    let hours: u64 = clock.next()?.parse().ok()?;
    let minutes: u64 = clock.next()?.parse().ok()?;
    let seconds: f64 = clock.next()?.parse().ok()?;
    let whole = (days(year, month, day)? * 24 + hours) * 60 + minutes;
    Some(whole * 60_000_000_000 + (seconds * 1e9).round() as u64)
}

/// Days from the epoch to a date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) > leaps(year - 1) && month > 2;
    let before = BEFORE.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    Some(years + before + u64::from(is_leap) + day - 1)
}

/// The event of the first round that this node is in after a time.
pub(super) fn formed(events: &[Event], after: u64) -> Option<&Event> {
    let mut later = events.iter().filter(|event| event.time > after);
    later.find(|event| event.name == "rendezvous" && event.fields["error"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        assert_eq!(nanoseconds("1970-01-01T00:00:00.000001Z"), Some(1_000));
        let seconds = 1_709_251_199;
        assert_eq!(
            nanoseconds("2024-02-29T23:59:59.500000Z"),
            Some(seconds * 1_000_000_000 + 500_000_000)
        );
        assert_eq!(
            nanoseconds("2024-03-01T00:00:00.000000Z"),
            Some((seconds + 1) * 1_000_000_000)
        );
        assert_eq!(nanoseconds("yesterday"), None);
    }
}
