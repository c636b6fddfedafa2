//! The Python environments: the one with PyTorch that the interop tests and the benchmarks run against, the
//! one with the tools that build and check the Python package, and the small one that the manifests of Kubernetes are checked with.
//!
//! An environment lives outside of the tree, in `$RDZV_CACHE`, else `$XDG_CACHE_HOME/rdzv`, else
//! `~/.cache/rdzv`, in a folder named after the interpreter and the requirements, so that every
//! clone shares it and a changed requirement makes a new one. A virtual environment cannot be moved
//! after it has been made (its scripts name their interpreter), so instead of a rename it is a
//! marker, written last, that says it is complete; a lock keeps parallel runs from building it
//! twice, and what an aborted run left is cleared by the next.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::command::{line, output, root, step, succeeds};

/// Written into the environment when everything in it has been installed and imported once.
const MARKER: &str = ".complete";

/// How often an installation is tried, because package indexes have bad minutes.
const ATTEMPTS: usize = 3;

/// The interpreter of an environment in which `import torch` works; made on first use.
pub(crate) fn torch_python() -> anyhow::Result<PathBuf> {
    python(
        "interop/requirements.txt",
        "import torch, numpy; print(torch.__version__)",
    )
}

/// The interpreter of an environment that knows the kinds of Kubernetes; made on first use.
pub(crate) fn kubernetes_python() -> anyhow::Result<PathBuf> {
    python(
        "examples/kubernetes/check/requirements.txt",
        "import kubernetes_validate, kubeflow_trainer_api",
    )
}

/// The interpreter of an environment with what builds and checks the Python package; made on first use.
pub(crate) fn tools_python() -> anyhow::Result<PathBuf> {
    python("python/requirements.txt", "import maturin, mypy, ziglang")
}

/// The interpreter of the environment with the requirements of this file, in which `once` runs.
fn python(file: &str, once: &str) -> anyhow::Result<PathBuf> {
    let base = base_python()?;
    let requirements = requirements(file)?;
    let folder = cache_folder()?.join(folder_name(&base.version, &requirements));
    make_once(&folder, &folder.join(MARKER), || {
        build(&base, &folder, &requirements, once)
    })?;
    Ok(folder.join("bin").join("python"))
}

/// Makes a folder of the cache, unless it has the file that is made last.
pub(crate) fn make_once(
    folder: &Path,
    last: &Path,
    make: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if last.is_file() {
        return Ok(());
    }
    let cache = folder.parent().expect("the cache folder has a name");
    fs::create_dir_all(cache).with_context(|| format!("failed to create {}", cache.display()))?;
    let lock_path = folder.with_extension("lock");
    let _lock = File::create(&lock_path)
        .and_then(|lock| lock.lock().map(|()| lock))
        .with_context(|| format!("failed to lock {}", lock_path.display()))?;
    // Another run may have made it while this one waited for the lock.
    match last.is_file() {
        true => Ok(()),
        false => make(),
    }
}

struct BasePython {
    /// Name or path of the interpreter.
    program: String,
    /// `3.11`
    version: String,
}

fn base_python() -> anyhow::Result<BasePython> {
    let program = "python3".to_owned();
    if !succeeds(Command::new(&program).args(["-c", "import venv, ensurepip"])) {
        apt_install(&["python3", "python3-venv"])?;
    }
    let version = output(
        Command::new(&program).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]),
    )?;
    let version = version.trim().to_owned();
    let minor = version
        .strip_prefix("3.")
        .and_then(|minor| minor.parse::<u32>().ok());
    ensure!(
        minor.is_some_and(|minor| minor >= 11),
        "python3 is version {version}; PyTorch and the package rdzv need 3.11 or newer"
    );
    Ok(BasePython { program, version })
}

fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let apt = || {
        let root_user = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
        let mut command = Command::new(if root_user { "apt-get" } else { "sudo" });
        if !root_user {
            command.arg("apt-get");
        }
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    step("refresh the package lists", apt().arg("update"))
        .and_then(|()| {
            step(
                "install Python",
                apt().args(["install", "-y"]).args(packages),
            )
        })
        .with_context(|| {
            format!(
                "please install these packages yourself: {}",
                packages.join(" ")
            )
        })
}

/// The lines of a file of requirements, without comments.
fn requirements(file: &str) -> anyhow::Result<Vec<String>> {
    let path = root().join(file);
    let text =
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    Ok(requirement_lines(&text))
}

fn requirement_lines(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

fn folder_name(version: &str, requirements: &[String]) -> String {
    let list = requirements.join("-");
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_".contains(c) {
            c
        } else {
            '_'
        }
    };
    format!("python{version}-{list}")
        .chars()
        .map(plain)
        .collect()
}

/// Where things are kept that take long to fetch.
pub(crate) fn cache_folder() -> anyhow::Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = from("RDZV_CACHE") {
        return std::path::absolute(folder).context("failed to resolve RDZV_CACHE");
    }
    if let Some(folder) = from("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(folder).join("rdzv"));
    }
    match from("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".cache").join("rdzv")),
        None => bail!("no place for what the tests need: set RDZV_CACHE to a folder"),
    }
}

fn build(
    base: &BasePython,
    folder: &Path,
    requirements: &[String],
    once: &str,
) -> anyhow::Result<()> {
    println!(
        "\n==> making the Python environment (once)\n    {}",
        folder.display()
    );
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("failed to clear {}", folder.display()))?;
    }
    let python = folder.join("bin").join("python");
    step(
        "create the virtual environment",
        Command::new(&base.program).args(["-m", "venv"]).arg(folder),
    )?;
    install(&python, requirements)?;
    step(
        "import its packages once",
        Command::new(&python).args(["-c", once]),
    )?;
    fs::write(folder.join(MARKER), requirements.join("\n"))
        .with_context(|| format!("failed to write into {}", folder.display()))
}

fn install(python: &Path, requirements: &[String]) -> anyhow::Result<()> {
    let mut last = None;
    for attempt in 1..=ATTEMPTS {
        let mut pip = Command::new(python);
        // The wheels are kept installed; a second copy in pip's cache would double the space.
        pip.args([
            "-m",
            "pip",
            "install",
            "--no-cache-dir",
            "--retries",
            "10",
            "--quiet",
        ])
        .args(requirements);
        match step(&format!("install {}", requirements.join(", ")), &mut pip) {
            Ok(()) => return Ok(()),
            Err(error) => {
                println!("    attempt {attempt} of {ATTEMPTS}: {error}");
                last = Some(line(&pip));
            }
        }
    }
    bail!(
        "installing the Python packages failed {ATTEMPTS} times: {}",
        last.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_list_drops_comments_and_blanks() {
        let lines = requirement_lines("# why\ntorch==2.15.0  # pinned\n\n numpy\n");
        assert_eq!(lines, ["torch==2.15.0", "numpy"]);
    }

    #[test]
    fn the_folder_is_named_after_interpreter_and_requirements() {
        let name = folder_name("3.11", &["torch==2.15.0".into(), "numpy".into()]);
        assert_eq!(name, "python3_11-torch__2_15_0-numpy");
        assert!(
            !name.contains('.'),
            "the lock file is told apart by its extension"
        );
    }
}
