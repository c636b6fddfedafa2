//! PyTorch's file-based watchdog: timers that workers set for themselves.
//!
//! A client writes one line of JSON per request to a named pipe:
//!
//! ```text
//! {"version": 1, "pid": 4242, "scope_id": "a.py#17", "expiration_time": 1790000123.5, "signal": 9}
//! ```
//!
//! `expiration_time` is in seconds since the Unix epoch; a negative value releases the timer. A
//! `signal` of 0 or less never kills.
//!
//! The choice of the timer follows PyTorch. Among the expired timers of a process, the earliest one
//! with a positive signal counts. Then all timers of that process are forgotten. The consequence is
//! rdzv's: the worker that the process belongs to receives the signal, and fails.
//!
//! The wall time in a line is converted to a monotonic time when the line arrives. Therefore
//! setting the clock neither kills nor spares a worker.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use rdzv_core::escape::escape;
use rdzv_core::time::{Mono, Now, Wall};

/// Maximum number of stored timers.
/// Without this limit, a client that never releases its timers could fill the agent's memory.
pub const MOST_TIMERS: usize = 10_000;

/// One timer as its client sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTimer {
    /// Process that set the timer: a worker, or a descendant of one.
    pub pid: u32,
    /// Name of the timed section, given by the process; by default file and line.
    pub scope: String,
    /// Expiry time.
    pub expires: Wall,
    /// Signal that the worker receives at the expiry; 0 or less means none.
    pub signal: i32,
}

/// A parsed line of the pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerRequest {
    /// Set this timer; it replaces a timer of the same process and scope.
    Acquire(FileTimer),
    /// Forget the timer of this process and scope.
    Release {
        /// Process of the timer.
        pid: u32,
        /// Scope of the timer.
        scope: String,
    },
}

#[derive(Deserialize)]
struct Written {
    pid: u32,
    scope_id: String,
    expiration_time: f64,
    signal: i32,
}

impl TimerRequest {
    /// Parses one line.
    ///
    /// # Errors
    ///
    /// Returns the line's fault in one sentence.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let written: Written = serde_json::from_slice(line)
            .map_err(|error| format!("not a timer request: {error}"))?;
        let (pid, scope) = (written.pid, escape(&written.scope_id));
        if written.expiration_time < 0.0 {
            return Ok(Self::Release { pid, scope });
        }
        Ok(Self::Acquire(FileTimer {
            pid,
            scope,
            // A time beyond the type's range saturates, and the timer never expires.
            #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
            expires: Wall::from_unix_micros((written.expiration_time * 1e6).round() as i64),
            signal: written.signal,
        }))
    }
}

/// A process with an expired timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// The process.
    pub pid: u32,
    /// Expired timers of the process by time, up to the one that counts.
    pub examined: Vec<FileTimer>,
    /// `true` if the last of these timers kills the worker; otherwise none does.
    pub kills: bool,
    /// Time since the last of these timers expired.
    pub late: Duration,
}

/// All timers of a node.
#[derive(Debug, Default)]
pub struct Timers {
    running: BTreeMap<(u32, String), (Mono, FileTimer)>,
}

impl Timers {
    /// Applies a request.
    ///
    /// # Errors
    ///
    /// Returns one sentence if the timer is new and there are [`MOST_TIMERS`] already.
    pub fn request(&mut self, now: Now, request: TimerRequest) -> Result<(), String> {
        match request {
            TimerRequest::Release { pid, scope } => {
                self.running.remove(&(pid, scope));
            }
            TimerRequest::Acquire(timer) => {
                let key = (timer.pid, timer.scope.clone());
                if self.running.len() >= MOST_TIMERS && !self.running.contains_key(&key) {
                    return Err(format!(
                        "timer {:?} of process {} is ignored: the limit of {MOST_TIMERS} timers is \
                         reached",
                        timer.scope, timer.pid
                    ));
                }
                let due = now.mono + timer.expires.since(now.wall);
                self.running.insert(key, (due, timer));
            }
        }
        Ok(())
    }

    /// Returns the time at which the next timer expires.
    pub fn deadline(&self) -> Option<Mono> {
        self.running.values().map(|(due, _)| *due).min()
    }

    /// Returns the processes with expired timers, and forgets all their timers.
    pub fn expired(&mut self, now: Now) -> Vec<Expiry> {
        let mut by_process: BTreeMap<u32, Vec<(Mono, FileTimer)>> = BTreeMap::new();
        for (due, timer) in self.running.values().filter(|(due, _)| *due <= now.mono) {
            let timers = by_process.entry(timer.pid).or_default();
            timers.push((*due, timer.clone()));
        }
        by_process
            .into_iter()
            .map(|(pid, mut timers)| {
                self.forget(pid);
                timers.sort_by_key(|(due, timer)| (*due, timer.expires));
                let fatal = timers.iter().position(|(_, timer)| timer.signal > 0);
                timers.truncate(fatal.map_or(timers.len(), |index| index + 1));
                let late = timers
                    .last()
                    .map_or(Duration::ZERO, |(due, _)| now.mono.since(*due));
                Expiry {
                    pid,
                    examined: timers.into_iter().map(|(_, timer)| timer).collect(),
                    kills: fatal.is_some(),
                    late,
                }
            })
            .collect()
    }

