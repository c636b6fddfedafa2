//! Installation into the cache folder, which all clones share.
//!
//! The cache folder is `$RDZV_CACHE` if that is set, then `$XDG_CACHE_HOME/rdzv`, then
//! `~/.cache/rdzv`. The name of an environment's folder contains the hash of its requirements. The
//! last step of an installation writes a marker file, so that an incomplete folder is detected. A
//! lock prevents two runs from creating the folder at the same time.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{output, root, step, succeeds};

/// Marker file of an environment that is completely installed.
const MARKER: &str = ".compiled";

/// Requirements of the tools, with hashes.
///
/// `cargo xtask setup --lock` generates this file from the `.in` file beside it.
pub(crate) const TOOLS: &str = "xtask/tools.txt";

/// Requirements of the Python environment, generated in the same way.
pub(crate) const PYTHON: &str = "python/requirements.txt";

/// Returns the path of a tool. Installs all of `xtask/tools.in` on first use.
pub(crate) fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let folder = environment("tools", TOOLS, |folder| {
        if !succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"])) {
            apt_install(&["python3", "python3-venv"])?;
        }
        step(
            "make the environment",
            Command::new("python3").args(["-m", "venv"]).arg(folder),
        )?;
        let install = "-m pip install --quiet --no-cache-dir --retries 10 --require-hashes -r";
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(install.split(' ')).arg(TOOLS).current_dir(root());
        step("install the tools", &mut pip)
    })?;
    Ok(folder.join("bin").join(name))
}

/// Returns the interpreter of the environment with PyTorch.
///
/// The first use creates the environment.
pub(crate) fn python() -> anyhow::Result<PathBuf> {
    let uv = tool("uv")?;
    let version = "import sys; assert sys.version_info >= (3, 11), sys.version";
    output(Command::new("python3").args(["-c", version]))
        .context("PyTorch and the package rdzv need Python 3.11 or newer")?;
    let folder = environment("python", PYTHON, |folder| {
        let uv = |arguments: &str| {
            let mut command = Command::new(&uv);
            // Installed files are links into uv's cache, so both need the same file system.
            command.env("UV_CACHE_DIR", folder.with_file_name("uv"));
            command
                .env("UV_HTTP_TIMEOUT", "180")
                .current_dir(root())
                .args(arguments.split(' '));
            command
        };
        let mut venv = uv("venv --quiet --python python3");
        step("make the environment", venv.arg(folder))?;
        // Without bytecode, the first import would compile, perhaps without write permission.
        let install = "pip install --quiet --compile-bytecode --require-hashes -r";
        step(
            "install PyTorch and the tools of Python",
            uv(install).args([PYTHON, "--python"]).arg(folder),
        )?;
        let once = ["-c", "import torch, numpy; print(torch.__version__)"];
        step(
            "import PyTorch once",
            Command::new(folder.join("bin/python")).args(once),
        )
    })?;
    Ok(folder.join("bin").join("python"))
}

/// Returns the folder of an environment. Calls `make` if it is not complete.
fn environment(
    name: &str,
    requirements: &str,
    make: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let path = root().join(requirements);
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&text);
    let folder = cache_folder()?.join(format!("{name}-{:016x}", hasher.finish()));
    let marker = folder.join(MARKER);
    make_once(&folder, &marker, || {
        println!(
            "\n==> installing {requirements} (once)\n    {}",
            folder.display()
        );
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot clear {}", folder.display()))?;
        }
        make(&folder)?;
        fs::write(&marker, "").with_context(|| format!("cannot write {}", marker.display()))
    })?;
    Ok(folder)
}

/// Calls `make` unless `folder` has the file `last`, which `make` creates last.
pub(crate) fn make_once(
    folder: &Path,
    last: &Path,
    make: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if last.is_file() {
        return Ok(());
    }
    let cache = folder.parent().context("the cache folder has no name")?;
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let lock = folder.with_extension("lock");
    let _lock = File::create(&lock)
        .and_then(|lock| lock.lock().map(|()| lock))
        .with_context(|| format!("cannot lock {}", lock.display()))?;
    // Another run may have created the folder while this one waited for the lock.
    if last.is_file() { Ok(()) } else { make() }
}

/// Installs Debian packages, with sudo unless the user is root.
pub(crate) fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
        if !is_root {
            command.arg("apt-get");
        }
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(arguments);
        command
    };
    let install = ["install", "-y", "--no-install-recommends"];
    step("refresh the package lists", &mut apt(&["update"]))
        .and_then(|()| step("install packages", apt(&install).args(packages)))
        .with_context(|| format!("install these packages yourself: {}", packages.join(" ")))
}

/// Returns `PATH` with `folder` as its first folder.
pub(crate) fn path_with(folder: &Path) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", folder.display())
}

/// `true` if `PATH` has a program with this name.
pub(crate) fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Returns the cache folder, which holds all large downloads.
pub(crate) fn cache_folder() -> anyhow::Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let below = |base: &OsStr, rest: &str| Path::new(base).join(rest);
    let folder = from("RDZV_CACHE").map(PathBuf::from);
    let folder = folder.or_else(|| Some(below(&from("XDG_CACHE_HOME")?, "rdzv")));
    let folder = folder.or_else(|| Some(below(&from("HOME")?, ".cache/rdzv")));
    ensure!(
        folder.is_some(),
        "no cache folder for the downloads of the tests: set RDZV_CACHE"
    );
    std::path::absolute(folder.unwrap_or_default()).context("cannot resolve the cache folder")
}
