//! Slurm for `interop/slurm`: Debian's packages, and a test of this machine.
//!
//! The test shows if the machine can have nodes.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{output, step};
use crate::install::{apt_install, has};

/// Variable for the tests: the way in which Slurm tracks processes of a job.
pub(crate) const PROCTRACK: &str = "RDZV_SLURM_PROCTRACK";

const PACKAGES: [&str; 4] = ["slurmctld", "slurmd", "slurm-client", "munge"];

/// Further programs with which a node is made.
const TOOLS: [&str; 5] = ["ip", "nsenter", "unshare", "setpriv", "hostname"];

/// Returns the ways of tracking processes that can be tested here.
///
/// The reason for a missing way is printed.
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

/// Installs missing programs, and tries to make a node.
fn prepare() -> anyhow::Result<()> {
    let user = output(Command::new("id").arg("-u"))?;
    ensure!(user.trim() == "0", "nodes are made by root only");
    if !["slurmctld", "slurmd", "scontrol", "munged"]
        .into_iter()
        .all(has)
    {
        apt_install(&PACKAGES).context("Slurm is not installed")?;
    }
    for tool in TOOLS {
        ensure!(has(tool), "there is no program `{tool}`");
    }
    let kinds = "--net --uts --mount --pid --fork --kill-child";
    let make = "mount --make-rprivate / && mount -t proc proc /proc && ip link set lo up && \
                ip link add type veth";
    let mut node = Command::new("unshare");
    node.args(kinds.split(' ')).args(["sh", "-c", make]);
    step("make a node and take it away", &mut node).context("no namespaces can be made")
}

/// Checks that there is a usable freezer of control groups (version 1).
fn freezer() -> anyhow::Result<()> {
    let tasks = Path::new("/sys/fs/cgroup/freezer/tasks");
    let opened = OpenOptions::new().append(true).open(tasks);
    opened
        .map(drop)
        .with_context(|| format!("{} cannot be written", tasks.display()))
}
