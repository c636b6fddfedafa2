//! How the v2 API writes keys, changes and answers.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

/// What etcd's own error numbers mean.
pub(super) mod code {
    pub(crate) const KEY_NOT_FOUND: i64 = 100;
    pub(crate) const COMPARE_FAILED: i64 = 101;
    pub(crate) const KEY_EXISTS: i64 = 105;
    pub(crate) const RAFT_INTERNAL: i64 = 300;
    pub(crate) const LEADER_ELECTION: i64 = 301;
    pub(crate) const WATCHER_CLEARED: i64 = 400;
    pub(crate) const INDEX_CLEARED: i64 = 401;
}

/// An answer about keys: to a request, or the event that was waited for.
#[derive(Debug, Deserialize)]
pub(super) struct KeyAnswer {
    pub(super) node: Node,
}

/// A key, or a folder of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Node {
    #[serde(default)]
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    #[serde(default, rename = "modifiedIndex")]
    pub(super) modified: u64,
    #[serde(default)]
    pub(super) nodes: Vec<Self>,
    #[serde(default)]
    pub(super) dir: bool,
}

/// An answer that says no.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    #[serde(rename = "errorCode")]
    pub(super) code: i64,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) cause: String,
    /// The index of the whole store.
    #[serde(default)]
    pub(super) index: u64,
}

/// What is below `/version`.
#[derive(Debug, Deserialize)]
pub(super) struct Version {
    #[serde(rename = "etcdserver")]
    pub(super) server: String,
}

/// What stays as it is in a form; all else is escaped.
const IN_FORM: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const IN_PATH: &AsciiSet = &IN_FORM.remove(b'/');

/// The path of a key, which begins with a slash.
pub(super) fn path(key: &str) -> String {
    format!("/v2/keys{}", utf8_percent_encode(key, IN_PATH))
}

/// A body with fields.
pub(super) fn form(fields: &[(&str, &str)]) -> String {
    let fields = fields
        .iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, IN_FORM)));
    fields.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_a_url_is_escaped() {
        assert_eq!(
            path("/torch/a b?é%/x+y="),
            "/v2/keys/torch/a%20b%3F%C3%A9%25/x%2By%3D"
        );
        assert_eq!(
            form(&[("value", "a+/="), ("ttl", "7200")]),
            "value=a%2B%2F%3D&ttl=7200"
        );
    }

    #[test]
    fn a_folder_is_read_with_what_is_in_it() {
        let text = r#"{"action":"get","node":{"key":"/s","dir":true,"nodes":[
            {"key":"/s/a","value":"1","ttl":7,"modifiedIndex":5,"createdIndex":5}]}}"#;
        let answer: KeyAnswer = serde_json::from_str(text).unwrap();
        assert!(answer.node.dir);
        assert_eq!(answer.node.nodes[0].value, "1");
        assert_eq!(answer.node.nodes[0].modified, 5);
    }
}
