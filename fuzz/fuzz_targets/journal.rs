//! File of a file store with arbitrary content.
//!
//! Reading it never panics, and gives the same result for any cuts. Entries that were read can be
//! written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdzv_store_proto::journal::{Journal, Tail, encode};

fuzz_target!(|file: &[u8]| {
    let mut whole = Journal::default();
    let replayed = whole.replay(file);
    assert_eq!(whole.offset(), replayed.consumed as u64);
    assert_eq!(
        replayed.tail == Tail::Clean,
        replayed.consumed == file.len()
    );

    let step = 1 + usize::from(file.first().copied().unwrap_or(0) % 23);
    let mut cut = Journal::default();
    let mut length = 0;
    let mut tail = Tail::Clean;
    while length < file.len() && tail != Tail::Foreign {
        length = (length + step).min(file.len());
        tail = cut.replay(&file[cut.offset() as usize..length]).tail;
    }
    // A short beginning may look foreign where more of it would not have.
    if tail != Tail::Foreign {
        assert_eq!(cut.offset(), whole.offset());
        assert_eq!(cut.len(), whole.len());
    }

    let mut again = Journal::default();
    for key in whole.user_keys() {
        let raw_key = [b"/", key].concat();
        let value = whole.get(&raw_key).expect("a listed key has a value");
        let record = encode(&raw_key, value).expect("what was read is not too long");
        assert_eq!(again.replay(&record).tail, Tail::Clean);
        assert_eq!(again.get(&raw_key), Some(value));
    }
});
