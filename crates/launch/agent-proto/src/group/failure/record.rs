//! JSON form of a failure. Its keys, their order and formats are public.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Cause, ErrorFile, Evidence, Exit, Failure};
use rdzv_core::escape::{escape, escape_lines};
use rdzv_core::rank::{GroupRank, LocalRank, Rank};
use rdzv_core::time::Wall;

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    host: String,
    group_rank: Option<u32>,
    role: String,
    rank: Option<u32>,
    local_rank: Option<u32>,
    pid: Option<u32>,
    /// Exit code; a negative number is minus the signal that killed the worker.
    exit_code: Option<i32>,
    /// Time of the failure, RFC 3339 with microseconds.
    time: String,
    cause: CauseRecord,
    traceback: Option<String>,
    stderr_tail: Vec<String>,
    error_file: Option<String>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct CauseRecord {
    kind: String,
    text: String,
}

/// Formats a time as RFC 3339 in UTC with microseconds, for reports and events.
pub fn rfc3339(at: Wall) -> String {
    let at = Timestamp::from_microsecond(at.unix_micros()).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.6}")
}

impl Record {
    /// Halves the longer of stderr and traceback; `false` if both are used up.
    pub(super) fn shorten(&mut self) -> bool {
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
}

impl From<Failure> for Record {
    fn from(Failure { cause, evidence }: Failure) -> Self {
        Self {
            host: evidence.host,
            group_rank: evidence.group_rank.map(|rank| rank.0),
            role: evidence.role,
            rank: evidence.rank.map(|rank| rank.0),
            local_rank: evidence.local_rank.map(|rank| rank.0),
            pid: evidence.pid,
            exit_code: evidence.exit.map(Exit::as_number),
            time: evidence.seen.map_or_else(String::new, rfc3339),
            cause: CauseRecord {
                kind: cause.kind().to_owned(),
                text: cause.to_string(),
            },
            traceback: evidence.traceback,
            stderr_tail: evidence.stderr_tail,
            error_file: evidence
                .error_file
                .map(|file| file.path.display().to_string()),
        }
    }
}

/// Converts a record from another node, and escapes all its texts.
impl From<Record> for Failure {
    fn from(record: Record) -> Self {
        let seen = record.time.parse().ok();
        Self {
            cause: Cause::reported(escape(&record.cause.kind), &record.cause.text),
            evidence: Evidence {
                host: escape(&record.host),
                group_rank: record.group_rank.map(GroupRank),
                role: escape(&record.role),
                rank: record.rank.map(Rank),
                local_rank: record.local_rank.map(LocalRank),
                pid: record.pid,
                exit: record.exit_code.map(Exit::from_number),
                seen: seen.map(|at: Timestamp| Wall::from_unix_micros(at.as_microsecond())),
                traceback: record.traceback.map(|text| escape_lines(&text)),
                stderr_tail: record.stderr_tail.iter().map(|line| escape(line)).collect(),
                error_file: record.error_file.map(|path| ErrorFile {
                    path: escape(&path).into(),
                    content: Err("is on another node".to_owned()),
                }),
                ..Evidence::default()
            },
        }
    }
}
