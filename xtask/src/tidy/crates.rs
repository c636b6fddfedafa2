//! Allowed dependencies among the crates, and the purity of some of them.
//!
//! The table in `ARCHITECTURE.md` defines the layers. Pure crates must not use the operating
//! system, the clock or random order.

use std::path::Path;

use anyhow::Context;

use super::source::Source;
use super::{Finding, cycles};
use crate::command::{Dependency, Metadata, Package};

/// Foreign crates that pure crates may link: formats and data, without I/O.
///
/// The state of a rendezvous uses Base64 and civil dates (jiff without its clock and time zone
/// files). Messages between Rust workers use postcard. anstyle, textwrap, unicode-width and vte
/// handle colours, lines, columns and terminal sequences as text. raft is a pure state machine, and
/// slog is the type of its logger.
const PURE_MAY_LINK: [&str; 15] = [
    "anstyle",
    "base64",
    "bytes",
    "fastrand",
    "jiff",
    "memchr",
    "postcard",
    "raft",
    "serde",
    "serde_json",
    "slog",
    "textwrap",
    "thiserror",
    "unicode-width",
    "vte",
];

/// Packages that the tests of every crate may use without an entry.
const TESTS_ONLY: [&str; 2] = ["rdzv-sim", "rdzv-testing"];

/// Lints that keep the pure crates pure; each of these crates has a link to it.
const FENCE: &str = "crates/base/core/clippy.toml";

/// Pure modules of crates that are not pure: folder of the crate, and module.
const PURE_MODULES: [(&str, &str); 2] = [
    ("crates/calls/collective", "matching"),
    ("crates/calls/collective", "schedule"),
];

/// Parts of the standard library with I/O.
const IMPURE_PARTS: [&str; 4] = ["env", "fs", "process", "thread"];

/// Names that read the clock, open sockets or iterate in random order.
const IMPURE_NAMES: [&str; 10] = [
    "HashMap",
    "HashSet",
    "Instant",
    "SystemTime",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixDatagram",
    "UnixListener",
    "UnixStream",
];

/// Each package with the packages of this workspace that it may use, bottom up.
type Layers = Vec<(String, Vec<String>)>;

/// Parses the table of crates in `ARCHITECTURE.md`.
///
/// `core` in the table is the package `rdzv-core`.
pub(crate) fn layers(architecture: &str) -> anyhow::Result<Layers> {
    let (_, table) = architecture
        .split_once("| may use, of ours |\n")
        .context("ARCHITECTURE.md has no table with a column 'may use, of ours'")?;
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let (_, line) = line.strip_suffix(" |")?.split_once("| `")?;
        let (name, line) = line.split_once('`')?;
        let (_, used) = line.rsplit_once("| ")?;
        let used = used.split(", ").filter(|used| *used != "nothing");
        Some((package_name(name), used.map(package_name).collect()))
    };
    Ok(rows.filter_map(row).collect())
}

fn package_name(short: &str) -> String {
    match short {
        "cli" => "rdzv".to_owned(),
        "xtask" => short.to_owned(),
        _ => format!("rdzv-{short}"),
    }
}

pub(crate) fn check(metadata: &Metadata, layers: &Layers, sources: &[Source]) -> Vec<Finding> {
    let mut findings = order(layers);
    findings.extend(superfluous(layers, &metadata.packages));
    for package in &metadata.packages {
        let name = &package.name;
        let folder = folder(metadata, package);
        let Some((_, allowed)) = layers.iter().find(|(known, _)| known == name) else {
            let rule = "this crate has no row in the table of ARCHITECTURE.md";
            findings.push(Finding::new(name, rule));
            continue;
        };
        for Dependency {
            name: used, kind, ..
        } in &package.dependencies
        {
            let in_tests = kind.as_deref() == Some("dev");
            let ours = layers.iter().any(|(known, _)| known == used);
            if let Some(rule) = breach(name, allowed, used, ours, in_tests) {
                findings.push(Finding::new(name, rule));
            }
        }
        if is_pure(name) {
            findings.extend(fence(name, &folder, &metadata.workspace_root));
            findings.extend(impurities(sources, &folder, ""));
        }
    }
    for (folder, module) in PURE_MODULES {
        findings.extend(impurities(sources, folder, module));
    }
    findings
}

/// Returns the folder of a package, relative to the root of the workspace.
fn folder(metadata: &Metadata, package: &Package) -> String {
    let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
    let folder = folder.strip_prefix(&metadata.workspace_root);
    let folder = folder.unwrap_or(Path::new(""));
    folder.display().to_string()
}

/// Finds rows that use a crate without a row above them.
fn order(layers: &Layers) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, (name, allowed)) in layers.iter().enumerate() {
        for used in allowed {
            if !layers[..at].iter().any(|(known, _)| known == used) {
                let rule = format!("{name} uses {used}, which is not above it in the table");
                findings.push(Finding::new("ARCHITECTURE.md", rule));
            }
        }
    }
    findings
}

/// Finds dependencies in the table that no manifest has.
fn superfluous(layers: &Layers, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, allowed) in layers {
        let package = packages.iter().find(|package| package.name == *name);
        let has = |used: &str| {
            package.is_some_and(|it| it.dependencies.iter().any(|other| other.name == used))
        };
        for used in allowed.iter().filter(|used| !has(used)) {
            let rule = format!("{name} does not depend on {used}, as the table says");
            findings.push(Finding::new("ARCHITECTURE.md", rule));
        }
    }
    findings
}

