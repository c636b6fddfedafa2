//! `cargo xtask bench ha [K1 …] [--runs N]`: a job whose control plane is killed and cut off, again and again.
//!
//! | word | what happens |
//! |---|---|
//! | `K1` | the process of `rdzv store` that serves is killed while four nodes train |
//! | `K2` | one of four agents is killed, with the coordinator in the first one, then with three voters |
//! | `K3` | any process of a node is killed, with three voters |
//! | `K4` | the cable of a machine is cut, with three voters |
//! | `matrix` | each death and cut once, with one voter and with three; the table in `docs/high-availability.md` is written |
//!
//! Machines are network namespaces with a cable each to one bridge. The job is an unmodified PyTorch script: DDP over gloo.
//! This program runs in namespaces of its own, so nothing of an experiment outlives it.

mod agent_kills;
mod all_kills;
mod cuts;
mod draw;
mod events;
mod figures;
mod job;
mod matrix;
mod network;
mod record;
mod store_kills;
mod tree;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};

use self::figures::Figures;
use super::{release_binary, this_program};
use crate::venv;

/// The part of this program that runs in namespaces of its own.
pub(super) const ENCLOSED: &str = "ha-enclosed";

const WORKER: &str = include_str!("worker.py");

/// Kills of each experiment.
const DEFAULT_RUNS: usize = 20;

/// The experiments, in their order.
const EXPERIMENTS: [(&str, Experiment); 5] = [
    ("K1", store_kills::run),
    ("K2", agent_kills::run),
    ("K3", all_kills::run),
    ("K4", cuts::run),
    ("matrix", matrix::run),
];

type Experiment = fn(&Tools, usize, &mut Figures) -> anyhow::Result<()>;

/// The programs of an experiment.
struct Tools {
    rdzv: PathBuf,
    python: PathBuf,
    /// The script of the workers.
    worker: PathBuf,
}

/// Builds what is needed, and goes on in namespaces of its own.
pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    chosen(words)?;
    let (rdzv, python) = (release_binary()?, venv::torch_python()?);
    let mut command = Command::new(this_program()?);
    command
        .args(["bench", ENCLOSED])
        .args([rdzv, python])
        .args(words);
    Err(network::enclose(&command))
}

/// Plays the experiments.
pub(super) fn enclosed(words: &[String]) -> anyhow::Result<()> {
    let [rdzv, python, words @ ..] = words else {
        bail!("two programs are needed");
    };
    network::ensure_enclosed()?;
    let folder = tempfile::tempdir()?;
    let worker = folder.path().join("worker.py");
    fs::write(&worker, WORKER)?;
    let tools = Tools {
        rdzv: rdzv.into(),
        python: python.into(),
        worker,
    };
    let (experiments, runs) = chosen(words)?;
    let mut figures = Figures::default();
    for (name, experiment) in experiments {
        println!("\n==> {name}");
        let before = super::stolen::Processors::now()?;
        let played = experiment(&tools, runs, &mut figures);
        let stolen = super::stolen::Processors::now()?.stolen_since(before);
        println!("    processor time that the machine's host took meanwhile: {stolen:.1} %");
        played.with_context(|| format!("{name} failed"))?;
    }
    ensure!(figures.print(), "a target was missed");
    Ok(())
}

/// The experiments that the words name, or all, and the number of runs.
fn chosen(words: &[String]) -> anyhow::Result<(Vec<(&'static str, Experiment)>, usize)> {
    let mut runs = DEFAULT_RUNS;
    let mut named = words;
    if let [before @ .., flag, number] = words
        && flag == "--runs"
    {
        runs = number
            .parse()
            .with_context(|| format!("'{number}' is no number of runs"))?;
        named = before;
    }
    ensure!(runs > 0, "at least one run is needed");
    let all = EXPERIMENTS.map(|(name, _)| name).join("`, `");
    for word in named {
        let is_known = EXPERIMENTS.iter().any(|(name, _)| name == word);
        ensure!(
            is_known,
            "bench ha takes `{all}` and `--runs N`, not '{word}'"
        );
    }
    let is_chosen = |name: &&str| named.is_empty() || named.iter().any(|word| word == name);
    let chosen = EXPERIMENTS.into_iter().filter(|(name, _)| is_chosen(name));
    Ok((chosen.collect(), runs))
}

/// Nanoseconds since the epoch: the clock of the records of workers and of the events of agents.
fn now() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| {
        u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Milliseconds between two times; 0 if the second is earlier.
fn milliseconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_named_or_all() {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (all, runs) = chosen(&[]).unwrap();
        assert_eq!((all.len(), runs), (EXPERIMENTS.len(), DEFAULT_RUNS));
        let (one, runs) = chosen(&words("K2 --runs 3")).unwrap();
        assert_eq!((one.len(), one[0].0, runs), (1, "K2", 3));
        for wrong in ["K99", "--runs 0", "--runs many", "--times 3", "K1 K2 3"] {
            assert!(chosen(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
