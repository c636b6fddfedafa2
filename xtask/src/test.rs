//! `cargo xtask test`: runs all tests, on a machine with cargo and Python.
//!
//! nextest runs the tests of Rust. pytest runs the tests of `interop/` (PyTorch against the new
//! binaries), of the Python package ([`crate::python`]) and of the manifests in
//! `examples/kubernetes`. Tests that need an etcd server, or gigabytes of memory, run here, but a
//! plain `cargo test` ignores them. The task fails without PyTorch or etcd; it never skips their
//! tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{panic, thread};

use anyhow::{bail, ensure};

use crate::command::{Variables, builder, cargo, root, step, step_aside, target_folder};
use crate::python::IN_PARALLEL;
use crate::{install, python, slurm};

/// Programs for the interop suite, and the variables that contain their paths.
const PROGRAMS: [(&str, &str); 5] = [
    ("RDZV_STORE_CLIENT", "store_client"),
    ("RDZV_STATE_CODEC", "state_codec"),
    ("RDZV_MEMBER", "member"),
    ("RDZV_PLAIN_STORE", "serve"),
    ("RDZV_PLACEMENT", "placement"),
];

/// Further build outputs for the interop suite, with their variables.
const BESIDE: [(&str, &str); 2] = [
    ("RDZV_BINARY", "rdzv"),
    ("RDZV_DLPACK_BORDER", "libdlpack_border.so"),
];

/// Folder of the tests that run a real Slurm.
const SLURM: &str = "interop/slurm";

/// Runs all tests, or only pytest with the given arguments, such as `-k queue`.
///
/// The single argument `--upstream` runs PyTorch's suites instead, and `--browser` the tests of the
/// page in Chromium.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    if arguments == ["--upstream"] {
        return python::upstream();
    }
    if arguments == ["--browser"] {
        return browser();
    }
    build(&[])?;
    if arguments.is_empty() {
        return suites(&[], || Ok(()));
    }
    interop(arguments)?;
    python::test(&python::installed()?, arguments)
}

/// Runs every suite, and reports all suites that failed.
///
/// [`build`] must have compiled the programs with the same `variables`. The tests of Rust have many
/// time limits, so only `aside` and the Python tests without time limits run in parallel with them,
/// at the lowest priority.
pub(crate) fn suites(
    variables: &Variables,
    aside: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    let (rust, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let (aside, installed) = (aside(), python::installed());
            let unhurried = installed
                .as_ref()
                .map(|python| python::test_unhurried(python));
            (aside, unhurried.unwrap_or(Ok(())), installed)
        });
        (rust(variables), joined(beside))
    });
    let (aside, unhurried, installed) = beside;
    let python = || {
        let tested = installed.and_then(|python| python::test(&python, &[]));
        [tested, manifests()]
    };
    let (python, others) = thread::scope(|scope| {
        let python = scope.spawn(python);
        let examples = scope.spawn(|| examples(variables));
        let interop = interop(&[]);
        (joined(python), [interop, joined(examples)])
    });
    let results = [rust, aside, unhurried]
        .into_iter()
        .chain(python)
        .chain(others);
    let failures = results.filter_map(Result::err);
    let failures: Vec<_> = failures.map(|error| format!("{error:#}")).collect();
    if failures.is_empty() {
        return Ok(());
    }
    bail!("{}", failures.join("\n"))
}

/// Returns the result of a thread, and propagates its panic.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Compiles all tests, and all programs that they start.
pub(crate) fn build(variables: &Variables) -> anyhow::Result<()> {
    let parts = [
        ("build", &["build", "--lib", "--bins", "--examples"][..]),
        ("build of the tests", &["test", "--no-run"]),
    ];
    for (title, arguments) in parts {
        let mut command = cargo();
        command.args(arguments).args(["--workspace", "--locked"]);
        step(title, command.envs(variables.iter().cloned()))?;
    }
    Ok(())
}

/// Runs all tests of Rust, including the ignored ones.
fn rust(variables: &Variables) -> anyhow::Result<()> {
    let mut nextest = cargo_tool("nextest")?;
    nextest
        .args(["run", "--workspace", "--locked", "--profile", "ci"])
        .args(["--run-ignored", "all", "--retries", "0"])
        .envs(variables.iter().cloned());
    step("tests of Rust", &mut nextest)
}

/// Runs the examples in the documentation.
fn examples(variables: &Variables) -> anyhow::Result<()> {
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--locked", "--doc", "--quiet"])
        .envs(variables.iter().cloned());
    step_aside("examples of the documentation", &mut command)
}

/// Checks the manifests of Kubernetes with the `rdzv` that [`build`] compiled.
fn manifests() -> anyhow::Result<()> {
    let mut pytest = Command::new(install::python()?);
    pytest
        .current_dir(root())
        .args(["-m", "pytest", "-ra", "-p", "no:cacheprovider"])
        .arg("examples/kubernetes/check")
        .env("RDZV_BINARY", target_folder()?.join("debug").join("rdzv"));
    step_aside("manifests of Kubernetes", &mut pytest)
}

/// Tests the page of a job in Chromium, from `RDZV_CHROMIUM` or `PATH`.
fn browser() -> anyhow::Result<()> {
    let mut build = cargo();
    build.args(["build", "--locked", "--package", "rdzv", "--bin", "rdzv"]);
    step("build", &mut build)?;
    let mut pytest = Command::new(install::python()?);
    pytest
        .current_dir(root())
        .args(["-m", "pytest", "-ra", "-p", "no:cacheprovider"])
        .arg("crates/launch/cli/tests/browser")
        .env("RDZV_BINARY", target_folder()?.join("debug").join("rdzv"))
        .env("RDZV_PICTURES", target_folder()?.join("browser"));
    step("page in a browser", &mut pytest)
}

/// Runs PyTorch against the programs that [`build`] compiled.
fn interop(arguments: &[String]) -> anyhow::Result<()> {
    let built = target_folder()?.join("debug");
    let names = PROGRAMS.map(|(_, name)| name);
    let paths = programs(&built.join("rdzv-test-programs"), &names)?;
    let variables = PROGRAMS.map(|(variable, _)| variable);
    let mut programs: Vec<_> = variables.into_iter().zip(paths).collect();
    for (variable, name) in BESIDE {
        let path = built.join(name);
        ensure!(path.is_file(), "{} was not built", path.display());
        programs.push((variable, path));
    }
    let mut pytest = Command::new(install::python()?);
    pytest
        .current_dir(root())
        .args(["-m", "pytest", "interop"])
        .args(IN_PARALLEL)
        .args(arguments)
        .envs(programs);
    let proctracks = slurm::proctracks();
    if proctracks.is_empty() {
        pytest.args(["--ignore", SLURM]);
    }
    pytest.env(slurm::PROCTRACK, proctracks.join(" "));
    step_aside("tests with PyTorch", &mut pytest)
}

/// Returns the paths of the test programs `names`.
///
/// All of them are links to one binary, which creates the links itself.
pub(crate) fn programs(all: &Path, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    step("names of the test programs", &mut Command::new(all))?;
    let folder = all.with_file_name("programs");
    let paths = names.iter().map(|name| {
        let path = folder.join(name);
        ensure!(path.is_file(), "{} was not made", path.display());
        Ok(path)
    });
    paths.collect()
}

/// Returns the command of a cargo subcommand, as cargo itself would start it.
pub(crate) fn cargo_tool(name: &str) -> anyhow::Result<Command> {
    let mut tool = builder(install::tool(&format!("cargo-{name}"))?);
    tool.arg(name);
    Ok(tool)
}
