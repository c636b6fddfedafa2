//! Test of a process that is slower than its callers (SCN-S29).

use rdzv_rpc::RpcErrorKind;
use serde_json::{Value, json};

use super::worker::Scenario;

/// Total number of bytes that the sender offers.
const OFFERED: usize = 1 << 30;

/// Maximum number of bytes in flight.
const CREDIT: usize = 64 << 20;

/// Number of pieces that fit into the credit, with their overhead.
const WITHIN: usize = 64;
const PIECE: usize = (CREDIT / WITHIN) - 512;

/// Additional memory that the sender may need.
const BEYOND: usize = 8 << 20;

#[test]
fn a_sender_keeps_no_more_than_its_credit_and_others_are_not_held_up() {
    let scenario = Scenario::new();
    let [sender, slow, other] = scenario.formed(["sender", "slow", "other"], &json!({}));
    sender.calls("slow", "double", json!(1)).unwrap();
    sender.calls("other", "double", json!(1)).unwrap();
    let bytes = || {
        let process = sender.does(&json!({ "do": "process" }));
        usize::try_from(process["bytes"].as_u64().unwrap()).unwrap()
    };
    let before = bytes();
    let pieces = OFFERED / PIECE;
    sender.does(&json!({ "do": "offer", "to": "slow", "pieces": pieces, "bytes": PIECE }));
    let offered = |times: usize| {
        let happened = json!({ "do": "happened", "what": "offered", "times": times });
        sender.does(&happened)
    };
    offered(WITHIN);
    let more = json!({
        "do": "call", "to": "slow", "method": "swallow", "argument": PIECE, "refuse": true,
    });
    let error = sender.refuses(&more);
    assert_eq!(error.kind, RpcErrorKind::Overloaded, "{error:?}");
    assert!(error.message.contains("the limit is reached"), "{error:?}");
    for _ in 0..100 {
        assert_eq!(sender.calls("other", "double", json!(2)), Ok(json!(4)));
    }
    assert_eq!(offered(0), WITHIN, "what is beyond the limit waits");
    let grown = bytes().saturating_sub(before);
    assert!(grown < CREDIT + BEYOND, "{grown} bytes more");
    // When the slow worker continues, it gets everything.
    other.calls("slow", "open", Value::Null).unwrap();
    sender.does(&json!({ "do": "taken" }));
    let swallowed = json!({ "do": "happened", "what": "swallowed", "times": pieces });
    assert_eq!(slow.does(&swallowed), pieces);
    let grown = bytes().saturating_sub(before);
    assert!(grown < CREDIT + BEYOND, "{grown} bytes more");
}
