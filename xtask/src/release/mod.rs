//! `cargo xtask release`: checks a version and makes the files of its release.
//!
//! The task neither creates a tag nor uploads a file. A developer pushes the tag, and then
//! `.github/workflows/release.yml` publishes the release.

mod api;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::command::{Metadata, cargo, metadata, output, root, step, target_folder};
use crate::{install, wheel};

/// Repository of the project, as a prefix of links.
const REPOSITORY: &str = "https://github.com/rdzv/rdzv";

/// Command-line options: version, and the origin of its artefacts.
#[derive(Debug, Default)]
struct Options {
    version: String,
    /// `true` if a release that is not ready is only reported.
    dry_run: bool,
    /// Folder with artefacts of other machines; `None` to build them here.
    artefacts: Option<PathBuf>,
}

/// Checks the version, makes its artefacts, and lists their checksums.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let options = options(arguments)?;
    let version = options.version.as_str();
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let changes = section(&changelog, version)?;
    let metadata = metadata()?;
    let wrong = wrong_versions(&metadata, version);
    ensure!(wrong.is_empty(), "not {version}: {}", wrong.join(", "));
    let mut open = Vec::new();
    if changes.heading.contains("unreleased") {
        open.push(format!("CHANGELOG: '{}' has no date", changes.heading));
    }
    if !git("status --porcelain")?.is_empty() {
        open.push("the working tree has changes that are not committed".to_owned());
    }
    if options.artefacts.is_none() {
        api::write()?;
        if !git("status --porcelain packaging/api")?.is_empty() {
            let text = "the public API has changed: commit packaging/api, and list in \
                        docs/upgrading.md what users must change";
            open.push(text.to_owned());
        }
    }
    ensure!(
        options.dry_run || open.is_empty(),
        "{version} is not ready: {}",
        open.join("; ")
    );

    let folder = match &options.artefacts {
        Some(folder) => std::path::absolute(folder)?,
        None => built(version)?,
    };
    check_packages(&folder)?;
    sbom::write(&folder, version, &git("log -1 --format=%cI")?)?;
    let files = files(&folder)?;
    let sums = checksums(&folder, &files)?;
    fs::write(folder.join("SHA256SUMS"), &sums)?;
    let statement = serde_json::to_string_pretty(&provenance(version, &sums)?)?;
    fs::write(folder.join("provenance.json"), statement + "\n")?;
    let tag = format!("rdzv {version}\n\n{}\n", changes.text);
    fs::write(folder.join("tag.txt"), &tag)?;

    println!("\n==> artefacts in {}\n", folder.display());
    for (name, sum) in files.iter().zip(sums.lines()) {
        let size = fs::metadata(folder.join(name))?.len();
        println!("{size:>10} bytes  {}  {name}", &sum[..64]);
    }
    println!("\n==> text of the tag v{version} (tag.txt)\n\n{tag}");
    for line in &open {
        println!("open: {line}");
    }
    Ok(())
}

fn options(arguments: &[String]) -> anyhow::Result<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--dry-run" => options.dry_run = true,
            "--artefacts" => {
                let folder = arguments.next().context("--artefacts needs a folder")?;
                options.artefacts = Some(folder.into());
            }
            other if other.starts_with('-') || !options.version.is_empty() => {
                bail!("release: unknown argument '{other}'")
            }
            version => version.clone_into(&mut options.version),
        }
    }
    ensure!(!options.version.is_empty(), "release: which version?");
    Ok(options)
}

/// Section of one version in the changelog.
#[derive(Debug)]
struct Section<'a> {
    heading: &'a str,
    text: &'a str,
}

/// Returns the section of `version` in the changelog.
fn section<'a>(changelog: &'a str, version: &str) -> anyhow::Result<Section<'a>> {
    changelog
        .split("\n## ")
        .skip(1)
        .filter_map(|section| section.split_once('\n'))
        .find(|(heading, _)| heading.split(' ').next() == Some(version))
        .map(|(heading, text)| Section {
            heading,
            text: text.trim(),
        })
        .with_context(|| format!("CHANGELOG has no section '## {version}'"))
}

/// Returns the packages and the requirements that do not have `version`.
fn wrong_versions(metadata: &Metadata, version: &str) -> Vec<String> {
    let required = format!("^{version}");
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        if package.version != version {
            wrong.push(format!("{} is {}", package.name, package.version));
        }
        for dependency in &package.dependencies {
            // A path without a version is not published.
            let ours = dependency.path.is_some() && dependency.req != "*";
            if ours && dependency.req != required {
                let (name, of) = (&dependency.name, &package.name);
                wrong.push(format!("{of} requires {name} {}", dependency.req));
            }
        }
    }
    wrong
}

