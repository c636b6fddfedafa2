//! `cargo xtask bench`: compares rdzv with PyTorch on the same machine.
//!
//! Runs of the two sides alternate, so that a busy minute of the machine affects both. The output
//! has the medians with their ranges, their ratio, and the targets. The program also starts itself
//! in two other roles: [`measure`] is the process that measures, and [`worker`] is the worker that
//! a launcher starts.

mod agent;
mod arguments;
mod collective;
mod flood;
mod launch;
mod launcher;
mod measure;
pub(crate) mod peer;
mod processes;
mod reattach;
mod rendezvous;
mod rpc;
mod store;
mod table;
mod worker;

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use crate::command::{cargo, step};

/// Benchmarks that a developer may name.
const NAMES: &str = "`agent`, `collective`, `launch`, `rendezvous`, `rpc` or `store`";

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let Some((what, rest)) = arguments.split_first() else {
        bail!("no benchmark given: name one of {NAMES}");
    };
    let runs = |default| arguments::runs(what, rest, default);
    match what.as_str() {
        "agent" => agent::run(runs(5)?),
        "collective" => collective::run(runs(5)?),
        "launch" => launch::run(runs(7)?),
        "rendezvous" if rest.first().is_some_and(|word| word == "reattach") => {
            let runs = arguments::runs("rendezvous reattach", &rest[1..], 5)?;
            reattach::run(runs)
        }
        "rendezvous" => rendezvous::run(runs(3)?),
        "rpc" => rpc::run(runs(5)?),
        "store" => store::run(runs(5)?),
        measure::NAME => measure::run(rest),
        worker::NAME => worker::run(rest),
        other => bail!("there is no benchmark '{other}': name one of {NAMES}"),
    }
}

/// Returns the path of the optimised `rdzv`, after an incremental build.
fn release_binary() -> anyhow::Result<PathBuf> {
    optimised("rdzv")
}

/// Returns the path of one of the test programs, built optimised.
fn test_program(name: &str) -> anyhow::Result<PathBuf> {
    let all = optimised("rdzv-test-programs")?;
    crate::test::programs(&all, &[name]).map(|mut programs| programs.remove(0))
}

/// Builds the program of the package with the same name, optimised.
fn optimised(name: &str) -> anyhow::Result<PathBuf> {
    step(
        &format!("build {name} optimised"),
        cargo().args(["build", "--release", "--package", name, "--bin", name]),
    )?;
    let binary = crate::command::target_folder()?.join("release").join(name);
    ensure!(binary.is_file(), "{} was not built", binary.display());
    Ok(binary)
}

/// Returns the path of this program, which starts itself in other roles.
fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("failed to find this program's own file")
}
