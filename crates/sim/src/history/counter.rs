//! Model of a counter.

use super::Model;

/// Counter, as the model of a history.
#[derive(Debug, Clone)]
pub struct Counter;

/// Operation on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Adds one; the answer is the new value.
    Add,
    /// Reads the value.
    Read,
}

impl Model for Counter {
    type State = u64;
    type Call = Call;
    type Answer = u64;

    fn step(value: &u64, call: &Call, answer: Option<&u64>) -> Option<u64> {
        let after = value + u64::from(*call == Call::Add);
        answer.is_none_or(|seen| *seen == after).then_some(after)
    }

    fn is_free(_: &u64, call: &Call) -> bool {
        *call == Call::Read
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Operation, check};
    use super::{Call, Counter};

    fn operation(call: Call, called: u64, answered: Option<(u64, u64)>) -> Operation<Counter> {
        Operation {
            call,
            called,
            answered,
        }
    }

    #[test]
    fn operations_at_the_same_time_may_come_in_any_order() {
        let two = [
            operation(Call::Add, 1, Some((5, 2))),
            operation(Call::Add, 2, Some((4, 1))),
            operation(Call::Read, 3, Some((6, 1))),
        ];
        assert_eq!(check(&two), Ok(()));
    }

    #[test]
    fn a_read_that_misses_an_answered_addition_is_found() {
        let stale = [
            operation(Call::Add, 1, Some((2, 1))),
            operation(Call::Read, 3, Some((4, 0))),
        ];
        assert!(check(&stale).is_err());
    }

    #[test]
    fn an_addition_that_took_effect_twice_is_found() {
        let twice = [
            operation(Call::Add, 1, Some((2, 1))),
            operation(Call::Read, 3, Some((4, 2))),
        ];
        assert!(check(&twice).is_err());
    }

    #[test]
    fn an_addition_without_an_answer_may_take_effect_late_or_never() {
        let late = [
            operation(Call::Add, 1, None),
            operation(Call::Read, 2, Some((3, 0))),
            operation(Call::Read, 4, Some((5, 1))),
        ];
        assert_eq!(check(&late), Ok(()));
        assert_eq!(check(&late[..2]), Ok(()));
    }
}
