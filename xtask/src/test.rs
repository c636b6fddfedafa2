//! `cargo xtask test`: every test there is, with one command, on a machine that has cargo and
//! Python.
//!
//! The test programs of Rust, and `interop/`, which holds real PyTorch against the binaries just built,
//! run side by side, and beside them the tests of the Python package ([`crate::python`]) and the manifests in
//! `examples/kubernetes`: see [`crate::pool`]. Tests that need an etcd server, or gigabytes of memory, are
//! ignored by a plain `cargo test`, and run here. PyTorch or etcd missing is a failure, never a skip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::command::{cargo, line, metadata, root, step};
use crate::pool::{self, Job, no_names, pytest_failures, rust_failures};
use crate::{etcd, python, slurm, venv};

/// The programs that the interop suite starts, by the variables that name them.
const PROGRAMS: [(&str, &str); 5] = [
    ("RDZV_STORE_CLIENT", "store_client"),
    ("RDZV_STATE_CODEC", "state_codec"),
    ("RDZV_MEMBER", "member"),
    ("RDZV_PLAIN_STORE", "serve"),
    ("RDZV_PLACEMENT", "placement"),
];

/// What else it needs, of the same folder.
const BESIDE: [(&str, &str); 2] = [
    ("RDZV_BINARY", "rdzv"),
    ("RDZV_DLPACK_BORDER", "libdlpack_border.so"),
];

/// Variables for cargo, which decide how the workspace is compiled.
pub(crate) type Variables = [(&'static str, String)];

/// Ends the name of a job of the interop suite.
const WITH_PYTORCH: &str = " with PyTorch";

/// The folder of the tests with a real Slurm.
const SLURM: &str = "interop/slurm";

/// Those without PyTorch.
const WITHOUT_TRAINING: &str = "interop/slurm/test_slurm.py";

/// The jobs that take longest, the longest first; they begin first.
const LONGEST: [&str; 25] = [
    "python/tests/upstream/test_distributed.py",
    "interop/slurm cgroup",
    "interop/slurm/test_slurm.py linuxproc",
    "interop/test_mixed_fleet.py",
    "interop/test_ddp.py",
    "rdzv-rendezvous contract",
    "rdzv-rpc large",
    "interop/test_torchrun_link.py",
    "interop/test_process_group.py",
    "rdzv-rpc hostile",
    "interop/test_hangs.py",
    "interop/test_secret.py",
    "rdzv e2e",
    "interop/test_error_files.py",
    "rdzv-sim rendezvous",
    "interop/test_faults.py",
    "interop/test_observing.py",
    "interop/test_c10d_rendezvous.py",
    "rdzv-rendezvous etcd",
    "interop/test_elastic_ddp.py",
    "rdzv-rpc groups",
    "interop/test_usage.py",
    "interop/test_store_client.py",
    "rdzv-sim store",
    "interop/test_native_rendezvous.py",
];

/// A test program that cargo has built, as it describes it.
#[derive(Debug, Deserialize)]
struct Artifact {
    /// For a test program.
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// A line that cargo prints for programs to read.
#[derive(Debug, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact(Artifact),
    #[serde(other)]
    Other,
}

/// A test program that can be started.
#[derive(Debug)]
pub(crate) struct TestProgram {
    /// Its package and its name: `rdzv e2e`.
    title: String,
    path: PathBuf,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
}

/// Extra arguments go to pytest, e.g. `-k queue`. `--upstream` alone runs PyTorch's own suite.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    if arguments == ["--upstream"] {
        return python::upstream();
    }
    let programs = build(&[])?;
    let mut jobs = rust(programs, &[])?;
    jobs.push(manifests()?);
    jobs.extend(interop(arguments)?);
    jobs.extend(python::jobs(arguments, &[])?);
    run_all(jobs)
}

/// Runs these jobs, those of [`LONGEST`] first: a long one that begins late runs alone at the end.
pub(crate) fn run_all(mut jobs: Vec<Job>) -> anyhow::Result<()> {
    jobs.sort_by_key(|job| {
        let title = job.title.as_str();
        let name = title.strip_suffix(WITH_PYTORCH).unwrap_or(title);
        let place = LONGEST.iter().position(|long| *long == name);
        place.unwrap_or(LONGEST.len())
    });
    pool::run(jobs)
}

