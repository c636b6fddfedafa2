//! A process that is slower than those that call it (SCN-S29).

use rdzv_rpc::RpcErrorKind;
use serde_json::{Value, json};

use super::worker::Scenario;

/// So much is offered.
const OFFERED: usize = 1 << 30;

/// So much may be on its way.
const CREDIT: usize = 64 << 20;

/// So many pieces are just within that, with what comes along.
const WITHIN: usize = 64;
const PIECE: usize = (CREDIT / WITHIN) - 512;

/// What the sender may need beyond that.
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
    assert!(error.message.contains("which is the limit"), "{error:?}");
    for _ in 0..100 {
        assert_eq!(sender.calls("other", "double", json!(2)), Ok(json!(4)));
    }
    assert_eq!(offered(0), WITHIN, "what is beyond the limit waits");
    let grown = bytes().saturating_sub(before);
    assert!(grown < CREDIT + BEYOND, "{grown} bytes more");
    // When it is let go, it gets everything.
    other.calls("slow", "open", Value::Null).unwrap();
    sender.does(&json!({ "do": "taken" }));
    let swallowed = json!({ "do": "happened", "what": "swallowed", "times": pieces });
    assert_eq!(slow.does(&swallowed), pieces);
    let grown = bytes().saturating_sub(before);
    assert!(grown < CREDIT + BEYOND, "{grown} bytes more");
}
