//! `cargo xtask test`: all tests with one command, given cargo and Python.
//!
//! nextest runs the tests of Rust. pytest runs the tests of `interop/` (PyTorch against the built
//! binaries), of the Python package ([`crate::python`]), and of the manifests in
//! `examples/kubernetes`. A plain `cargo test` ignores tests that need an etcd server or gigabytes
//! of memory; they run here. If PyTorch or etcd is missing, the run fails; it never skips tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{panic, thread};

use anyhow::{bail, ensure};

use crate::command::{Variables, builder, cargo, root, step, step_aside, target_folder};
use crate::python::IN_PARALLEL;
use crate::{install, python, slurm};

/// Programs that the interop suite starts, by the variables that name them.
const PROGRAMS: [(&str, &str); 5] = [
    ("RDZV_STORE_CLIENT", "store_client"),
    ("RDZV_STATE_CODEC", "state_codec"),
    ("RDZV_MEMBER", "member"),
    ("RDZV_PLAIN_STORE", "serve"),
    ("RDZV_PLACEMENT", "placement"),
];

/// Files of the build folder that the interop suite also needs.
const BESIDE: [(&str, &str); 2] = [
    ("RDZV_BINARY", "rdzv"),
    ("RDZV_DLPACK_BORDER", "libdlpack_border.so"),
];

/// Folder of the tests with a real Slurm.
const SLURM: &str = "interop/slurm";

/// Runs all tests, or with arguments only pytest.
///
/// The arguments are passed on, for example `-k queue`. `--upstream` alone runs PyTorch's own
/// suites.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    if arguments == ["--upstream"] {
        return python::upstream();
    }
    build(&[])?;
    if arguments.is_empty() {
        return suites(&[], || Ok(()));
    }
    interop(arguments)?;
    python::test(&python::installed()?, arguments)
}

/// Runs every suite, and names all that failed.
///
/// [`build`] compiled the programs with the same `variables`. Tests of Rust have more time limits.
/// So `aside` and the tests of Python without time limits run beside them, with the lowest
/// priority.
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

/// Returns the result of a thread, or continues its panic.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Compiles every program that tests start, and every test.
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

/// Runs the tests of Rust.
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

/// Makes the binary of all test programs link its names.
///
/// Returns the paths of `names`.
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

/// Returns a subcommand of cargo that [`crate::setup`] installed.
///
/// It is started as cargo would start it.
pub(crate) fn cargo_tool(name: &str) -> anyhow::Result<Command> {
    let mut tool = builder(install::tool(&format!("cargo-{name}"))?);
    tool.arg(name);
    Ok(tool)
}
