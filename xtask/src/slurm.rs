//! Preparation of this machine for `interop/slurm`, which runs a real Slurm.
//!
//! Installs the Debian packages, and checks that the machine can create nodes.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{output, step};
use crate::install::{apt_install, has};

/// Environment variable with the Slurm `ProctrackType` values to test.
pub(crate) const PROCTRACK: &str = "RDZV_SLURM_PROCTRACK";

const PACKAGES: [&str; 4] = ["slurmctld", "slurmd", "slurm-client", "munge"];

/// Further programs that create a node.
const TOOLS: [&str; 5] = ["ip", "nsenter", "unshare", "setpriv", "hostname"];

/// Returns the `ProctrackType` values that this machine can test.
///
/// Prints the reason for each skipped value.
pub(crate) fn proctracks() -> Vec<&'static str> {
    let skipped =
        |what: &str, reason: &anyhow::Error| println!("    {what} are skipped: {reason:#}");
    if let Err(reason) = prepare() {
        skipped("tests with a real Slurm", &reason);
        return Vec::new();
    }
    match freezer() {
        Ok(()) => vec!["cgroup", "linuxproc"],
        Err(reason) => {
            skipped("tests of Slurm with proctrack/cgroup", &reason);
            vec!["linuxproc"]
        }
    }
}

/// Installs missing packages, and tries to create a node.
fn prepare() -> anyhow::Result<()> {
    let user = output(Command::new("id").arg("-u"))?;
    ensure!(user.trim() == "0", "only root can create nodes");
    if !["slurmctld", "slurmd", "scontrol", "munged"]
        .into_iter()
        .all(has)
    {
        apt_install(&PACKAGES).context("Slurm is not installed")?;
    }
    for tool in TOOLS {
        ensure!(has(tool), "PATH has no program `{tool}`");
    }
    let kinds = "--net --uts --mount --pid --fork --kill-child";
    let make = "mount --make-rprivate / && mount -t proc proc /proc && ip link set lo up && \
                ip link add type veth";
    let mut node = Command::new("unshare");
    node.args(kinds.split(' ')).args(["sh", "-c", make]);
    step("create and remove a node", &mut node).context("cannot create namespaces")
}

/// Fails unless this process can use the freezer of control groups (version 1).
fn freezer() -> anyhow::Result<()> {
    let tasks = Path::new("/sys/fs/cgroup/freezer/tasks");
    let opened = OpenOptions::new().append(true).open(tasks);
    opened
        .map(drop)
        .with_context(|| format!("cannot write {}", tasks.display()))
}
