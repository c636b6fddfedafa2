//! Trace of a run.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;

/// Maximum number of events that are kept.
const LAST: usize = 300;

/// Events of a run that are written to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// No events.
    Nothing,
    /// The last events, when the world ends: for a run that breaks an invariant.
    Last,
    /// All events.
    All,
}

/// Log of events.
#[derive(Debug)]
pub struct Log {
    trace: Trace,
    last: RefCell<VecDeque<String>>,
}

impl Log {
    /// Creates an empty log.
    pub fn new(trace: Trace) -> Self {
        Self {
            trace,
            last: RefCell::default(),
        }
    }

    /// Logs an event of `who`, at `nanos` nanoseconds after the beginning.
    pub fn write(&self, nanos: u64, who: impl Display, text: impl FnOnce() -> String) {
        if self.trace == Trace::Nothing {
            return;
        }
        let line = format!("{:>12.6} s  {who}  {}", nanos as f64 / 1e9, text());
        if self.trace == Trace::All {
            println!("{line}");
            return;
        }
        let mut last = self.last.borrow_mut();
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(line);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        for line in self.last.get_mut() {
            println!("{line}");
        }
    }
}
