//! The coordinator's outputs on their way out: nothing that follows from a note leaves before the note is committed.

use std::collections::VecDeque;

use crate::coordinator::{Output, RunNote};

/// Outputs in their order, and the note that the first of them waits for.
#[derive(Debug, Default)]
pub(super) struct Gate {
    queue: VecDeque<Output>,
    state: State,
    /// The number of the last note that was proposed.
    last: u64,
    /// Notes are not replicated any more.
    is_open: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// The note at the front of the queue was proposed under this number.
    Proposed(u64),
    /// It was not taken.
    Refused,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Emit(Output),
    /// Propose this; [`Gate::committed`] or [`Gate::refused`] follows.
    Propose {
        token: u64,
        run: String,
        note: Option<RunNote>,
    },
    Wait,
}

impl Gate {
    /// Another output of the coordinator.
    pub(super) fn push(&mut self, output: Output) {
        // Only the newest of some notes in a row is of use to anybody.
        if let (Output::Note { run, .. }, Some(Output::Note { run: last, .. })) =
            (&output, self.queue.back())
            && run == last
            && (self.queue.len() > 1 || self.state == State::Free)
        {
            self.queue.pop_back();
        }
        self.queue.push_back(output);
    }

    pub(super) fn next(&mut self) -> Next {
        if self.state != State::Free && !self.is_open {
            return Next::Wait;
        }
        loop {
            match self.queue.pop_front() {
                Some(Output::Note { .. }) if self.is_open => {}
                Some(Output::Note { run, note }) => {
                    self.last += 1;
                    self.state = State::Proposed(self.last);
                    let (token, copy) = (self.last, (run.clone(), note.clone()));
                    self.queue.push_front(Output::Note { run, note });
                    let (run, note) = copy;
                    return Next::Propose { token, run, note };
                }
                Some(output) => return Next::Emit(output),
                None => return Next::Wait,
            }
        }
    }

    /// A note that was proposed here is committed.
    pub(super) fn committed(&mut self, token: u64) {
        if self.state == State::Proposed(token) {
            self.state = State::Free;
            self.queue.pop_front();
        }
    }

    /// A note was not taken; [`Gate::retry`] proposes it again.
    pub(super) fn refused(&mut self, token: u64) {
        if self.state == State::Proposed(token) {
            self.state = State::Refused;
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.state == State::Refused
    }

    pub(super) fn retry(&mut self) {
        if self.state == State::Refused {
            self.state = State::Free;
        }
    }

    /// The coordinator is no more, and neither is what it wanted to say.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.state = State::Free;
    }

    /// The runs are over, and nobody is there who would replicate anything.
    pub(super) fn open(&mut self) {
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
        match gate.next() {
            Next::Propose { token, note, .. } => (token, note.unwrap().round),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_from_a_note_waits_for_its_commit() {
        let mut gate = Gate::default();
        [close(0), note(1), close(1), note(2), close(2)]
            .into_iter()
            .for_each(|output| gate.push(output));
        assert_eq!(gate.next(), Next::Emit(close(0)));
        let (token, round) = proposed(&mut gate);
        assert_eq!((round, gate.next()), (1, Next::Wait));
        gate.committed(token + 1);
        assert_eq!(gate.next(), Next::Wait);
        gate.committed(token);
        assert_eq!(gate.next(), Next::Emit(close(1)));
        let (token, round) = proposed(&mut gate);
        gate.refused(token);
        assert_eq!((round, gate.next()), (2, Next::Wait));
        gate.retry();
        let (again, _) = proposed(&mut gate);
        assert_ne!(again, token);
        gate.committed(again);
        assert_eq!(gate.next(), Next::Emit(close(2)));
        assert_eq!(gate.next(), Next::Wait);
    }

    #[test]
    fn of_notes_in_a_row_the_newest_is_proposed() {
        let mut gate = Gate::default();
        [note(1), note(2)]
            .into_iter()
            .for_each(|output| gate.push(output));
        let (token, round) = proposed(&mut gate);
        assert_eq!(round, 2);
        // One that was proposed already is not taken back.
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
        assert_eq!(gate.next(), Next::Emit(close(2)));
    }
}
