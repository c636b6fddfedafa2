//! State of a rendezvous with arbitrary content.
//!
//! Reading it never panics and takes memory in proportion. A state that was read can be written,
//! and means the same when it is read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdzv_rendezvous_proto::codec::{decode, encode, from_value, to_value};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(state) = decode(bytes) {
        let again = decode(&encode(&state)).expect("what was written can be read");
        assert_eq!(again, state);
    }
    if let Ok(Some(state)) = from_value(bytes) {
        assert_eq!(from_value(&to_value(&state)), Ok(Some(state)));
    }
});
