//! Etcd server that the tests of the etcd backends use.
//!
//! It comes from Debian's package `etcd-server`, which is unpacked into the cache folder (see
//! [`crate::install`]). It is not installed, so no root is needed, and no service starts. If you
//! have a server, or no `apt-get`, set `RDZV_ETCD` to the path of its program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{output, step};
use crate::install::{cache_folder, make_once};

/// Variable with the server's program, for xtask and for the tests.
pub(crate) const VARIABLE: &str = "RDZV_ETCD";

const PACKAGE: &str = "etcd-server";

const BY_HAND: &str = "the tests need an etcd server (3.4 or 3.5): install one and set RDZV_ETCD \
                       to the path of its program `etcd`";

/// Returns the path of a server's program, which is fetched at the first use.
pub(crate) fn server() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let program = std::path::absolute(given).context("failed to resolve RDZV_ETCD")?;
        ensure!(
            program.is_file(),
            "RDZV_ETCD names {}, which is no file",
            program.display()
        );
        return Ok(program);
    }
    let folder = cache_folder()?.join("etcd");
    let program = folder.join("usr").join("bin").join("etcd");
    make_once(&folder, &program, || fetch(&folder).context(BY_HAND))?;
    Ok(program)
}

/// Makes `folder`, with the files of the package.
fn fetch(folder: &Path) -> anyhow::Result<()> {
    println!("\n==> fetching etcd (once)\n    {}", folder.display());
    let work = folder.with_extension("part");
    // Files of an aborted run.
    let _ = fs::remove_dir_all(&work);
    let (lists, files) = (work.join("lists"), work.join("files"));
    for made in [&lists.join("partial"), &files] {
        fs::create_dir_all(made).with_context(|| format!("failed to create {}", made.display()))?;
    }
    download(&work, &lists)?;
    let package = fs::read_dir(&work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .context("apt-get download left no package")?;
    step(
        "unpack the package",
        Command::new("dpkg").arg("-x").arg(package).arg(&files),
    )?;
    let version = output(Command::new(files.join("usr/bin/etcd")).arg("--version"))?;
    println!("    {}", version.lines().next().unwrap_or_default());
    // The rename ensures that the folder is complete if it exists.
    fs::rename(&files, folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let _ = fs::remove_dir_all(&work);
    Ok(())
}

/// Downloads the package into `work`.
///
/// If the machine has no list with it, this first reads separate package lists into `lists`. That
/// needs no root either.
fn download(work: &Path, lists: &Path) -> anyhow::Result<()> {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(work).args(arguments);
        command
    };
    let quickly = step("download the package", &mut apt(&["download", PACKAGE]));
    if quickly.is_ok() {
        return Ok(());
    }
    let state = format!("Dir::State::lists={}", lists.display());
    let cache = format!("Dir::Cache={}", work.display());
    let own = ["-o", &state, "-o", &cache];
    step(
        "read the package lists",
        apt(&["update"])
            .args(own)
            .args(["-o", "APT::Sandbox::User="]),
    )?;
    step(
        "download the package",
        apt(&["download", PACKAGE]).args(own),
    )
}