/// Compiles every test and every program that tests start.
pub(crate) fn build(variables: &Variables) -> anyhow::Result<Vec<TestProgram>> {
    let variables = || variables.iter().map(|(name, value)| (name, value));
    step(
        "build",
        cargo()
            .args(["build", "--workspace", "--locked"])
            .args(["--lib", "--bins", "--examples"])
            .envs(variables()),
    )?;
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .envs(variables());
    let text = line(&command);
    println!("\n==> build of the tests\n    {text}");
    let start = Instant::now();
    let built = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to start `{text}`"))?;
    ensure!(
        built.status.success(),
        "build of the tests failed ({}): {text}",
        built.status
    );
    println!(
        "    build of the tests: done in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let printed = String::from_utf8(built.stdout).context("cargo printed no UTF-8")?;
    test_programs(&printed)
}

/// The test programs among what cargo printed.
fn test_programs(printed: &str) -> anyhow::Result<Vec<TestProgram>> {
    let packages = metadata()?.packages;
    let mut programs = Vec::new();
    for line in printed.lines() {
        let message = serde_json::from_str(line)
            .with_context(|| format!("cargo printed something else than expected: {line}"))?;
        let Message::CompilerArtifact(artifact) = message else {
            continue;
        };
        let (Some(path), true) = (artifact.executable, artifact.profile.test) else {
            continue;
        };
        let package = packages
            .iter()
            .find(|package| package.manifest_path == artifact.manifest_path)
            .with_context(|| format!("{} is of no package", path.display()))?;
        let folder = artifact.manifest_path.parent().unwrap_or(Path::new("/"));
        programs.push(TestProgram {
            title: format!("{} {}", package.name, artifact.target.name),
            path,
            folder: folder.to_owned(),
        });
    }
    ensure!(!programs.is_empty(), "cargo has built no test program");
    Ok(programs)
}

/// The Rust tests: the programs that [`build`] compiled with the same `variables`, and the examples of
/// the documentation.
pub(crate) fn rust(programs: Vec<TestProgram>, variables: &Variables) -> anyhow::Result<Vec<Job>> {
    let server = etcd::server()?;
    let mut jobs = Vec::new();
    for TestProgram {
        title,
        path,
        folder,
    } in programs
    {
        let server = server.clone();
        let command = move || {
            let mut command = Command::new(&path);
            command
                .current_dir(&folder)
                .arg("--include-ignored")
                .env("RDZV_TEST_PROGRAMS_BUILT", "1")
                .env(etcd::VARIABLE, &server);
            command
        };
        jobs.push(Job {
            title,
            command: command(),
            failures: rust_failures,
            again: Box::new(move |tests| {
                let mut command = command();
                command.args(["--test-threads=1", "--exact"]).args(tests);
                command
            }),
        });
    }
    let variables: Vec<_> = variables.to_vec();
    let examples = move || {
        let mut command = cargo();
        command
            .args(["test", "--workspace", "--locked", "--doc"])
            .env("RDZV_TEST_PROGRAMS_BUILT", "1")
            .envs(variables.iter().map(|(name, value)| (name, value)));
        command
    };
    jobs.push(Job {
        title: "examples of the documentation".to_owned(),
        command: examples(),
        failures: no_names,
        again: Box::new(move |_| examples()),
    });
    Ok(jobs)
}

/// Checks the manifests of Kubernetes, and what the `rdzv` that [`build`] compiled makes of them.
pub(crate) fn manifests() -> anyhow::Result<Job> {
    let python = venv::kubernetes_python()?;
    let rdzv = target_folder()?.join("debug").join("rdzv");
    let pytest = move || {
        let mut command = Command::new(&python);
        command
            .current_dir(root())
            .args(["-m", "pytest", "-ra", "-p", "no:cacheprovider"])
            .arg("examples/kubernetes/check")
            .env("RDZV_BINARY", &rdzv);
        command
    };
    Ok(Job {
        title: "examples/kubernetes".to_owned(),
        command: pytest(),
        failures: no_names,
        again: Box::new(move |_| pytest()),
    })
}

/// The environment of the interop suite: an interpreter with PyTorch, and the variables that name the programs that [`build`]
/// compiled.
pub(crate) fn interop_setting() -> anyhow::Result<(PathBuf, Vec<(&'static str, PathBuf)>)> {
    let python = venv::torch_python()?;
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
    Ok((python, programs))
}

/// Holds PyTorch against the programs that [`build`] compiled: a job for each file, or one of all files
/// with extra arguments for pytest.
pub(crate) fn interop(arguments: &[String]) -> anyhow::Result<Vec<Job>> {
    let (python, programs) = interop_setting()?;
    let server = etcd::server()?;
    // A real Slurm follows processes in one of two ways, each in a job of its own.
    let mut files = match arguments {
        [] => interop_files()?
            .into_iter()
            .map(|file| (file, ""))
            .collect(),
        _ => vec![("interop".to_owned(), "")],
    };
    let proctracks = slurm::proctracks();
    let (without_slurm, all) = (proctracks.is_empty(), proctracks.join(" "));
    if arguments.is_empty() {
        // Training takes long, and once is enough.
        let paths = std::iter::once(SLURM).chain(std::iter::repeat(WITHOUT_TRAINING));
        let each = proctracks.iter().zip(paths);
        files.extend(each.map(|(name, path)| (path.to_owned(), *name)));
    }
    let job = |(file, proctrack): (String, &'static str)| {
        let (python, server, programs) = (python.clone(), server.clone(), programs.clone());
        let all = all.clone();
        let pytest = move || {
            let mut command = Command::new(&python);
            command
                .current_dir(root())
                .args(["-m", "pytest"])
                .envs(
                    programs
                        .iter()
                        .map(|(variable, program)| (variable, program)),
                )
                .env(etcd::VARIABLE, &server);
            let proctrack = if proctrack.is_empty() {
                &all
            } else {
                proctrack
            };
            command.env(slurm::PROCTRACK, proctrack);
            if without_slurm {
                command.args(["--ignore", SLURM]);
            }
            command
        };
        let mut command = pytest();
        command.arg(&file).args(arguments);
        let of = if proctrack.is_empty() { "" } else { " " };
        Job {
            title: format!("{file}{of}{proctrack}{WITH_PYTORCH}"),
            command,
            failures: pytest_failures,
            again: Box::new(move |tests| {
                let mut command = pytest();
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

/// Has the binary of all test programs make their names, and returns the paths of these.
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

/// The files of tests in `interop/`.
fn interop_files() -> anyhow::Result<Vec<String>> {
    let folder = root().join("interop");
    let mut files = Vec::new();
    for entry in folder.read_dir().context("failed to list interop/")? {
        let name = entry.context("failed to list interop/")?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("test_") && name.ends_with(".py") {
            files.push(format!("interop/{name}"));
        }
    }
    ensure!(!files.is_empty(), "there is no test in interop/");
    files.sort();
    Ok(files)
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    Ok(metadata()?.target_directory)
}
