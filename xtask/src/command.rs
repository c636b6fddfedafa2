//! Runs other programs, prints each step, and reports the command that failed.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// Returns the root of the workspace, independent of the current directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_path_buf()
}

/// Returns the cargo that started this task, or the one on `PATH`.
pub(crate) fn cargo() -> Command {
    builder(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns the command of a program that builds the workspace, in its root.
///
/// The command does not inherit the variables that describe this package. Some build scripts depend
/// on them, so each change between `cargo` and `cargo xtask` would repeat most of the build.
pub(crate) fn builder(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let described = name.to_string_lossy();
        if described.starts_with("CARGO_PKG_") || described.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Output of `cargo metadata`, reduced to the fields that the tasks use.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_root: PathBuf,
    /// Folder into which cargo writes its build output.
    pub(crate) target_directory: PathBuf,
}

/// Package of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// Dependency in the manifest of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Required version; `*` for a path without a version.
    pub(crate) req: String,
    /// Folder of a package of the workspace.
    pub(crate) path: Option<PathBuf>,
    /// `dev` for a dependency of the tests.
    pub(crate) kind: Option<String>,
}

/// Runs `cargo metadata` and parses its output.
pub(crate) fn metadata() -> anyhow::Result<Metadata> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    serde_json::from_str(&text).context("cargo metadata printed unexpected output")
}

/// Returns the folder into which cargo writes its build output.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    Ok(metadata()?.target_directory)
}

/// Environment variables for cargo that control the compilation.
pub(crate) type Variables = [(&'static str, String)];

/// Formats a command as one line, for messages.
pub(crate) fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Runs `command` without input, and fails unless it exits with 0.
///
/// The command inherits stdout and stderr.
pub(crate) fn step(title: &str, command: &mut Command) -> anyhow::Result<()> {
    println!("\n==> {title}\n    {}", line(command));
    run(title, command, || Ok(()))
}

/// Runs a command, then `show`, and fails unless the command exits with 0.
fn run(
    title: &str,
    command: &mut Command,
    show: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let text = line(command);
    let start = Instant::now();
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("failed to start `{text}`"))?;
    show()?;
    ensure!(status.success(), "{title} failed ({status}): {text}");
    let seconds = start.elapsed().as_secs_f64();
    println!("    {title}: done in {seconds:.1} s");
    Ok(())
}

/// Returns the same command with the lowest priority, so that tests run first.
pub(crate) fn lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice.args(["-n", "19"])
        .arg(command.get_program())
        .args(command.get_args());
    nice
}

/// Runs `command` like [`step`], but prints its output only after its exit.
///
/// This keeps the lines of simultaneous steps apart.
pub(crate) fn step_aside(title: &str, command: &mut Command) -> anyhow::Result<()> {
    println!("\n==> {title}, in parallel\n    {}", line(command));
    let mut file = tempfile::tempfile().context("cannot create a temporary file")?;
    command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    run(title, command, || {
        let mut printed = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut printed)?;
        println!("\n==> {title}\n{}", String::from_utf8_lossy(&printed));
        Ok(())
    })
}

/// Runs `command` and returns its stdout. An error contains its stderr.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let text = line(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start `{text}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{text}` failed ({}): {}", output.status, stderr.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed invalid UTF-8"))
}

/// `true` if `command` starts and exits with 0. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
