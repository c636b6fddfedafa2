//! Whether what clients of a counter saw can be put into one order, in which each operation takes effect between its
//! call and its answer (Wing and Gong, with Lowe's memory of what was tried).

use std::collections::BTreeSet;

use crate::Violation;

/// An operation on one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// It adds one, and its value is that after it; else it reads.
    pub adds: bool,
    /// When it was called.
    pub called: u64,
    /// When it was answered, and the value; `None` if it never was.
    pub answered: Option<(u64, u64)>,
}

/// Looks for the order.
pub fn check(operations: &[Operation]) -> Result<(), Violation> {
    // A read that nobody saw the answer of says nothing.
    let mut operations: Vec<_> = operations
        .iter()
        .filter(|operation| operation.adds || operation.answered.is_some())
        .copied()
        .collect();
    operations.sort_by_key(|operation| operation.called);
    let search = Search {
        operations: &operations,
    };
    let mut tried = BTreeSet::new();
    // What is done, as a bit each, and the value.
    let start = (vec![0_u64; operations.len().div_ceil(64)], 0_u64);
    let mut open = vec![start];
    let mut most = 0;
    while let Some((done, value)) = open.pop() {
        if search.is_complete(&done) {
            return Ok(());
        }
        most = most.max(done.iter().map(|word| word.count_ones()).sum());
        for next in search.next(&done, value) {
            if tried.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Err(Violation(format!(
        "INV-Q5: no order of {} operations is possible; at most {most} of them can be ordered: {operations:?}",
        operations.len()
    )))
}

struct Search<'a> {
    operations: &'a [Operation],
}

impl Search<'_> {
    fn is_done(done: &[u64], at: usize) -> bool {
        done[at / 64] >> (at % 64) & 1 == 1
    }

    fn is_complete(&self, done: &[u64]) -> bool {
        let mut operations = self.operations.iter().enumerate();
        operations.all(|(at, operation)| operation.answered.is_none() || Self::is_done(done, at))
    }

    /// Each operation that may take effect now, and what that leads to.
    fn next(&self, done: &[u64], value: u64) -> Vec<(Vec<u64>, u64)> {
        let left = || {
            let operations = self.operations.iter().enumerate();
            operations.filter(|(at, _)| !Self::is_done(done, *at))
        };
        // Whatever was called after the answer of one that is left has to wait for that one.
        let bound = left()
            .filter_map(|(_, operation)| Some(operation.answered?.0))
            .min()
            .unwrap_or(u64::MAX);
        let mut next = Vec::new();
        for (at, operation) in left().take_while(|(_, operation)| operation.called <= bound) {
            let after = value + u64::from(operation.adds);
            if operation.answered.is_none_or(|(_, seen)| seen == after) {
                let mut done = done.to_vec();
                done[at / 64] |= 1 << (at % 64);
                next.push((done, after));
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(adds: bool, called: u64, answered: Option<(u64, u64)>) -> Operation {
        Operation {
            adds,
            called,
            answered,
        }
    }

    #[test]
    fn operations_at_the_same_time_may_come_in_any_order() {
        let two = [
            operation(true, 1, Some((5, 2))),
            operation(true, 2, Some((4, 1))),
            operation(false, 3, Some((6, 1))),
        ];
        assert_eq!(check(&two), Ok(()));
    }

    #[test]
    fn a_read_that_misses_an_answered_addition_is_found() {
        let stale = [
            operation(true, 1, Some((2, 1))),
            operation(false, 3, Some((4, 0))),
        ];
        assert!(check(&stale).is_err());
    }

    #[test]
    fn an_addition_that_took_effect_twice_is_found() {
        let twice = [
            operation(true, 1, Some((2, 1))),
            operation(false, 3, Some((4, 2))),
        ];
        assert!(check(&twice).is_err());
    }

    #[test]
    fn an_addition_without_an_answer_may_take_effect_late_or_never() {
        let late = [
            operation(true, 1, None),
            operation(false, 2, Some((3, 0))),
            operation(false, 4, Some((5, 1))),
        ];
        assert_eq!(check(&late), Ok(()));
        assert_eq!(check(&late[..2]), Ok(()));
    }
}
