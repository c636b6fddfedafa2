//! Recorded history of real clients, one line for each event.
//!
//! A line contains nanoseconds, run, agent, event, and the details of the event.
//!
//! ```text
//! 1200 run-7 31 joins                  4400 run-7 31 leaves         5800 run-7 32 closes
//! 3100 run-7 31 joined 2 0 4           4500 run-7 31 left           6100 run-7 32 closed
//! 3300 run-7 33 refused closed|other   4600 run-7 32 asks           6200 run-7 33 succeeds 2
//! 3400 run-7 34 may-be-lost            4700 run-7 32 status open    6300 run-7 33 all-succeeded 2
//!                                                                   6400 run-7 34 over 2
//! ```

use std::collections::BTreeMap;
use std::str::SplitAsciiWhitespace;

use super::record::{Event, Record};
use super::run::{Agent, Assignment};
use crate::{Result, Violation};

/// Checks that each run of a recorded history is linearizable.
///
/// Returns the numbers of operations and of runs.
pub fn check(text: &str) -> Result<(usize, usize)> {
    let mut runs: BTreeMap<&str, Record> = BTreeMap::new();
    for line in text.lines() {
        let read = read(line);
        let (at, run, agent, event) =
            read.ok_or_else(|| Violation(format!("not a line of a history: '{line}'")))?;
        runs.entry(run).or_default().note(at, agent, event);
    }
    let mut operations = 0;
    for (run, record) in &runs {
        operations += record.operations.len();
        super::check(&record.operations).map_err(|it| Violation(format!("{run}: {}", it.0)))?;
    }
    Ok((operations, runs.len()))
}

/// Parses time, run, agent and event of a line; `None` if the line is invalid.
fn read(line: &str) -> Option<(u64, &str, Agent, Event)> {
    let mut words = line.split_ascii_whitespace();
    let at = number(&mut words)?;
    let run = words.next()?;
    let agent = number(&mut words)?;
    let event = event(&mut words)?;
    words.next().is_none().then_some((at, run, agent, event))
}

fn number<T: std::str::FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

fn event(words: &mut SplitAsciiWhitespace<'_>) -> Option<Event> {
    Some(match words.next()? {
        "joins" => Event::Joins,
        "joined" => Event::Joined(Assignment {
            round: number(words)?,
            rank: number(words)?,
            size: number(words)?,
        }),
        "refused" => Event::Refused {
            closed: word(words, "closed", "other")?,
        },
        "leaves" => Event::Leaves,
        "left" => Event::Left,
        "closes" => Event::Closes,
        "closed" => Event::Closed,
        "asks" => Event::Asks,
        "status" => Event::Status(word(words, "closed", "open")?),
        "succeeds" => Event::Succeeds(number(words)?),
        "all-succeeded" => Event::AllSucceeded(number(words)?),
        "over" => Event::IsOver(number(words)?),
        "may-be-lost" => Event::MayBeLost,
        _ => return None,
    })
}

/// Parses one of two words; `None` if the next word is neither.
fn word(words: &mut SplitAsciiWhitespace<'_>, yes: &str, no: &str) -> Option<bool> {
    let word = words.next()?;
    (word == yes || word == no).then_some(word == yes)
}

#[cfg(test)]
mod tests {
    use super::check;

    const RECORD: &str = "10 a 1 joins\n12 b 2 joins\n20 a 1 joined 0 0 1\n30 b 2 joined 0 0 1\n\
        35 b 2 succeeds 0\n37 b 2 all-succeeded 0\n40 a 1 closes\n44 a 1 closed\n";

    #[test]
    fn runs_are_looked_at_for_themselves() {
        let open = format!("{RECORD}50 b 3 asks\n55 b 3 status open\n60 b 2 leaves\n66 b 2 left");
        assert_eq!(check(&open), Ok((9, 2)));

        let wrong = format!("{RECORD}50 a 3 asks\n55 a 3 status open\n");
        let wrong = check(&wrong).unwrap_err();
        assert!(wrong.0.starts_with("a: INV-L1"), "{wrong:?}");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for line in [
            "10 a 1 jumps",
            "10 a one joins",
            "10 a 1 joined 0 0",
            "10 a 1 left now",
            "10 a 1 status maybe",
        ] {
            let error = check(line).unwrap_err();
            assert!(error.0.contains(line), "{error:?}");
        }
    }
}
