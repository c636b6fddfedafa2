//! Messages of a peer without the token to the side that listens.
//!
//! The listener never accepts the peer as one of the job, and spends no more than an answer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdzv_trust::Token;
use rdzv_trust::handshake::{Acceptor, Progress};

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    let token = Token::new(b"the token of the job").expect("it is long enough");
    let mut acceptor = Acceptor::new(token, [7; 32]);
    let mut answers = 0;
    for piece in &pieces {
        let mut bytes = &piece[..];
        while !bytes.is_empty() {
            match acceptor.take(bytes) {
                Ok(Progress::More) => break,
                Ok(Progress::Answer(used, _)) => {
                    answers += 1;
                    assert!(answers == 1 && used <= bytes.len());
                    bytes = &bytes[used..];
                }
                Ok(Progress::Proven(_)) => panic!("a peer without the token was taken for one of the job"),
                Err(_) => return,
            }
        }
    }
});
