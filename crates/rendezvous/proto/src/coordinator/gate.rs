//! The gate for the coordinator's outputs.
//!
//! The gate holds back each output that follows a record, until the record is saved. A process that
//! saves its record locally needs no gate: it writes the record before it applies the next output.
//! Voters replicate the record, which takes a round trip.

use std::collections::VecDeque;

use super::{Output, RunNote};

/// Queue of outputs, and the state of the record at its front.
#[derive(Debug, Default)]
pub struct Gate {
    queue: VecDeque<Output>,
    state: State,
    /// Number of the last record that was proposed.
    last: u64,
    /// `true` if records are no longer replicated.
    is_open: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// The record at the front of the queue was proposed under this number.
    Proposed(u64),
    /// The record was refused.
    Refused,
}

/// Next step of a [`Gate`].
#[derive(Debug, PartialEq, Eq)]
pub enum GateStep {
    /// Apply this output.
    Emit(Output),
    /// Propose this record; [`Gate::committed`] or [`Gate::refused`] follows.
    Propose {
        /// Number of the proposal.
        token: u64,
        /// The run.
        run: String,
        /// The run's record; `None` removes it.
        note: Option<RunNote>,
    },
    /// Wait: the queue is empty, or a record at its front is not committed.
    Wait,
}

impl Gate {
    /// Adds an output of the coordinator.
    pub fn push(&mut self, output: Output) {
        // Of consecutive records of one run, only the newest matters.
        if let (Output::Note { run, .. }, Some(Output::Note { run: last, .. })) =
            (&output, self.queue.back())
            && run == last
            && (self.queue.len() > 1 || self.state == State::Free)
        {
            self.queue.pop_back();
        }
        self.queue.push_back(output);
    }

    /// Returns the next step.
    pub fn advance(&mut self) -> GateStep {
        if self.state != State::Free && !self.is_open {
            return GateStep::Wait;
        }
        loop {
            match self.queue.front() {
                Some(Output::Note { .. }) if self.is_open => drop(self.queue.pop_front()),
                Some(Output::Note { run, note }) => {
                    self.last += 1;
                    self.state = State::Proposed(self.last);
                    let (token, run, note) = (self.last, run.clone(), note.clone());
                    return GateStep::Propose { token, run, note };
                }
                _ => {
                    return self
                        .queue
                        .pop_front()
                        .map_or(GateStep::Wait, GateStep::Emit);
                }
            }
        }
    }

    /// Releases the outputs that waited for a record that is now committed.
    pub fn committed(&mut self, token: u64) {
        if self.state == State::Proposed(token) {
            self.state = State::Free;
            self.queue.pop_front();
        }
    }

    /// Registers that a record was refused; [`Gate::retry`] proposes it again.
    pub fn refused(&mut self, token: u64) {
        if self.state == State::Proposed(token) {
            self.state = State::Refused;
        }
    }

    /// `true` if the record was refused.
    pub fn is_refused(&self) -> bool {
        self.state == State::Refused
    }

    /// Proposes a refused record again.
    pub fn retry(&mut self) {
        if self.state == State::Refused {
            self.state = State::Free;
        }
    }

    /// Drops all outputs, after the coordinator has stepped down.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.state = State::Free;
    }

    /// Stops holding outputs back.
    ///
    /// The process no longer participates in its group, so no voter replicates its records.
    pub fn open(&mut self) {
        self.is_open = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdzv_core::ident::ConnId;

    fn note(round: u64) -> Output {
        let note = RunNote {
            round,
            ..RunNote::default()
        };
        Output::Note {
            run: "run".to_owned(),
            note: Some(note),
        }
    }

    fn close(id: u32) -> Output {
        Output::Close(ConnId(id), String::new())
    }

    fn proposed(gate: &mut Gate) -> (u64, u64) {
        match gate.advance() {
            GateStep::Propose { token, note, .. } => (token, note.unwrap().round),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_from_a_note_waits_for_its_commit() {
        let mut gate = Gate::default();
        [close(0), note(1), close(1), note(2), close(2)]
            .into_iter()
            .for_each(|output| gate.push(output));
        assert_eq!(gate.advance(), GateStep::Emit(close(0)));
        let (token, round) = proposed(&mut gate);
        assert_eq!((round, gate.advance()), (1, GateStep::Wait));
        gate.committed(token + 1);
        assert_eq!(gate.advance(), GateStep::Wait);
        gate.committed(token);
        assert_eq!(gate.advance(), GateStep::Emit(close(1)));
        let (token, round) = proposed(&mut gate);
        gate.refused(token);
        assert_eq!((round, gate.advance()), (2, GateStep::Wait));
        gate.retry();
        let (again, _) = proposed(&mut gate);
        assert_ne!(again, token);
        gate.committed(again);
        assert_eq!(gate.advance(), GateStep::Emit(close(2)));
        assert_eq!(gate.advance(), GateStep::Wait);
    }

    #[test]
    fn of_notes_in_a_row_the_newest_is_proposed() {
        let mut gate = Gate::default();
        [note(1), note(2)]
            .into_iter()
            .for_each(|output| gate.push(output));
        let (token, round) = proposed(&mut gate);
        assert_eq!(round, 2);
        // A record that was proposed already is not withdrawn.
        [note(3), note(4)]
            .into_iter()
            .for_each(|output| gate.push(output));
        gate.committed(token);
        assert_eq!(proposed(&mut gate).1, 4);
    }

    #[test]
    fn nothing_is_left_of_a_coordinator_that_is_no_more() {
        let mut gate = Gate::default();
        [note(1), close(1)]
            .into_iter()
            .for_each(|output| gate.push(output));
        let (token, _) = proposed(&mut gate);
        gate.clear();
        gate.push(close(2));
        gate.committed(token);
        assert_eq!(gate.advance(), GateStep::Emit(close(2)));
    }
}