    /// Forgets the timers of a process.
    pub fn forget(&mut self, pid: u32) {
        self.running.retain(|(owner, _), _| *owner != pid);
    }

    /// Forgets all timers, because their processes have exited.
    pub fn clear(&mut self) {
        self.running.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Now {
        Now {
            mono: Mono::ZERO + Duration::from_secs(u64::try_from(seconds).unwrap()),
            wall: Wall::from_unix_micros((1000 + seconds) * 1_000_000),
        }
    }

    fn timer(pid: u32, scope: &str, expires: i64, signal: i32) -> FileTimer {
        FileTimer {
            pid,
            scope: scope.to_owned(),
            expires: at(expires).wall,
            signal,
        }
    }

    fn with(timers: &[FileTimer]) -> Timers {
        let mut all = Timers::default();
        for timer in timers {
            let request = TimerRequest::Acquire(timer.clone());
            all.request(at(0), request).unwrap();
        }
        all
    }

    #[test]
    fn a_line_is_read_as_pytorch_writes_it() {
        let line = br#"{"version": 1, "pid": 4242, "scope_id": "train.py#17", "expiration_time": 1790000123.5, "signal": 9}"#;
        let expected = FileTimer {
            pid: 4242,
            scope: "train.py#17".to_owned(),
            expires: Wall::from_unix_micros(1_790_000_123_500_000),
            signal: 9,
        };
        assert_eq!(
            TimerRequest::parse(line),
            Ok(TimerRequest::Acquire(expected))
        );
        let line =
            br#"{"version": 1, "pid": 7, "scope_id": "s", "expiration_time": -1, "signal": 0}"#;
        let release = TimerRequest::Release {
            pid: 7,
            scope: "s".to_owned(),
        };
        assert_eq!(TimerRequest::parse(line), Ok(release));
    }

    #[test]
    fn what_is_no_request_is_an_error_and_not_the_end() {
        for bad in [
            &b""[..],
            b"{",
            b"17",
            b"[]",
            b"\xff\xfe",
            br#"{"pid": -1, "scope_id": "s", "expiration_time": 1, "signal": 9}"#,
            br#"{"pid": 1, "scope_id": "s", "expiration_time": 1e999, "signal": 9}"#,
            br#"{"pid": 1, "scope_id": "s", "expiration_time": 1}"#,
        ] {
            assert!(TimerRequest::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_timer_that_is_released_or_renewed_in_time_never_expires() {
        let mut timers = with(&[timer(1, "a", 5, 9), timer(1, "b", 5, 9)]);
        let scope = "a".to_owned();
        let release = TimerRequest::Release { pid: 1, scope };
        timers.request(at(4), release).unwrap();
        let renewed = TimerRequest::Acquire(timer(1, "b", 8, 9));
        timers.request(at(4), renewed).unwrap();
        assert_eq!(timers.expired(at(7)), []);
        assert_eq!(timers.deadline(), Some(at(8).mono));
        let expired = timers.expired(at(8));
        assert_eq!(expired[0].examined, [timer(1, "b", 8, 9)]);
        assert!(expired[0].kills);
        assert_eq!(timers.deadline(), None);
    }

    #[test]
    fn the_first_expired_timer_with_a_signal_counts() {
        let mut timers = with(&[
            timer(1, "third", 3, 15),
            timer(1, "first", 1, 0),
            timer(1, "second", 2, 9),
            timer(1, "later", 100, 9),
            timer(2, "other", 100, 9),
        ]);
        let expired = timers.expired(at(10));
        assert_eq!(
            expired,
            [Expiry {
                pid: 1,
                examined: vec![timer(1, "first", 1, 0), timer(1, "second", 2, 9)],
                kills: true,
                late: Duration::from_secs(8),
            }]
        );
        assert_eq!(timers.deadline(), Some(at(100).mono));
        assert_eq!(timers.expired(at(100))[0].pid, 2);
    }

    #[test]
    fn a_timer_without_signal_only_speaks() {
        let mut timers = with(&[timer(1, "quiet", 1, 0), timer(1, "never", 1, -9)]);
        let expired = timers.expired(at(1));
        assert_eq!(expired.len(), 1);
        assert!(!expired[0].kills);
        assert_eq!(expired[0].examined.len(), 2);
        assert_eq!(timers.expired(at(2)), []);
    }

    #[test]
    fn a_clock_that_is_set_neither_kills_nor_spares() {
        let mut timers = with(&[timer(1, "a", 10, 9)]);
        let set_ahead = Now {
            mono: at(1).mono,
            wall: at(1_000_000).wall,
        };
        assert_eq!(timers.expired(set_ahead), []);
        let set_back = Now {
            mono: at(10).mono,
            wall: at(0).wall,
        };
        assert_eq!(timers.expired(set_back).len(), 1);
    }

    #[test]
    fn timers_that_nobody_releases_do_not_fill_the_agent() {
        let mut timers = Timers::default();
        for number in 0..MOST_TIMERS {
            let timer = timer(1, &number.to_string(), 5, 9);
            timers.request(at(0), TimerRequest::Acquire(timer)).unwrap();
        }
        let more = TimerRequest::Acquire(timer(1, "more", 5, 9));
        assert!(timers.request(at(0), more).is_err());
        let known = TimerRequest::Acquire(timer(1, "7", 6, 9));
        assert_eq!(timers.request(at(0), known), Ok(()));
    }
}
