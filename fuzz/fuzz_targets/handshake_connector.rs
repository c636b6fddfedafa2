//! Answers of a server without the token to the side that connects.
//!
//! No proof follows, and the text for a refusal is bounded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdzv_trust::Token;
use rdzv_trust::handshake::{ANSWER_LENGTH, answer_to, hello, is_refusal, reason, refusal};

fuzz_target!(|bytes: Vec<u8>| {
    let token = Token::new(b"the token of the job").expect("it is long enough");
    let ours = hello([9; 32]);
    let mut answer = [0; ANSWER_LENGTH];
    let length = bytes.len().min(ANSWER_LENGTH);
    answer[..length].copy_from_slice(&bytes[..length]);
    assert!(answer_to(&token, &ours, &answer).is_err());
    if let Some(reason) = reason(&bytes) {
        assert!(is_refusal(&bytes) && reason.len() <= bytes.len());
    }
    let line = refusal(&String::from_utf8_lossy(&bytes));
    assert!(reason(&line).is_some() && line.len() <= 300);
});
