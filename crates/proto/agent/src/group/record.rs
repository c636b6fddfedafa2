//! A failure as it is written down: in the report file, and for the agents of other nodes.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::cause::{Cause, one_line};
use rdzv_core::signal;
use rdzv_core::time::Wall;

/// Separates the sentence for people from the record behind it, where both travel in one text.
const SEPARATOR: char = '\u{1e}';

/// One failure. Everything that may be unknown may be missing: of a node that was lost, only the
/// node is known.
///
/// As JSON this is one entry of the report file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureRecord {
    /// The node that it happened on.
    pub host: String,
    /// That node's rank among the agents.
    pub group_rank: Option<u32>,
    /// The worker's role.
    pub role: String,
    /// Its global rank.
    pub rank: Option<u32>,
    /// Its local rank.
    pub local_rank: Option<u32>,
    /// Its process id.
    pub pid: Option<u32>,
    /// Its exit code; negative: minus the signal that ended it.
    pub exit_code: Option<i32>,
    /// When its end was seen, by the clock of its node: RFC 3339 with microseconds.
    pub time: String,
    /// Why.
    pub cause: CauseRecord,
    /// What its error file, or the end of its stderr, has of a traceback.
    pub traceback: Option<String>,
    /// The last lines of its stderr, oldest first, where they are in the agent's hands.
    pub stderr_tail: Vec<String>,
    /// Its error file, if it left one.
    pub error_file: Option<String>,
}

/// What travels.
#[derive(Serialize, Deserialize)]
struct Told {
    age_micros: u64,
    failure: FailureRecord,
}

/// A [`Cause`] as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseRecord {
    /// [`Cause::kind`].
    pub kind: String,
    /// Its text: one line.
    pub text: String,
}

impl From<&Cause> for CauseRecord {
    fn from(cause: &Cause) -> Self {
        Self {
            kind: cause.kind().to_owned(),
            text: cause.to_string(),
        }
    }
}

/// A time as records have it.
pub fn time(at: Wall) -> String {
    let at = Timestamp::from_microsecond(at.unix_micros()).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.6}")
}

impl FailureRecord {
    /// The record in a text for the agents of other nodes: a sentence, and JSON behind it, together
    /// at most `most` bytes. What does not fit is left out of the older end of its long parts.
    ///
    /// `age` is how long ago it happened. Clocks of nodes differ, durations do not: whoever hears of
    /// it at once knows by its own clock when it was.
    pub fn told(&self, sentence: &str, age: Duration, most: usize) -> String {
        let mut told = Told {
            age_micros: u64::try_from(age.as_micros()).unwrap_or(u64::MAX),
            failure: self.clone(),
        };
        let room = most.saturating_sub(sentence.len() + SEPARATOR.len_utf8());
        loop {
            let json =
                serde_json::to_string(&told).expect("a record has text keys only, so it is JSON");
            if json.len() <= room {
                return format!("{sentence}{SEPARATOR}{json}");
            }
            if !told.failure.shorten() {
                return sentence.to_owned();
            }
        }
    }

    /// Leaves out half of its longest part; false if nothing is left to leave out.
    fn shorten(&mut self) -> bool {
        let tail: usize = self.stderr_tail.iter().map(String::len).sum();
        let traceback = self.traceback.as_ref().map_or(0, String::len);
        if tail == 0 && traceback == 0 {
            return false;
        }
        if tail >= traceback {
            let half = self.stderr_tail.len().div_ceil(2);
            self.stderr_tail.drain(..half);
        } else if let Some(text) = self.traceback.take().filter(|text| text.len() > 80) {
            let middle = text.ceil_char_boundary(text.len() / 2);
            self.traceback = Some(format!("…{}", &text[middle..]));
        }
        true
    }

    /// Takes a text of [`FailureRecord::told`] apart: the sentence, the record and its age. The text
    /// may come from anywhere: whatever is no record is none.
    pub fn heard(text: &str) -> (&str, Option<(Self, Duration)>) {
        let Some((sentence, json)) = text.split_once(SEPARATOR) else {
            return (text, None);
        };
        let record = serde_json::from_str(json).ok().map(|told: Told| {
            let mut failure = told.failure;
            failure.cause.text = one_line(&failure.cause.text);
            (failure, Duration::from_micros(told.age_micros))
        });
        (sentence, record)
    }

    /// Whether the agent ended the worker because of something else.
    pub fn was_stopped(&self) -> bool {
        self.cause.kind == "stopped_by_agent"
    }
}

/// Who, in a sentence: `rank 5 (local rank 1, pid 4243) on node-b`.
impl fmt::Display for FailureRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rank) = self.rank else {
            return write!(formatter, "node {}", self.host);
        };
        write!(formatter, "rank {rank} (")?;
        if let Some(local_rank) = self.local_rank {
            write!(formatter, "local rank {local_rank}")?;
        }
        if let Some(pid) = self.pid {
            write!(formatter, ", pid {pid}")?;
        }
        match self.exit_code {
            Some(code) if code < 0 => {
                write!(formatter, ", {}", signal::in_words(code.saturating_neg()))?;
            }
            Some(code) => write!(formatter, ", exit code {code}")?,
            None => {}
        }
        write!(formatter, ") on {}", self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> FailureRecord {
        FailureRecord {
            host: "node-b".to_owned(),
            group_rank: Some(1),
            role: "default".to_owned(),
            rank: Some(5),
            local_rank: Some(1),
            pid: Some(4243),
            exit_code: Some(7),
            time: time(Wall::from_unix_micros(1_936_854_489_000_001)),
            cause: CauseRecord::from(&Cause::exception("ValueError: boom")),
            traceback: Some("Traceback\n".repeat(300)),
            stderr_tail: (0..300).map(|line| format!("line {line}")).collect(),
            error_file: None,
        }
    }

    #[test]
    fn a_record_travels_within_its_bounds() {
        let (record, age) = (record(), Duration::from_millis(7));
        let told = record.told("worker 5 failed", age, 1 << 20);
        assert_eq!(
            FailureRecord::heard(&told),
            ("worker 5 failed", Some((record.clone(), age)))
        );
        for most in [300, 1_000, 4_000] {
            let told = record.told("s", age, most);
            assert!(told.len() <= most, "{most}");
        }
        let told = record.told("s", age, 1_000);
        let (short, _) = FailureRecord::heard(&told).1.unwrap();
        assert_eq!(short.cause, record.cause);
        assert_eq!(short.stderr_tail.last(), record.stderr_tail.last());
    }

    #[test]
    fn a_text_that_holds_no_record_is_a_sentence() {
        assert_eq!(FailureRecord::heard("plain"), ("plain", None));
        assert_eq!(FailureRecord::heard("a\u{1e}{]"), ("a", None));
        let text = "a\u{1e}{\"age_micros\":1,\"failure\":{\"cause\":{\"text\":\"x\\ny\"}}}";
        let (record, _) = FailureRecord::heard(text).1.unwrap();
        assert_eq!(record.cause.text, "x…");
    }

    #[test]
    fn times_have_microseconds_and_people_get_a_sentence() {
        let record = record();
        assert_eq!(record.time, "2031-05-18T07:08:09.000001Z");
        assert_eq!(
            record.to_string(),
            "rank 5 (local rank 1, pid 4243, exit code 7) on node-b"
        );
        let lost = FailureRecord {
            host: "node-c".to_owned(),
            ..FailureRecord::default()
        };
        assert_eq!(lost.to_string(), "node node-c");
    }
}
