//! Files that the rules check.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Folders without files of this project.
const SKIPPED: [&str; 5] = [
    "target",
    "corpus",
    "artifacts",
    "__pycache__",
    "node_modules",
];

/// Source file.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Path relative to the root of the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Returns every Rust and Python file under `root`, sorted by path.
    pub(crate) fn all(root: &Path) -> anyhow::Result<Vec<Self>> {
        files(root, &|name| name.ends_with(".rs") || name.ends_with(".py"))
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the crate folder below `crates/`.
    ///
    /// It is `launch/agent` for `crates/launch/agent/src/lib.rs`, and `sim` for
    /// `crates/sim/src/lib.rs`.
    pub(crate) fn crate_folder(&self) -> Option<&str> {
        let path = self.path.strip_prefix("crates/")?;
        let inside = ["/src/", "/tests/", "/examples/"]
            .iter()
            .filter_map(|part| path.find(part));
        Some(&path[..inside.min()?])
    }

    /// `true` if the file is shipped: below a crate's `src`, and not a test file.
    ///
    /// A crate whose folder begins with `test` is not shipped.
    pub(crate) fn is_shipped(&self) -> bool {
        let folder = self.crate_folder().unwrap_or("tests");
        let inside = self.path.strip_prefix(&format!("crates/{folder}/src/"));
        let is_test = |part: &str| ["tests", "tests.rs"].contains(&part);
        !folder.starts_with("test")
            && inside
                .is_some_and(|path| !path.ends_with("_tests.rs") && !path.split('/').any(is_test))
    }

    /// Returns `path:line`, for a finding.
    pub(crate) fn location(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }
}

/// Returns the folder and name of every package under `root`, sorted by folder.
pub(crate) fn packages(root: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let manifests = files(root, &|name| name == "Cargo.toml")?;
    let package = |manifest: Source| {
        let folder = manifest.path.strip_suffix("/Cargo.toml")?.to_owned();
        let (_, package) = manifest.text.split_once("[package]")?;
        let name = package
            .lines()
            .find_map(|line| line.strip_prefix("name = "))?;
        Some((folder, name.trim_matches('"').to_owned()))
    };
    let mut packages: Vec<_> = manifests.into_iter().filter_map(package).collect();
    packages.sort();
    Ok(packages)
}

/// Returns every Markdown file under `root`, sorted by path.
pub(super) fn documents(root: &Path) -> anyhow::Result<Vec<Source>> {
    files(root, &|name| name.ends_with(".md"))
}

/// Returns every file under `root` whose name is wanted, sorted by path.
fn files(root: &Path, wanted: &dyn Fn(&str) -> bool) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    collect(root, "", wanted, &mut sources)?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn collect(
    folder: &Path,
    prefix: &str,
    wanted: &dyn Fn(&str) -> bool,
    sources: &mut Vec<Source>,
) -> anyhow::Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &format!("{path}/"), wanted, sources)?;
        } else if wanted(&name) {
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("failed to read {path}"))?;
            sources.push(Source { path, text });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) fn example(path: &str, text: &str) -> Source {
    Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_code_is_below_src_and_outside_tests() {
        for (path, shipped) in [
            ("crates/launch/agent/src/lib.rs", true),
            ("crates/launch/agent/src/spawn/child.rs", true),
            ("crates/launch/agent/tests/exit.rs", false),
            ("crates/launch/agent/src/spawn/tests.rs", false),
            ("crates/launch/agent/examples/a.rs", false),
            ("xtask/src/main.rs", false),
        ] {
            assert_eq!(example(path, "").is_shipped(), shipped, "{path}");
        }
    }
}
