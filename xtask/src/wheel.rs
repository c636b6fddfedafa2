//! `cargo xtask wheel`: builds the Python package, which contains the launcher.
//!
//! It calls the build backend of the package (`python/build/build_backend.py`), as `pip install .`
//! does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, bail, ensure};

use crate::command::{Variables, builder, root, step, target_folder};
use crate::install;

/// Newest glibc that a portable wheel may need; PyTorch needs this version too.
const GLIBC_ACCEPTED: &str = "2.28";

/// Version of glibc for which a portable wheel is linked.
const GLIBC: &str = "2.17";

/// Platform tag of a portable wheel.
const MANYLINUX: &str = "manylinux_2_17";

/// Command-line options: kind and folder of the wheel.
#[derive(Debug, Default)]
struct Options {
    /// `true` for a portable wheel, linked by zig for machines with an older glibc.
    zig: bool,
    /// Rust target of a portable wheel; `None` for the target of this machine.
    target: Option<String>,
    out: Option<PathBuf>,
}

/// Parses the arguments, builds the wheel and prints its path.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let options = options(arguments)?;
    let out = match &options.out {
        Some(out) => std::path::absolute(out).context("failed to resolve --out")?,
        None => target_folder()?.join("wheel"),
    };
    let wheel = if options.zig {
        portable(&out, options.target.as_deref())?
    } else {
        build(&out, "", &[])?
    };
    println!("\n{}", wheel.display());
    Ok(())
}

fn options(arguments: &[String]) -> anyhow::Result<Options> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.with_context(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--zig" => options.zig = true,
            "--target" => options.target = Some(value()?.clone()),
            "--out" => options.out = Some(PathBuf::from(value()?)),
            other => bail!("wheel: unknown argument '{other}'"),
        }
    }
    ensure!(
        options.zig || options.target.is_none(),
        "wheel: --target needs --zig, which links for other machines"
    );
    Ok(options)
}

/// Builds a wheel of the release profile for this machine.
pub(crate) fn release() -> anyhow::Result<PathBuf> {
    build(&target_folder()?.join("wheel"), "", &[])
}

/// Builds a portable wheel for this processor in `out`.
pub(crate) fn for_old_systems(out: &Path) -> anyhow::Result<PathBuf> {
    portable(out, None)
}

/// Builds a release wheel for machines with glibc [`GLIBC`] or newer.
pub(crate) fn portable(out: &Path, target: Option<&str>) -> anyhow::Result<PathBuf> {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let target = target.unwrap_or(&host);
    let tools = install::python()?;
    let folder = tools.parent().context("the tools have a folder")?;
    let mut zig = Command::new(folder.join("cargo-zigbuild"));
    step(
        "build of the launcher",
        zig.args(["zigbuild", "--release", "--locked", "--package", "rdzv"])
            .args(["--target", &format!("{target}.{GLIBC}")])
            .env("PATH", install::path_with(folder))
            .current_dir(root()),
    )?;
    let launcher = target_folder()?.join(target).join("release").join("rdzv");
    let arguments = format!("--target {target} --zig --compatibility {MANYLINUX}");
    let variables = [("RDZV_BUILD_LAUNCHER", launcher.display().to_string())];
    let wheel = build(out, &arguments, &variables)?;
    step(
        "inspection of the wheel",
        Command::new(&tools)
            .arg(root().join("python/build/inspect_wheel.py"))
            .arg(&wheel)
            .arg(GLIBC_ACCEPTED),
    )?;
    Ok(wheel)
}

/// Runs the build backend, and returns its wheel.
///
/// Deletes all earlier wheels in `out` first.
fn build(out: &Path, arguments: &str, variables: &Variables) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("failed to create {}", out.display()))?;
    for wheel in wheels(out)? {
        fs::remove_file(wheel)?;
    }
    let mut command = backend(BUILD, out)?;
    command
        .arg(arguments)
        .envs(variables.iter().map(|(name, value)| (name, value)));
    step("build of the wheel", &mut command)?;
    match &wheels(out)?[..] {
        [wheel] => Ok(wheel.clone()),
        _ => bail!("the build backend created no wheel in {}", out.display()),
    }
}

/// Writes the source distribution, all tracked files, into `out`.
pub(crate) fn sdist(out: &Path) -> anyhow::Result<()> {
    let program = "import sys, build_backend; build_backend.build_sdist(sys.argv[1])";
    step("source distribution", &mut backend(program, out)?)
}

/// Returns the command of a Python program that uses the build backend.
fn backend(program: &str, out: &Path) -> anyhow::Result<Command> {
    let python = install::python()?;
    let tools = python.parent().context("the tools have a folder")?;
    let mut command = builder(&python);
    command
        .args(["-c", program])
        .arg(out)
        .env("PYTHONPATH", root().join("python").join("build"))
        .env("PATH", install::path_with(tools));
    Ok(command)
}

/// Returns the paths of the wheels in a folder.
fn wheels(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = folder.read_dir()?;
    let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "whl"));
    Ok(paths)
}

/// Program that calls the build backend as pip does, without an environment.
const BUILD: &str = "\
import sys, build_backend
build_backend.build_wheel(sys.argv[1], {'build-args': sys.argv[2]})";

#[cfg(test)]
mod tests {
    use super::options;

    #[test]
    fn a_target_needs_zig() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(options(&words("--target aarch64-unknown-linux-gnu")).is_err());
        let given = options(&words("--zig --target aarch64-unknown-linux-gnu --out x")).unwrap();
        assert_eq!(given.target.as_deref(), Some("aarch64-unknown-linux-gnu"));
        assert!(options(&words("--dvi")).is_err());
    }
}