fn breach(
    name: &str,
    allowed: &[String],
    used: &str,
    ours: bool,
    in_tests: bool,
) -> Option<String> {
    // A crate uses itself in tests to enable some of its features.
    if ours && in_tests && (TESTS_ONLY.contains(&used) || used == name) {
        return None;
    }
    if ours && !allowed.iter().any(|allowed| allowed == used) {
        return Some(format!(
            "must not depend on {used}: edges go down the layers only"
        ));
    }
    if is_pure(name) && !ours && !in_tests && !PURE_MAY_LINK.contains(&used) {
        return Some(format!("a pure crate must not link {used}"));
    }
    None
}

/// `true` if the crate must be pure, with the lints of [`FENCE`].
fn is_pure(name: &str) -> bool {
    [
        "rdzv-console",
        "rdzv-consensus",
        "rdzv-core",
        "rdzv-pickle",
        "rdzv-voters",
    ]
    .contains(&name)
        || name.ends_with("-proto")
}

fn fence(name: &str, folder: &str, root: &Path) -> Option<Finding> {
    let lints = |path: &Path| std::fs::read(path).ok();
    let own = lints(&root.join(folder).join("clippy.toml"));
    let rule = format!("the clippy.toml of a pure crate is a link to {FENCE}");
    (own.is_none() || own != lints(&root.join(FENCE))).then(|| Finding::new(name, rule))
}

/// Finds impure code of the crate in `folder`, below one of its modules.
fn impurities(sources: &[Source], folder: &str, module: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for tree in cycles::trees(sources, folder) {
        let modules = tree.modules.iter();
        for module in modules.filter(|inside| inside.name.starts_with(module)) {
            let impure = module.paths.iter().filter(|(path, _)| is_impure(path));
            findings.extend(impure.map(|(path, line)| {
                let location = format!("{}:{line}", module.file);
                Finding::new(location, format!("{} in pure code", path.join("::")))
            }));
        }
    }
    findings
}

/// `true` if a path leads to I/O, a clock or random order.
fn is_impure(path: &[String]) -> bool {
    let in_part = matches!(path, [first, part, ..]
        if first == "std" && IMPURE_PARTS.contains(&part.as_str()));
    in_part
        || path
            .iter()
            .any(|name| IMPURE_NAMES.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;
    use crate::command::root;
    use serde_json::json;

    const TABLE: &str = "# A\n\n| crate | is | may use, of ours |\n|---|---|---|\n\
        | `core` | decisions | nothing |\n| `store` | a, b | core |\n\
        | `sim` | worlds | core |\n| `agent` | supervises | core, store |\n\nAnd so on.\n";

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Metadata {
        let list: Vec<_> = dependencies
            .iter()
            .map(|(name, kind)| json!({ "name": name, "kind": kind, "req": "*" }))
            .collect();
        let manifest = root().join("crates/base/core/Cargo.toml");
        let package = json!({ "name": name, "version": "0.1.0", "manifest_path": manifest, "dependencies": list });
        let metadata = json!({
            "packages": [package],
            "workspace_root": root(),
            "target_directory": "/target",
        });
        serde_json::from_value(metadata).unwrap()
    }

    fn rules(metadata: &Metadata) -> Vec<String> {
        let source = example("crates/base/core/src/lib.rs", "use rdzv_core::a;");
        check(metadata, &layers(TABLE).unwrap(), &[source])
            .into_iter()
            .filter(|finding| !finding.location.ends_with(".md"))
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
    fn a_new_crate_needs_a_layer() {
        assert_eq!(rules(&package("rdzv-utils", &[])).len(), 1);
    }

    #[test]
    fn a_table_that_goes_up_is_found() {
        let table = TABLE.replace("| core |", "| core, agent |");
        let layers = layers(&table).unwrap();
        assert_eq!(order(&layers).len(), 2, "{layers:?}");
    }

    #[test]
    fn a_row_that_no_manifest_has_is_found() {
        let metadata = package("rdzv-agent", &[("rdzv-core", None)]);
        let found = superfluous(&layers(TABLE).unwrap(), &metadata.packages);
        let rule = "rdzv-agent does not depend on rdzv-store, as the table says";
        assert!(found.contains(&Finding::new("ARCHITECTURE.md", rule)));
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_pure_crate_outside_the_fence_is_found() {
        assert!(fence("rdzv-core", "crates/base/core", &root()).is_none());
        assert!(fence("rdzv-a-proto", "crates/sim", &root()).is_some());
    }

    #[test]
    fn a_use_of_the_world_in_pure_code_is_found() {
        let text = "use std::{env as e, net::IpAddr};\nfn f() { std::fs::read(\"\") }\n\
            use std::collections::HashMap;\n#[cfg(test)]\nmod tests { use std::env; }\n";
        for (path, module, count) in [("lib.rs", "", 3), ("a.rs", "a", 3), ("a.rs", "b", 0)] {
            let lib = example("crates/c/src/lib.rs", "mod a; mod b;");
            let file = example(&format!("crates/c/src/{path}"), text);
            let found = impurities(
                &[lib, file][usize::from(path == "lib.rs")..],
                "crates/c",
                module,
            );
            assert_eq!(found.len(), count, "{found:?}");
        }
    }
}
