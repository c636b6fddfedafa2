//! The trace of a run.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;

/// How much of what happened last is kept.
const LAST: usize = 300;

/// What of a run is written to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// Nothing.
    Nothing,
    /// The last events, when the world ends: for a run that breaks an invariant.
    Last,
    /// Everything that happens.
    All,
}

/// Writes what happens.
#[derive(Debug)]
pub struct Log {
    trace: Trace,
    last: RefCell<VecDeque<String>>,
}

impl Log {
    /// Nothing has happened yet.
    pub fn new(trace: Trace) -> Self {
        Self {
            trace,
            last: RefCell::default(),
        }
    }

    /// Something happened to `who`, so many nanoseconds after the beginning.
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
