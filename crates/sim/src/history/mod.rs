//! Whether the answers that clients saw can be put into one order, in which each operation takes effect between its call and its
//! answer (Wing and Gong, with Lowe's memory of what was tried). Each key, and each run, is looked at for itself.
//!
//! | file | what |
//! |---|---|
//! | [`counter`] | a counter, as the clients of a consensus group see it |
//! | [`key`] | a key of a store |
//! | [`run`] | a run of the rendezvous: joins, closes and successes |
//! | [`record`] | what happens to the agents of a run, made into its operations |
//! | [`lines`] | a record of real clients, as text |

pub mod counter;
pub mod key;
pub mod lines;
pub mod record;
pub mod run;

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::{Violation, broken};

/// Most states of a search. A history that is right needs hardly more than it has operations.
const MOST: usize = 500_000;

/// The object that all operations of a history are about.
pub trait Model: Debug + Sized {
    /// Its content; at first, the default.
    type State: Clone + Ord + Default + Debug;
    /// A request.
    type Call: Clone + Debug;
    /// An answer.
    type Answer: Clone + Debug;

    /// The content after a call with this answer, if it has one; `None` if it cannot be answered so.
    fn step(
        state: &Self::State,
        call: &Self::Call,
        answer: Option<&Self::Answer>,
    ) -> Option<Self::State>;

    /// Whether a call that can take effect now may as well do so, because whatever could follow without that can follow after
    /// it too: reads, above all. It is not tried to let it wait then.
    fn is_free(_: &Self::State, _: &Self::Call) -> bool {
        false
    }
}

/// An operation of a client.
#[derive(Debug, Clone)]
pub struct Operation<M: Model> {
    /// The call.
    pub call: M::Call,
    /// When it was called.
    pub called: u64,
    /// When it was answered, and what; `None` if it never was. It may take effect late then, or never.
    pub answered: Option<(u64, M::Answer)>,
}

/// Looks for the order.
pub fn check<M: Model>(operations: &[Operation<M>]) -> Result<(), Violation> {
    let mut operations: Vec<&Operation<M>> = operations.iter().collect();
    operations.sort_by_key(|operation| operation.called);
    let search = Search { operations };
    let mut tried = BTreeSet::new();
    let mut open = vec![Step {
        done: vec![0_u64; search.operations.len().div_ceil(64)],
        state: M::State::default(),
    }];
    let mut furthest = (0, open[0].clone());
    while let Some(step) = open.pop() {
        if search.is_complete(&step.done) {
            return Ok(());
        }
        let count = step.done.iter().map(|word| word.count_ones()).sum();
        if count > furthest.0 {
            furthest = (count, step.clone());
        }
        for next in search.next(&step) {
            if tried.insert((next.done.clone(), next.state.clone())) {
                open.push(next);
            }
        }
        if tried.len() > MOST {
            return broken(format!(
                "INV-L1: undecided after {MOST} states; {}",
                search.shown(&furthest.1)
            ));
        }
    }
    broken(format!(
        "INV-L1: not linearizable; {}",
        search.shown(&furthest.1)
    ))
}

/// Operations that have taken effect, a bit each, and what follows from them.
#[derive(Debug, Clone)]
struct Step<S> {
    done: Vec<u64>,
    state: S,
}

struct Search<'a, M: Model> {
    /// In the order of their calls.
    operations: Vec<&'a Operation<M>>,
}

impl<M: Model> Search<'_, M> {
    fn is_done(done: &[u64], at: usize) -> bool {
        done[at / 64] >> (at % 64) & 1 == 1
    }

    fn is_complete(&self, done: &[u64]) -> bool {
        let mut operations = self.operations.iter().enumerate();
        operations.all(|(at, operation)| operation.answered.is_none() || Self::is_done(done, at))
    }

    /// The operations that have not taken effect and may do so next, those that are answered first at the end.
    fn candidates(&self, done: &[u64]) -> Vec<usize> {
        let full = done.iter().take_while(|word| **word == u64::MAX).count();
        let mut bound = u64::MAX;
        let mut candidates = Vec::new();
        for at in full * 64..self.operations.len() {
            let operation = self.operations[at];
            // Whatever was called after the answer of one that is left has to wait for that one.
            if operation.called > bound {
                break;
            }
            if !Self::is_done(done, at) {
                candidates.push(at);
                bound = bound.min(self.answered(at));
            }
        }
        candidates.retain(|at| self.operations[*at].called <= bound);
        candidates.sort_by_key(|at| std::cmp::Reverse(self.answered(*at)));
        candidates
    }

    fn answered(&self, at: usize) -> u64 {
        let answered = self.operations[at].answered.as_ref();
        answered.map_or(u64::MAX, |(at, _)| *at)
    }

    /// The steps to which operations lead that may take effect now. One that may as well do so is the only one.
    fn next(&self, step: &Step<M::State>) -> Vec<Step<M::State>> {
        let mut next = Vec::new();
        for at in self.candidates(&step.done) {
            let operation = self.operations[at];
            let answer = operation.answered.as_ref().map(|(_, answer)| answer);
            let Some(state) = M::step(&step.state, &operation.call, answer) else {
                continue;
            };
            let mut done = step.done.clone();
            done[at / 64] |= 1 << (at % 64);
            let after = Step { done, state };
            if M::is_free(&step.state, &operation.call) {
                return vec![after];
            }
            next.push(after);
        }
        next
    }

    /// Where no order goes any further.
    fn shown(&self, step: &Step<M::State>) -> String {
        let count: u32 = step.done.iter().map(|word| word.count_ones()).sum();
        let left = self.candidates(&step.done);
        let left = left.iter().rev().take(20).map(|at| self.operations[*at]);
        format!(
            "{count} of {} operations can be ordered, then it is {:?}, and next would be one of {:?}",
            self.operations.len(),
            step.state,
            left.collect::<Vec<_>>()
        )
    }
}
