//! Tests of the Python package, installed into an environment.
//!
//! The environment contains only the package. A `.pth` file refers to the environment in the cache,
//! which has PyTorch and the tools. The package comes from the build of the workspace, or from a
//! wheel of the release profile. A wheel of the development profile would compile all dependencies
//! again, because they have fewer features without the rest of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{cargo, lowest_priority, output, root, step, step_aside, target_folder};
use crate::{install, wheel};

/// Arguments that make pytest run three files at a time.
pub(crate) const IN_PARALLEL: [&str; 4] = ["-n", "3", "--dist", "loadfile"];

/// Runs `cargo xtask python`: only the tests of the Python package.
///
/// With `--release` as the first argument, tests a wheel of the release profile, for long tests.
/// The other arguments are passed to pytest: files relative to `python/tests`, or `-k` with words.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (python, arguments) = match arguments {
        [first, rest @ ..] if first == "--release" => (environment(&wheel::release()?)?, rest),
        all => {
            build()?;
            (installed()?, all)
        }
    };
    step(
        "tests of the Python package",
        pytest(&python).args(arguments),
    )
}

/// Runs `cargo xtask flags`: writes the flags that Python's `launch` accepts.
///
/// Their source is the table of the launcher.
pub(crate) fn flags() -> anyhow::Result<()> {
    build()?;
    let python = root().join("python");
    let mut generator = Command::new("python3");
    generator.arg(python.join("build").join("flags.py"));
    generator.arg(target_folder()?.join("debug").join("rdzv"));
    fs::write(
        python.join("rdzv").join("_flags.py"),
        output(&mut generator)?,
    )?;
    Ok(())
}

/// Runs `cargo xtask test --upstream`: test suites of `torch.distributed`.
///
/// These are PyTorch's suites of collectives, with rdzv and with gloo, and of RPC.
pub(crate) fn upstream() -> anyhow::Result<()> {
    build()?;
    let python = installed()?;
    for (suite, folder) in [("collectives", "upstream"), ("RPC", "torch_rpc")] {
        let tests = root().join("python").join("tests");
        let mut command = Command::new(&python);
        command
            .arg(tests.join(folder).join("check.py"))
            .env_remove("PYTHONPATH")
            .env_remove("VIRTUAL_ENV");
        step(&format!("PyTorch's tests of {suite}"), &mut command)?;
    }
    Ok(())
}

/// Modules of the package for users.
const MODULES: [&str; 14] = [
    "rdzv",
    "rdzv.elastic",
    "rdzv.rendezvous",
    "rdzv.rpc",
    "rdzv.rpc.backend_registry",
    "rdzv.rpc.functions",
    "rdzv.testing",
    "rdzv.torch",
    "rdzv.torch.backend",
    "rdzv.torch.elastic",
    "rdzv.torch.rpc",
    "rdzv.torchelastic.agent.server.api",
    "rdzv.torchelastic.rendezvous",
    "rdzv.worker",
];

/// Writes pages with the docstrings of the package into `folder`.
pub(crate) fn document(folder: &Path) -> anyhow::Result<()> {
    build()?;
    let packages = output(Command::new(install::tool("python")?).args(["-c", SITE]))?;
    let mut pdoc = Command::new(installed()?);
    pdoc.args(["-m", "pdoc", "--docformat", "markdown", "-o"])
        .arg(folder)
        .args(MODULES)
        .env("PYTHONPATH", packages.trim());
    step("docstrings", &mut pdoc)
}

/// Returns the command of pytest in the folder of the tests.
fn pytest(python: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .current_dir(root().join("python").join("tests"))
        .args(["-m", "pytest"]);
    // The tests must not use the Python environment of the developer.
    command.env_remove("PYTHONPATH").env_remove("VIRTUAL_ENV");
    // The processes of xdist must collect the same tests in the same order, even from sets.
    command.env("PYTHONHASHSEED", "0");
    command
}

/// Folders of tests that compute, and that have no time limits.
const UNHURRIED: [&str; 3] = ["docs", "typed", "upstream"];

