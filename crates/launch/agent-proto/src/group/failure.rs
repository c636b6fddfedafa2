//! One failure: its cause and evidence.
//!
//! One form is for reports, the other for messages to other nodes.

mod record;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::diagnosis::{diagnose, traceback};
use super::evidence::{ErrorFile, Evidence};
use super::exit::{Exit, WorkerExit};
use rdzv_core::escape::escape;
use rdzv_core::signal;
use rdzv_core::time::Wall;
use record::Record;
pub use record::rfc3339;

/// Separator between the sentence for users and the JSON record.
const SEPARATOR: char = '\u{1e}';

/// One failure. Its JSON is one entry of the report file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Record", into = "Record")]
pub struct Failure {
    /// The cause.
    pub cause: Cause,
    /// Everything else that is known.
    pub evidence: Evidence,
}

/// JSON part of a message to other nodes.
#[derive(Serialize, Deserialize)]
struct Announcement {
    age_micros: u64,
    failure: Record,
}

impl Failure {
    /// Returns the failure of a worker that exited.
    /// `evidence` contains all other known facts about it.
    pub fn of_worker(ended: &WorkerExit, evidence: Evidence) -> Self {
        let mut evidence = Evidence {
            local_rank: Some(ended.local_rank),
            pid: Some(ended.pid),
            exit: Some(ended.exit),
            seen: Some(ended.at),
            stopped_by_agent: ended.stopped_by_agent,
            ..evidence
        };
        let recorded = evidence.error_file.as_ref().and_then(ErrorFile::traceback);
        let recorded = recorded.map(str::to_owned);
        evidence.traceback = recorded.or_else(|| traceback(&evidence.stderr_tail));
        Self {
            cause: diagnose(ended.exit, &evidence),
            evidence,
        }
    }

    /// Encodes the failure for the agents of other nodes.
    ///
    /// The text is a sentence followed by JSON, together at most `most` bytes. To fit, the encoding
    /// drops the older half of the stderr lines or the first half of the traceback, repeatedly. If
    /// the JSON still does not fit, the text is the sentence alone, whatever its length. The JSON
    /// includes the age at `now`, because the clocks of nodes differ and durations do not.
    pub fn encode(&self, sentence: &str, now: Wall, most: usize) -> String {
        let age = now.since(self.evidence.seen.unwrap_or(now));
        let mut announcement = Announcement {
            age_micros: u64::try_from(age.as_micros()).unwrap_or(u64::MAX),
            failure: self.clone().into(),
        };
        let room = most.saturating_sub(sentence.len() + SEPARATOR.len_utf8());
        loop {
            let json = serde_json::to_string(&announcement)
                .expect("a record has text keys only, so it is JSON");
            if json.len() <= room {
                return format!("{sentence}{SEPARATOR}{json}");
            }
            if !announcement.failure.shorten() {
                return sentence.to_owned();
            }
        }
    }

    /// Decodes a text of [`Failure::encode`].
    /// Returns the sentence, and the failure with its age if the text has a valid record. All
    /// contents are escaped, because any peer may have written the text.
    pub fn decode(text: &str) -> (String, Option<(Self, Duration)>) {
        let Some((sentence, json)) = text.split_once(SEPARATOR) else {
            return (escape(text), None);
        };
        let failure = serde_json::from_str(json).ok().map(|sent: Announcement| {
            let age = Duration::from_micros(sent.age_micros);
            (sent.failure.into(), age)
        });
        (escape(sentence), failure)
    }

    /// Describes the worker's exit in one sentence, for users on other nodes.
    pub fn sentence(&self) -> String {
        let number = |rank: Option<u32>| rank.unwrap_or_default();
        let evidence = &self.evidence;
        let how = match evidence.exit {
            Some(Exit::Code(code)) => format!("exited with code {code}"),
            Some(Exit::Signal(signal)) => format!("was killed by signal {signal}"),
            None => "failed".to_owned(),
        };
        let why = match &self.cause {
            Cause::ExitCode { .. } | Cause::Signal { .. } => String::new(),
            cause => format!(": {cause}"),
        };
        format!(
            "worker (rank {}, local rank {}, pid {}) {how}{why}",
            number(evidence.rank.map(|rank| rank.0)),
            number(evidence.local_rank.map(|rank| rank.0)),
            number(evidence.pid)
        )
    }

