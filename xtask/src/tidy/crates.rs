//! Which crate may use which: the layers of the house.

use anyhow::Context;
use serde_json::Value;

use super::Finding;
use crate::command::{cargo, output};

/// Package, and the packages of ours that it may use. The order is bottom up.
const EDGES: [(&str, &[&str]); 17] = [
    ("rdzv-core", &[]),
    ("rdzv-store-proto", &["rdzv-core"]),
    ("rdzv-rendezvous-proto", &["rdzv-core"]),
    ("rdzv-agent-proto", &["rdzv-core"]),
    ("rdzv-rpc-proto", &["rdzv-core"]),
    (
        "rdzv-sim",
        &[
            "rdzv-core",
            "rdzv-store-proto",
            "rdzv-rendezvous-proto",
            "rdzv-rpc-proto",
        ],
    ),
    ("rdzv-event", &[]),
    ("rdzv-trust", &[]),
    ("rdzv-worker-server", &["rdzv-core"]),
    (
        "rdzv-store",
        &["rdzv-core", "rdzv-store-proto", "rdzv-event"],
    ),
    (
        "rdzv-rendezvous",
        &[
            "rdzv-core",
            "rdzv-event",
            "rdzv-store-proto",
            "rdzv-rendezvous-proto",
            "rdzv-store",
        ],
    ),
    ("rdzv-shm", &[]),
    ("rdzv-collective", &["rdzv-event", "rdzv-store", "rdzv-shm"]),
    (
        "rdzv-rpc",
        &[
            "rdzv-core",
            "rdzv-event",
            "rdzv-rpc-proto",
            "rdzv-store",
            "rdzv-rendezvous",
            "rdzv-collective",
            "rdzv-shm",
            "rdzv-trust",
        ],
    ),
    (
        "rdzv-agent",
        &[
            "rdzv-core",
            "rdzv-event",
            "rdzv-store-proto",
            "rdzv-agent-proto",
            "rdzv-store",
            "rdzv-rendezvous",
        ],
    ),
    (
        "rdzv",
        &[
            "rdzv-core",
            "rdzv-agent-proto",
            "rdzv-rendezvous-proto",
            "rdzv-store",
            "rdzv-rendezvous",
            "rdzv-agent",
            "rdzv-collective",
            "rdzv-rpc",
            "rdzv-worker-server",
        ],
    ),
    ("xtask", &[]),
];

/// All that the kernel and the protocol crates may link: formats and data, nothing that touches the
/// world. Base64 and civil dates (jiff without its clock and time zone files) are how the state of a
/// rendezvous is written; postcard is how Rust workers write what they tell each other.
const PURE_MAY_LINK: [&str; 8] = [
    "base64",
    "bytes",
    "fastrand",
    "jiff",
    "postcard",
    "serde",
    "serde_json",
    "thiserror",
];

/// The simulator is for tests: never a normal dependency.
const TESTS_ONLY: &str = "rdzv-sim";

/// What cargo knows about the workspace.
pub(crate) fn metadata() -> anyhow::Result<Value> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    serde_json::from_str(&text).context("cargo metadata printed no JSON")
}

pub(crate) fn check(metadata: &Value) -> anyhow::Result<Vec<Finding>> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"]
            .as_str()
            .context("a package without a name")?;
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == name) else {
            findings.push(Finding::new(
                name,
                "this crate has no place in the table of layers",
            ));
            continue;
        };
        let dependencies = package["dependencies"]
            .as_array()
            .context("no dependency list")?;
        for dependency in dependencies {
            let used = dependency["name"]
                .as_str()
                .context("a dependency without a name")?;
            let in_tests = dependency["kind"].as_str() == Some("dev");
            if let Some(rule) = breach(name, allowed, used, in_tests) {
                findings.push(Finding::new(name, rule));
            }
        }
    }
    Ok(findings)
}

fn breach(name: &str, allowed: &[&str], used: &str, in_tests: bool) -> Option<String> {
    let ours = EDGES.iter().any(|(known, _)| *known == used);
    if ours && in_tests && used == TESTS_ONLY {
        return None;
    }
    if ours && !allowed.contains(&used) {
        return Some(format!(
            "must not depend on {used}: edges go down the layers only"
        ));
    }
    if is_pure(name) && !ours && !in_tests && !PURE_MAY_LINK.contains(&used) {
        return Some(format!("a pure crate must not link {used}"));
    }
    None
}

/// Whether the crate stands under the fence of `crates/proto/clippy.toml`.
fn is_pure(name: &str) -> bool {
    name == "rdzv-core" || name.ends_with("-proto")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let list: Vec<_> = dependencies
            .iter()
            .map(|(name, kind)| json!({ "name": name, "kind": kind }))
            .collect();
        json!({ "packages": [{ "name": name, "dependencies": list }] })
    }

    fn rules(metadata: &Value) -> Vec<String> {
        check(metadata)
            .unwrap()
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn an_edge_that_goes_up_is_found() {
        let found = rules(&package(
            "rdzv-store",
            &[("rdzv-core", None), ("rdzv-agent", None)],
        ));
        assert_eq!(
            found,
            ["must not depend on rdzv-agent: edges go down the layers only"]
        );
    }

    #[test]
    fn the_core_links_only_what_is_listed() {
        let found = rules(&package(
            "rdzv-core",
            &[("tokio", None), ("proptest", Some("dev"))],
        ));
        assert_eq!(found, ["a pure crate must not link tokio"]);
    }

    #[test]
    fn the_simulator_is_for_tests_only() {
        assert_eq!(
            rules(&package("rdzv-store", &[("rdzv-sim", Some("dev"))])).len(),
            0
        );
        assert_eq!(
            rules(&package("rdzv-store", &[("rdzv-sim", None)])).len(),
            1
        );
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(rules(&package("rdzv-utils", &[])).len(), 1);
    }

    #[test]
    fn the_table_itself_goes_down_only() {
        for (at, (name, allowed)) in EDGES.iter().enumerate() {
            for used in *allowed {
                let below = EDGES[..at].iter().any(|(known, _)| known == used);
                assert!(below, "{name} uses {used}, which is not below it");
            }
        }
    }
}
