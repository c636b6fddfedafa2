//! Property tests of the file journal.
//!
//! Written records are read, however the reading is cut, and any file content is survived.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use rdzv_store_proto::journal::{
    CLOSED_COUNT, Journal, OPEN_COUNT, Tail, deletion_of, encode, user_key,
};

/// A step of a user of the store.
#[derive(Debug, Clone)]
enum Step {
    Set(String, Vec<u8>),
    Delete(String),
    Count(i64),
}

fn step() -> impl Strategy<Value = Step> {
    // Few keys, so that the steps overwrite and delete them.
    let key = prop_oneof![
        Just("-"),
        Just(""),
        Just("a"),
        Just("refcount/"),
        Just("ключ")
    ];
    let key = key.prop_map(str::to_owned);
    prop_oneof![
        4 => (key.clone(), vec(any::<u8>(), 0..40)).prop_map(|(key, value)| Step::Set(key, value)),
        1 => key.prop_map(Step::Delete),
        1 => any::<i64>().prop_map(Step::Count),
    ]
}

/// Returns the file that the steps leave, and its content.
fn written(steps: &[Step]) -> (Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut file = encode(OPEN_COUNT, b"1").unwrap();
    let mut model = BTreeMap::from([(OPEN_COUNT.to_vec(), b"1".to_vec())]);
    for step in steps {
        let (record, key, value) = match step {
            Step::Set(key, value) => (user_key(key), user_key(key), Some(value.clone())),
            Step::Delete(key) => (deletion_of(key), user_key(key), None),
            Step::Count(number) => {
                let text = number.to_string().into_bytes();
                (CLOSED_COUNT.to_vec(), CLOSED_COUNT.to_vec(), Some(text))
            }
        };
        file.extend(encode(&record, value.as_deref().unwrap_or_default()).unwrap());
        match value {
            Some(value) => model.insert(key, value),
            None => model.remove(&key),
        };
    }
    (file, model)
}

fn assert_equals(journal: &Journal, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    assert_eq!(journal.len(), model.len());
    for (key, value) in model {
        assert_eq!(&journal.get(key).unwrap()[..], &value[..]);
    }
    let users = model.keys().filter_map(|key| key.strip_prefix(b"/"));
    assert!(journal.user_keys().eq(users));
}

proptest! {
    #[test]
    fn what_was_written_is_read(steps in vec(step(), 0..30)) {
        let (file, model) = written(&steps);
        let mut journal = Journal::default();
        let replayed = journal.replay(&file);
        prop_assert_eq!((replayed.consumed, replayed.tail), (file.len(), Tail::Clean));
        prop_assert_eq!(journal.offset(), file.len() as u64);
        assert_equals(&journal, &model);
    }

    /// A reader reads repeatedly while the file grows by any number of bytes.
    #[test]
    fn reading_may_be_cut_anywhere(
        steps in vec(step(), 0..20),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (file, model) = written(&steps);
        let mut lengths: Vec<usize> = cuts.iter().map(|cut| cut.index(file.len())).collect();
        lengths.push(file.len());
        lengths.sort_unstable();
        let mut journal = Journal::default();
        for length in lengths {
            let start = journal.offset() as usize;
            let replayed = journal.replay(&file[start..length]);
            prop_assert_ne!(replayed.tail, Tail::Foreign);
            prop_assert_eq!(replayed.tail == Tail::Clean, start + replayed.consumed == length);
        }
        assert_equals(&journal, &model);
    }

    /// A writer that dies in the middle of a record loses only that record.
    /// The next writer cuts the record off.
    #[test]
    fn a_torn_end_loses_one_record(
        steps in vec(step(), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let (file, _) = written(&steps);
        let (before, _) = written(&steps[..steps.len() - 1]);
        let torn = before.len() + cut.index(file.len() - before.len());
        let mut journal = Journal::default();
        let replayed = journal.replay(&file[..torn]);
        prop_assert_eq!(replayed.consumed, before.len());
        let after = encode(&user_key("after"), b"x").unwrap();
        let replayed = journal.replay(&after);
        prop_assert_eq!((replayed.consumed, replayed.tail), (after.len(), Tail::Clean));
        prop_assert!(journal.get(b"/after").is_some());
    }

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..300)) {
        let mut journal = Journal::default();
        let replayed = journal.replay(&bytes);
        prop_assert!(replayed.consumed <= bytes.len());
        prop_assert_eq!(journal.offset(), replayed.consumed as u64);
        prop_assert_eq!(replayed.tail == Tail::Clean, replayed.consumed == bytes.len());
    }

    #[test]
    fn a_damaged_file_is_survived(
        steps in vec(step(), 1..20),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let (mut file, _) = written(&steps);
        for (index, byte) in damage {
            let index = index.index(file.len());
            file[index] = byte;
        }
        let mut journal = Journal::default();
        let replayed = journal.replay(&file);
        let again = journal.clone().replay(&file[replayed.consumed..]);
        prop_assert_eq!(again.consumed, 0);
    }
}