/// Builds the artefacts of this machine. Returns their folder.
fn built(version: &str) -> anyhow::Result<PathBuf> {
    let folder = target_folder()?.join("release-files");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    wheel::portable(&folder, None)?;
    wheel::sdist(&folder)?;
    let program = static_program()?;
    let date = git("log -1 --format=%ct")?;
    for script in ["archive", "debian"] {
        let mut command = Command::new(root().join("packaging").join(script));
        command.arg(&program).arg(version).arg(&folder);
        step(script, command.env("SOURCE_DATE_EPOCH", &date))?;
    }
    Ok(folder)
}

/// Builds the program without shared libraries. Returns its path.
fn static_program() -> anyhow::Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let variable = target.to_uppercase().replace('-', "_");
    let mut command = cargo();
    command
        .args(["build", "--release", "--locked", "--package", "rdzv"])
        .args(["--target", &target])
        .env(
            format!("CARGO_TARGET_{variable}_RUSTFLAGS"),
            "-C target-feature=+crt-static",
        );
    step("build of the static program", &mut command)?;
    Ok(target_folder()?.join(target).join("release/rdzv"))
}

/// Checks the metadata of the packages, and that PyPI can render their pages.
fn check_packages(folder: &Path) -> anyhow::Result<()> {
    let names = files(folder)?;
    let packages = names.iter().filter(|name| {
        let archive = name.ends_with(".tar.gz") && !name.ends_with("-linux.tar.gz");
        archive || name.ends_with(".whl")
    });
    let mut twine = Command::new(install::tool("uv")?);
    twine
        .args(["tool", "run", "--from", "twine==7.0.0"])
        .args(["twine", "check", "--strict"]);
    step(
        "check of the Python packages",
        twine.args(packages).current_dir(folder),
    )
}

/// Names that [`run`] writes itself, after the checksums.
const OWN: [&str; 3] = ["SHA256SUMS", "provenance.json", "tag.txt"];

/// Returns the names of the artefacts in a folder, sorted.
fn files(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = folder
        .read_dir()
        .with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !OWN.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns one line per file, as `sha256sum` prints and checks it.
fn checksums(folder: &Path, names: &[String]) -> anyhow::Result<String> {
    output(Command::new("sha256sum").args(names).current_dir(folder))
}

/// Returns the in-toto statement with SLSA provenance for the files in `sums`.
fn provenance(version: &str, sums: &str) -> anyhow::Result<Value> {
    let subject = sums.lines().filter_map(|line| line.split_once("  "));
    let subject = subject.map(|(sum, name)| json!({"name": name, "digest": {"sha256": sum}}));
    let workflow = std::env::var("GITHUB_WORKFLOW_REF").unwrap_or_else(|_| "local".to_owned());
    let rustc = output(Command::new("rustc").arg("--version").current_dir(root()))?;
    Ok(json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject.collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{REPOSITORY}/blob/v{version}/CONTRIBUTING.md#a-release"),
                "externalParameters": {"version": version},
                "internalParameters": {"rustc": rustc.trim()},
                "resolvedDependencies": [{
                    "uri": format!("git+{REPOSITORY}@refs/tags/v{version}"),
                    "digest": {"gitCommit": git("rev-parse HEAD")?},
                }],
            },
            "runDetails": {"builder": {"id": format!("{REPOSITORY}/builders/{workflow}")}},
        },
    }))
}

/// Runs git in the repository and returns its trimmed output.
fn git(arguments: &str) -> anyhow::Result<String> {
    let mut command = Command::new("git");
    command.args(arguments.split(' ')).current_dir(root());
    Ok(output(&mut command)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn a_version_has_its_own_section_of_the_changelog() {
        let text =
            "# Changelog\n\n## 0.2.0 (unreleased)\n\n- new\n\n## 0.1.0 (2026-12-01)\n\n- old\n";
        let found = section(text, "0.1.0").unwrap();
        assert_eq!((found.heading, found.text), ("0.1.0 (2026-12-01)", "- old"));
        assert_eq!(section(text, "0.2.0").unwrap().text, "- new");
        assert!(section(text, "0.2").is_err());
    }
}
