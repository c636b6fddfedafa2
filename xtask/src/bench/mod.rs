//! `cargo xtask bench`: comparison of rdzv and PyTorch on the same machine.
//!
//! Runs of both sides alternate, so a busy minute of the machine affects both. The output is
//! medians and their ratio. [`measure`] and [`worker`] are other parts of this program: it starts
//! itself as the measuring parent and as the worker.

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
        bail!("name a benchmark: {NAMES}");
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

/// Returns the optimised `rdzv`, built now if it is not up to date.
fn release_binary() -> anyhow::Result<PathBuf> {
    optimised("rdzv")
}

/// Returns one of the programs that tests start, optimised.
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

/// Returns the path of this program, to start it again in another part.
fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("failed to find this program's own file")
}
