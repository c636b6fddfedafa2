//! Check that a history is linearizable.
//!
//! The answers that clients saw must fit one order. In this order, each operation takes effect
//! between its call and its answer. The search is that of Wing and Gong, with Lowe's memory of
//! earlier attempts. Each key and each run is checked separately.
//!
//! | file | content |
//! |---|---|
//! | [`counter`] | a counter, as the clients of a consensus group see it |
//! | [`key`] | a key of a store |
//! | [`run`] | a run of the rendezvous: joins, closes and successes |
//! | [`record`] | the events of a run's agents, converted into operations |
//! | [`lines`] | a recorded history of real clients, as text |

pub mod counter;
pub mod key;
pub mod lines;
pub mod record;
pub mod run;

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::{Result, broken};

/// Maximum number of states of a search.
///
/// A correct history needs hardly more states than it has operations.
const MOST: usize = 500_000;

/// Object of all operations of a history.
pub trait Model: Debug + Sized {
    /// Content of the object; initially the default.
    type State: Clone + Ord + Default + Debug;
    /// Request for an operation.
    type Call: Clone + Debug;
    /// Answer to an operation.
    type Answer: Clone + Debug;

    /// Returns the content after a call; `None` if this answer is impossible.
    ///
    /// A call without an answer has any effect that the model allows.
    fn step(
        state: &Self::State,
        call: &Self::Call,
        answer: Option<&Self::Answer>,
    ) -> Option<Self::State>;

    /// `true` if a call commutes with everything after it.
    ///
    /// These are reads, mainly. The search then linearizes the call immediately and does not try to
    /// delay it.
    fn is_free(_: &Self::State, _: &Self::Call) -> bool {
        false
    }
}

/// Operation of a client.
#[derive(Debug, Clone)]
pub struct Operation<M: Model> {
    /// Request of the operation.
    pub call: M::Call,
    /// Time of the call.
    pub called: u64,
    /// Time of the answer, and the answer; `None` if there was none.
    ///
    /// An operation without an answer may take effect late, or never.
    pub answered: Option<(u64, M::Answer)>,
}

/// Searches for an order of the operations; fails if it finds none.
pub fn check<M: Model>(operations: &[Operation<M>]) -> Result {
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

/// Operations that have taken effect, one bit each, and the resulting state.
#[derive(Debug, Clone)]
struct Step<S> {
    done: Vec<u64>,
    state: S,
}

struct Search<'a, M: Model> {
    /// Operations in the order of their calls.
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

    /// Returns the operations that may be next; the earliest answer is last.
    fn candidates(&self, done: &[u64]) -> Vec<usize> {
        let full = done.iter().take_while(|word| **word == u64::MAX).count();
        let mut bound = u64::MAX;
        let mut candidates = Vec::new();
        for at in full * 64..self.operations.len() {
            let operation = self.operations[at];
            // An operation must wait for an earlier one that was answered before its call.
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

    /// Returns the steps that may follow now.
    ///
    /// A call that commutes with everything after it is the only next step.
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

    /// Describes a step, and the operations that may be next.
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
