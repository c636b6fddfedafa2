//! The tests of the Python package: against the wheel, installed as a user has it.
//!
//! The environment sees PyTorch and the tools in the environments that have them, by a file of paths, and has
//! nothing of its own but the wheel. It is named after the wheel's content.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::command::{output, root, step};
use crate::pool::{Job, pytest_failures};
use crate::test::{Variables, target_folder};
use crate::{venv, wheel};

/// Begins the names of the environments.
const ENVIRONMENT: &str = "python-";

/// `cargo xtask python`: the tests of the Python package alone. After `--release`, with a wheel of that profile: for tests that are
/// made long. The other arguments go to pytest: files from `python/tests` on, or `-k` with words.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (python, arguments) = match arguments {
        [first, rest @ ..] if first == "--release" => (environment(&wheel::release()?)?, rest),
        all => {
            wheel::build_launcher()?;
            (installed(&[])?, all)
        }
    };
    step(
        "tests of the Python package",
        pytest(&python).args(arguments),
    )
}

/// `cargo xtask test --upstream`: PyTorch's own suites for `torch.distributed`, all of them: collectives with rdzv and with
/// gloo, and RPC.
pub(crate) fn upstream() -> anyhow::Result<()> {
    wheel::build_launcher()?;
    let python = installed(&[])?;
    for (suite, folder) in [("collectives", "upstream"), ("RPC", "torch_rpc")] {
        let tests = root().join("python").join("tests");
        let mut command = Command::new(&python);
        command
            .arg(tests.join(folder).join("check.py"))
            .env_remove("PYTHONPATH")
            .env_remove("VIRTUAL_ENV");
        step(&format!("PyTorch's own tests of {suite}"), &mut command)?;
    }
    Ok(())
}

/// pytest in the folder of the tests.
fn pytest(python: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .current_dir(root().join("python").join("tests"))
        .args(["-m", "pytest"]);
    // The developer's own Python is no part of it.
    command.env_remove("PYTHONPATH").env_remove("VIRTUAL_ENV");
    command
}

/// A job for each file of tests, or one for all of them with extra arguments for pytest. [`build`] has
/// compiled the workspace with the same `variables`.
///
/// [`build`]: crate::test::build
pub(crate) fn jobs(arguments: &[String], variables: &Variables) -> anyhow::Result<Vec<Job>> {
    let python = installed(variables)?;
    let tests = root().join("python").join("tests");
    let mut files = Vec::new();
    match arguments {
        [] => collect(&tests, &tests, &mut files)?,
        _ => files.push(".".to_owned()),
    }
    files.sort();
    let job = |file: String| {
        let python = python.clone();
        let mut command = pytest(&python);
        command.arg(&file).args(arguments);
        Job {
            title: format!("python/tests/{file}"),
            command,
            failures: pytest_failures,
            again: Box::new(move |tests| {
                let mut command = pytest(&python);
                match tests.is_empty() {
                    true => command.arg(&file),
                    false => command.args(tests),
                };
                command
            }),
        }
    };
    Ok(files.into_iter().map(job).collect())
}

/// The files of tests below `folder`, named from `from`.
fn collect(from: &Path, folder: &Path, files: &mut Vec<String>) -> anyhow::Result<()> {
    let list = || format!("failed to list {}", folder.display());
    for entry in folder.read_dir().with_context(list)? {
        let path = entry.with_context(list)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            collect(from, &path, files)?;
        } else if name.starts_with("test_") && name.ends_with(".py") {
            let file = path.strip_prefix(from).unwrap_or(&path);
            files.push(file.display().to_string());
        }
    }
    Ok(())
}

/// The interpreter of an environment in which a wheel of the development profile is installed.
pub(crate) fn installed(variables: &Variables) -> anyhow::Result<PathBuf> {
    let target = target_folder()?;
    let wheel = wheel::dev(&target.join("wheel-dev"), variables)?;
    environment(&wheel)
}

/// The interpreter of an environment in which `wheel` is installed. Those of other wheels are removed.
pub(crate) fn environment(wheel: &Path) -> anyhow::Result<PathBuf> {
    let content = fs::read(wheel).with_context(|| format!("failed to read {}", wheel.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&content);
    let (torch, tools) = (venv::torch_python()?, venv::tools_python()?);
    hasher.write(torch.as_os_str().as_encoded_bytes());
    hasher.write(tools.as_os_str().as_encoded_bytes());
    let target = target_folder()?;
    let folder = target.join(format!("{ENVIRONMENT}{:016x}", hasher.finish()));
    let complete = folder.join(".complete");
    let make = || make(&folder, wheel, &[&torch, &tools], &complete);
    venv::make_once(&folder, &complete, make)?;
    for entry in target.read_dir()? {
        let other = entry?.path();
        let name = other.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(ENVIRONMENT) && other.is_dir() && other != folder {
            // Another run may be removing it too.
            let _ = fs::remove_dir_all(&other);
        }
    }
    Ok(folder.join("bin").join("python"))
}

fn make(folder: &Path, wheel: &Path, others: &[&Path], complete: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("failed to clear {}", folder.display()))?;
    }
    let torch = others[0];
    step(
        "make the environment of the Python tests",
        Command::new(torch)
            .args(["-m", "venv", "--without-pip"])
            .arg(folder),
    )?;
    let python = folder.join("bin").join("python");
    let site = output(Command::new(&python).args(["-c", SITE]))?;
    let paths = others
        .iter()
        .map(|other| output(Command::new(other).args(["-c", SITE])));
    let paths = paths.collect::<anyhow::Result<Vec<_>>>()?.concat();
    fs::write(Path::new(site.trim()).join("others.pth"), paths)?;
    step(
        "install the wheel",
        Command::new(torch)
            .args(["-m", "pip", "--python"])
            .arg(&python)
            .args(["install", "--quiet", "--no-deps", "--no-index"])
            .arg(wheel),
    )?;
    fs::write(complete, "")?;
    Ok(())
}

const SITE: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";
