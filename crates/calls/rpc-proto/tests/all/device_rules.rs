//! Comparison of the rules of devices with a table of PyTorch's results.
//!
//! A check in `interop/` compares PyTorch's function with the same table.

#![allow(clippy::unwrap_used, reason = "tests")]

use rdzv_rpc_proto::device::{DeviceData, GroupKind, Node, check};
use serde::Deserialize;

const TABLE: &str = include_str!("../golden/device_rules.json");

#[derive(Deserialize)]
struct Case {
    case: String,
    #[serde(rename = "static")]
    is_static: bool,
    workers: Vec<Worker>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Worker {
    name: String,
    #[serde(flatten)]
    data: DeviceData,
}

#[test]
fn the_rules_say_what_pytorch_says() {
    let cases: Vec<Case> = serde_json::from_str(TABLE).unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let nodes: Vec<Node<'_>> = case
            .workers
            .iter()
            .map(|worker| Node {
                name: &worker.name,
                data: &worker.data,
            })
            .collect();
        let kind = if case.is_static {
            GroupKind::Static
        } else {
            GroupKind::Dynamic
        };
        let error = check(&nodes, kind).err().map(|fault| fault.to_string());
        assert_eq!(error, case.error, "{}", case.case);
    }
}