    /// Returns the time of the failure as reports show it.
    /// The form is RFC 3339 with microseconds; empty if the time is unknown.
    pub fn time(&self) -> String {
        self.evidence.seen.map_or_else(String::new, rfc3339)
    }

    /// `true` if the agent stopped the worker after another failure.
    pub fn was_stopped(&self) -> bool {
        self.cause.kind() == "stopped_by_agent"
    }
}

/// Identity of the failed worker or node, as part of a sentence.
///
/// For example: `rank 5 (local rank 1, pid 4243, exit code 1) on node-b`.
impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence = &self.evidence;
        let Some(rank) = evidence.rank else {
            return write!(formatter, "node {}", evidence.host);
        };
        write!(formatter, "rank {rank} (")?;
        if let Some(local_rank) = evidence.local_rank {
            write!(formatter, "local rank {local_rank}")?;
        }
        if let Some(pid) = evidence.pid {
            write!(formatter, ", pid {pid}")?;
        }
        match evidence.exit {
            Some(Exit::Signal(number)) => write!(formatter, ", {}", signal::in_words(number))?,
            Some(Exit::Code(code)) => write!(formatter, ", exit code {code}")?,
            None => {}
        }
        write!(formatter, ") on {}", evidence.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdzv_core::rank::{GroupRank, LocalRank, Rank};

    fn failure() -> Failure {
        Failure {
            cause: Cause::exception("ValueError: boom"),
            evidence: Evidence {
                host: "node-b".to_owned(),
                group_rank: Some(GroupRank(1)),
                role: "default".to_owned(),
                rank: Some(Rank(5)),
                local_rank: Some(LocalRank(1)),
                pid: Some(4243),
                exit: Some(Exit::Code(7)),
                seen: Some(Wall::from_unix_micros(1_936_854_489_000_001)),
                traceback: Some("Traceback\n".repeat(300)),
                stderr_tail: (0..300).map(|line| format!("line {line}")).collect(),
                ..Evidence::default()
            },
        }
    }

    #[test]
    fn a_record_travels_within_its_bounds() {
        let (failure, age) = (failure(), Duration::from_millis(7));
        let now = Wall::from_unix_micros(1_936_854_489_007_001);
        let sent = failure.encode("worker 5 failed", now, 1 << 20);
        assert_eq!(
            Failure::decode(&sent),
            ("worker 5 failed".to_owned(), Some((failure.clone(), age)))
        );
        for most in [300, 1_000, 4_000] {
            let sent = failure.encode("s", now, most);
            assert!(sent.len() <= most, "{most}");
        }
        let sent = failure.encode("s", now, 1_000);
        let (short, _) = Failure::decode(&sent).1.unwrap();
        assert_eq!(short.cause, failure.cause);
        let (short, whole) = (short.evidence.stderr_tail, failure.evidence.stderr_tail);
        assert_eq!(short.last(), whole.last());
    }

    #[test]
    fn a_text_that_holds_no_record_is_a_sentence() {
        assert_eq!(Failure::decode("plain"), ("plain".to_owned(), None));
        assert_eq!(Failure::decode("a\u{1e}{]"), ("a".to_owned(), None));
        let text = "a\u{1e}{\"age_micros\":1,\"failure\":{\"cause\":{\"text\":\"x\\ny\"}}}";
        let (failure, _) = Failure::decode(text).1.unwrap();
        assert_eq!(failure.cause.to_string(), "x…");
    }

    #[test]
    fn times_have_microseconds_and_people_get_a_sentence() {
        let failure = failure();
        assert_eq!(failure.time(), "2031-05-18T07:08:09.000001Z");
        assert_eq!(
            failure.to_string(),
            "rank 5 (local rank 1, pid 4243, exit code 7) on node-b"
        );
        let lost = Failure {
            cause: Cause::reported(String::new(), ""),
            evidence: Evidence {
                host: "node-c".to_owned(),
                ..Evidence::default()
            },
        };
        assert_eq!(lost.to_string(), "node node-c");
    }
}