/// Runs the tests of the package in parallel, with the Python of [`installed`].
///
/// Without arguments, runs all tests except those of [`test_unhurried`].
pub(crate) fn test(python: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let mut pytest = pytest(python);
    pytest.args(IN_PARALLEL).args(arguments);
    if arguments.is_empty() {
        pytest.args(UNHURRIED.map(|folder| format!("--ignore={folder}")));
    }
    step_aside("tests of the Python package", &mut pytest)
}

/// Runs the tests without time limits, with the lowest priority.
pub(crate) fn test_unhurried(python: &Path) -> anyhow::Result<()> {
    let mut pytest = pytest(python);
    pytest.args(UNHURRIED);
    let title = "tests of the Python package without time limits";
    step_aside(title, &mut lowest_priority(&pytest))
}

/// Builds the workspace, with the launcher and the extension.
fn build() -> anyhow::Result<()> {
    let parts = ["build", "--workspace", "--lib", "--bins", "--locked"];
    step("build of the package", cargo().args(parts))
}

/// Returns the interpreter of an environment with the package.
///
/// The package must be compiled already, by [`build`](crate::test::build).
pub(crate) fn installed() -> anyhow::Result<PathBuf> {
    let (python, site) = empty()?;
    let built = target_folder()?.join("debug");
    let package = site.join("rdzv");
    let sources = root().join("python");
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(sources.join("rdzv")).arg(&package);
    step("copy the package", &mut copy)?;
    fs::copy(built.join("lib_rdzv.so"), package.join("_rdzv.abi3.so"))?;
    fs::copy(built.join("rdzv"), python.with_file_name("rdzv"))?;
    // Writes the entry points, the name and the version.
    let tools = install::python()?;
    let folder = tools.parent().unwrap_or(Path::new(""));
    let mut metadata = Command::new(&tools);
    metadata
        .current_dir(root())
        .args(["-c", METADATA])
        .arg(&site)
        .env("PYTHONPATH", sources.join("build"))
        .env("PATH", install::path_with(folder));
    step("metadata of the package", &mut metadata)?;
    Ok(python)
}

/// Returns the interpreter of an environment in which `wheel` is installed.
pub(crate) fn environment(wheel: &Path) -> anyhow::Result<PathBuf> {
    let (python, _) = empty()?;
    let mut install = Command::new(install::tool("uv")?);
    let arguments = "pip install --quiet --no-deps --no-index --python";
    install.args(arguments.split(' ')).arg(&python).arg(wheel);
    step("install the wheel", &mut install)?;
    Ok(python)
}

/// Returns the interpreter of a new environment, and its package folder.
///
/// PyTorch and the tools come from the environment of the cache.
fn empty() -> anyhow::Result<(PathBuf, PathBuf)> {
    let (uv, base) = (install::tool("uv")?, install::python()?);
    let folder = target_folder()?.join("python");
    let python = folder.join("bin").join("python");
    let mut venv = Command::new(uv);
    venv.args(["venv", "--quiet", "--clear", "--python"])
        .arg(&base)
        .arg(&folder);
    step("make the environment of the Python tests", &mut venv)?;
    let site = output(Command::new(&python).args(["-c", SITE]))?;
    let others = output(Command::new(&base).args(["-c", SITE]))?;
    let site = PathBuf::from(site.trim());
    fs::write(site.join("others.pth"), others)?;
    Ok((python, site))
}

/// Part of an installer, which writes the metadata and the list of files.
const METADATA: &str = "\
import pathlib, sys, build_backend
site = pathlib.Path(sys.argv[1])
info = site / build_backend.prepare_metadata_for_build_wheel(str(site))
files = [*site.glob('rdzv/**/*'), *info.glob('**/*')]
lines = [f'{file.relative_to(site)},,\\n' for file in files if file.is_file()]
(info / 'RECORD').write_text(''.join(lines))";

/// Program that prints the `site-packages` folder.
const SITE: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";
