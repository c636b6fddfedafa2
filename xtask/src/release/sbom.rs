//! Software bill of materials: all crates in the artefacts, as CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::command::{cargo, output, root};

/// Packages whose code the artefacts contain, with that of their dependencies.
const PUBLISHED: [&str; 2] = ["rdzv", "rdzv-python"];

/// Output of `cargo metadata`, reduced to the fields of a component.
#[derive(Deserialize)]
struct Graph {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `dev` for a dependency of the tests.
    kind: Option<String>,
}

/// Writes `rdzv-VERSION.cdx.json` into `folder`.
pub(super) fn write(folder: &Path, version: &str, date: &str) -> anyhow::Result<()> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let text = output(
        cargo()
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", &host]),
    )?;
    let graph = serde_json::from_str(&text).context("cargo metadata printed unexpected output")?;
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    let bill = bill(&graph, &checksums(&lock), version, date);
    let path = folder.join(format!("rdzv-{version}.cdx.json"));
    fs::write(&path, serde_json::to_string_pretty(&bill)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the checksums of `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let value = |block: &'_ str, key: &str| -> Option<(usize, usize)> {
        let start = block.find(&format!("\n{key} = \""))? + key.len() + 5;
        Some((start, start + block[start..].find('"')?))
    };
    let packages = lock.split("\n[[package]]").filter_map(|block| {
        let text = |key| value(block, key).map(|(start, end)| &block[start..end]);
        Some(((text("name")?, text("version")?), text("checksum")?))
    });
    packages.collect()
}

fn bill(
    graph: &Graph,
    checksums: &BTreeMap<(&str, &str), &str>,
    version: &str,
    date: &str,
) -> Value {
    let packages: BTreeMap<&str, &Package> =
        graph.packages.iter().map(|p| (p.id.as_str(), p)).collect();
    let edges: BTreeMap<&str, Vec<&str>> = graph
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), linked(node)))
        .collect();
    let mut used = BTreeSet::new();
    let published = |package: &&Package| PUBLISHED.contains(&package.name.as_str());
    let roots = graph.packages.iter().filter(published);
    let mut next: Vec<&str> = roots.map(|package| package.id.as_str()).collect();
    while let Some(id) = next.pop() {
        if used.insert(id) {
            next.extend(&edges[id]);
        }
    }
    let name = |id: &str| {
        let Package { name, version, .. } = packages[id];
        format!("pkg:cargo/{name}@{version}")
    };
    let component = |id: &&str| {
        let package = packages[id];
        let mut value = json!({
            "type": "library",
            "bom-ref": name(id),
            "purl": name(id),
            "name": package.name,
            "version": package.version,
        });
        if let Some(license) = &package.license {
            // The older form of a choice is `MIT/Apache-2.0`.
            value["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
        }
        if let Some(description) = &package.description {
            value["description"] = json!(description.trim());
        }
        if let Some(sum) = checksums.get(&(package.name.as_str(), package.version.as_str())) {
            value["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        value
    };
    let depends = |id: &&str| {
        let on: BTreeSet<String> = edges[id].iter().map(|id| name(id)).collect();
        json!({"ref": name(id), "dependsOn": on})
    };
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": date,
            "component": {
                "type": "application",
                "bom-ref": "rdzv",
                "name": "rdzv",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": used.iter().map(component).collect::<Vec<_>>(),
        "dependencies": used.iter().map(depends).collect::<Vec<_>>(),
    })
}

/// Returns the dependencies of a package that are not only for its tests.
fn linked(node: &Node) -> Vec<&str> {
    let only_tests = |edge: &&Edge| {
        let dev = |kind: &Kind| kind.kind.as_deref() == Some("dev");
        !edge.dep_kinds.iter().all(dev)
    };
    let edges = node.deps.iter().filter(only_tests);
    edges.map(|edge| edge.pkg.as_str()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_checksum_belongs_to_a_name_and_a_version() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        let found = super::checksums(lock);
        assert_eq!(found.get(&("a", "1.0.0")), Some(&"ab"));
        assert_eq!(found.len(), 1);
    }
}
