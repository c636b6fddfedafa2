//! Model of a key of a store.

use rdzv_store_proto::number;

use super::Model;

/// Key of a store, as the model of a history.
#[derive(Debug, Clone)]
pub struct Key;

/// Operation on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Reads the value; the answer is empty if there is none.
    Get,
    /// Stores a value; the answer is empty.
    Set(Vec<u8>),
    /// Appends to the value; the answer is empty.
    Append(Vec<u8>),
    /// Adds to the number; the answer is the sum.
    Add(i64),
    /// Stores the second value if the key holds the first one.
    ///
    /// A missing key matches an empty first value. The answer is the value that the key holds
    /// afterwards, or the first value if the key is missing.
    CompareSet(Vec<u8>, Vec<u8>),
    /// Checks for a value; the answer is `true` if there is one.
    Check,
    /// Removes the value; the answer is `true` if there was one.
    Delete,
}

/// Answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The operation has taken effect.
    Done,
    /// A boolean answer.
    Is(bool),
    /// A sum.
    Number(i64),
    /// A value.
    Value(Vec<u8>),
}

impl Model for Key {
    type State = Option<Vec<u8>>;
    type Call = Call;
    type Answer = Answer;

    fn step(
        held: &Option<Vec<u8>>,
        call: &Call,
        answer: Option<&Answer>,
    ) -> Option<Option<Vec<u8>>> {
        let (after, right) = match call {
            Call::Get => (
                held.clone(),
                Answer::Value(held.clone().unwrap_or_default()),
            ),
            Call::Set(value) => (Some(value.clone()), Answer::Done),
            Call::Append(more) => {
                let mut value = held.clone().unwrap_or_default();
                value.extend_from_slice(more);
                (Some(value), Answer::Done)
            }
            Call::Add(delta) => {
                let number = held.as_deref().map_or(Some(0), number::parse)?;
                let sum = number.wrapping_add(*delta);
                (Some(sum.to_string().into_bytes()), Answer::Number(sum))
            }
            Call::CompareSet(expected, desired) => {
                let is_held = held.as_deref().unwrap_or_default() == *expected;
                let after = if is_held {
                    Some(desired)
                } else {
                    held.as_ref()
                };
                let seen = after.unwrap_or(expected).clone();
                (after.cloned(), Answer::Value(seen))
            }
            Call::Check => (held.clone(), Answer::Is(held.is_some())),
            Call::Delete => (None, Answer::Is(held.is_some())),
        };
        answer.is_none_or(|seen| *seen == right).then_some(after)
    }

    fn is_free(_: &Option<Vec<u8>>, call: &Call) -> bool {
        matches!(call, Call::Get | Call::Check)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Operation, check};
    use super::{Answer, Call, Key};

    type Answered = Option<(u64, Answer)>;

    fn history(calls: Vec<(Call, u64, Answered)>) -> Vec<Operation<Key>> {
        let operations = calls.into_iter().map(|(call, called, answered)| Operation {
            call,
            called,
            answered,
        });
        operations.collect()
    }

    fn value(text: &str) -> Answer {
        Answer::Value(text.into())
    }

    /// Returns a history that starts with a value, then one operation at a time.
    fn after_five(calls: Vec<(Call, Answer)>) -> Vec<Operation<Key>> {
        let mut all = vec![(Call::Set(b"5".to_vec()), 0, Some((1, Answer::Done)))];
        for (index, (call, answer)) in (1..).zip(calls) {
            all.push((call, index * 10, Some((index * 10 + 1, answer))));
        }
        history(all)
    }

    #[test]
    fn what_each_operation_answers_is_right() {
        let set = |from: &str, to: &str| Call::CompareSet(from.into(), to.into());
        let right = after_five(vec![
            (Call::Get, value("5")),
            (Call::Add(2), Answer::Number(7)),
            (set("5", "9"), value("7")),
            (set("7", "9"), value("9")),
            (Call::Append(b"1".to_vec()), Answer::Done),
            (Call::Get, value("91")),
            (Call::Check, Answer::Is(true)),
            (Call::Delete, Answer::Is(true)),
            (Call::Delete, Answer::Is(false)),
            (Call::Check, Answer::Is(false)),
            (set("1", "2"), value("1")),
            (Call::Get, value("")),
            (set("", "2"), value("2")),
        ]);
        assert_eq!(check(&right), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_found() {
        for wrong in [
            // A read that misses an answered write.
            vec![(Call::Get, value(""))],
            vec![(Call::Check, Answer::Is(false))],
            // An addition that is lost, and one that counts twice.
            vec![
                (Call::Add(1), Answer::Number(6)),
                (Call::Add(1), Answer::Number(6)),
            ],
            vec![(Call::Add(1), Answer::Number(6)), (Call::Get, value("7"))],
            // Two operations that replaced the same value.
            vec![
                (Call::CompareSet(b"5".to_vec(), b"6".to_vec()), value("6")),
                (Call::CompareSet(b"5".to_vec(), b"7".to_vec()), value("7")),
            ],
            // A value that exists after its deletion, and one that was deleted twice.
            vec![(Call::Delete, Answer::Is(true)), (Call::Get, value("5"))],
            vec![
                (Call::Delete, Answer::Is(true)),
                (Call::Delete, Answer::Is(true)),
            ],
        ] {
            let shown = format!("{wrong:?}");
            assert!(check(&after_five(wrong)).is_err(), "{shown}");
        }
    }

    #[test]
    fn what_was_not_answered_may_have_happened() {
        let set = (Call::Set(b"6".to_vec()), 5, None);
        let first = (Call::Set(b"5".to_vec()), 0, Some((1, Answer::Done)));
        let read = |called, text| (Call::Get, called, Some((called + 1, value(text))));
        for (seen, is_right) in [
            (vec![read(7, "5"), read(9, "6")], true),
            (vec![read(7, "5"), read(9, "5")], true),
            (vec![read(7, "6"), read(9, "5")], false),
            (vec![read(2, "6")], false),
        ] {
            let calls = [vec![first.clone(), set.clone()], seen].concat();
            assert_eq!(
                check(&history(calls.clone())).is_ok(),
                is_right,
                "{calls:?}"
            );
        }
    }
}
