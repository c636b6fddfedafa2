//! What of a run is shown, and how.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::participant::Input;

/// How much of what happened last is kept.
const LAST: usize = 300;

/// What of a run is written to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// Nothing.
    Nothing,
    /// What happened last, if an invariant was broken.
    Last,
    /// Everything that happens.
    All,
}

/// Writes what happens.
#[derive(Debug)]
pub struct Teller {
    trace: Trace,
    last: RefCell<VecDeque<String>>,
}

impl Teller {
    /// Nothing has happened yet.
    pub fn new(trace: Trace) -> Self {
        Self {
            trace,
            last: RefCell::default(),
        }
    }

    /// Whether anybody wants to know.
    pub fn is_on(&self) -> bool {
        self.trace != Trace::Nothing
    }

    /// Something happened to `who`, so many nanoseconds after the beginning.
    pub fn tell(&self, nanos: u64, who: impl Display, text: impl FnOnce() -> String) {
        if !self.is_on() {
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

    /// Writes what happened last, if it is not written already.
    pub fn tell_last(&self) {
        for line in self.last.borrow().iter() {
            println!("{line}");
        }
    }
}

/// What an agent is told.
pub fn shown(input: &Input) -> String {
    match input {
        Input::Read(Some(state)) => format!("read {}", brief(state)),
        Input::Written {
            state: Some(state),
            won,
        } => format!("won {won}, {}", brief(state)),
        other => format!("{other:?}"),
    }
}

/// The state in one line.
pub fn brief(state: &RendezvousState) -> String {
    let names = |nodes: Vec<String>| nodes.join(" ");
    format!(
        "round {}{}{}{} in [{}] wait [{}] surplus [{}]",
        state.round,
        if state.complete { " complete" } else { "" },
        if state.closed { " closed" } else { "" },
        state
            .deadline
            .map(|deadline| format!(" deadline {}", deadline.unix_micros() % 1_000_000_000))
            .unwrap_or_default(),
        names(
            state
                .participants
                .iter()
                .map(|(node, rank)| format!("{node}:{rank}"))
                .collect()
        ),
        names(state.wait_list.iter().map(ToString::to_string).collect()),
        names(
            state
                .redundancy_list
                .iter()
                .map(ToString::to_string)
                .collect()
        ),
    )
}
