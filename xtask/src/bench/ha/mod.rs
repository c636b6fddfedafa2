//! `cargo xtask bench ha [K1 …] [--runs N]`: a job whose control plane is killed and cut off, again and again.
//!
//! | word | what happens |
//! |---|---|
//! | `K1` | the process of `rdzv store` that serves is killed while four nodes train |
//! | `K2` | one of four agents is killed, with one voter in the first one, with a list of three, and with voters by themselves |
//! | `K3` | any process of a node is killed, with a list of three voters and with voters by themselves |
//! | `K4` | the cable of a machine is cut, with three voters |
//! | `K5` | machines of five voters stop reaching one another: in parts, a chain, a hub, one way, again and again |
//! | `K6` | processes of five voters are killed and cut off from one another while 200 agents take part in many runs, whose histories have to be linearizable |
//! | `K7` | of two nodes each process, cable and machine fails, and everything that a job waits for is missing |
//! | `K8` | agents of torchrun take part, and they and the coordinator die |
//! | `K9` | the coordinator of 10,000 agents is killed |
//! | `matrix` | each death and cut once, with one voter and with three; the table in `docs/high-availability.md` is written |
//!
//! `--runs` is the number of kills or cuts of `K1` to `K4` and of repetitions of `K5` and `K7` to `K9`, and the minutes of `K6`; the matrix takes none.
//!
//! Machines are network namespaces with a cable each to one bridge. The job is an unmodified PyTorch script: DDP over gloo.
//! This program runs in namespaces of its own, so nothing of an experiment outlives it.

mod agent_kills;
mod all_kills;
mod cuts;
mod deaths;
mod draw;
mod events;
mod figures;
mod forwarder;
mod histories;
mod job;
mod many_agents;
mod matrix;
mod network;
mod partitions;
mod plan;
mod probe;
mod processes;
mod record;
mod store_kills;
mod torchrun_agents;
mod tree;
mod two_nodes;
mod waits;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};

use self::figures::Figures;
use super::{optimised, release_binary, test_program, this_program};
use crate::command::bad_words;
use crate::install;

/// The part of this program that runs in namespaces of its own.
pub(super) const ENCLOSED: &str = "ha-enclosed";

const WORKER: &str = include_str!("worker.py");

/// The experiments, in their order.
const EXPERIMENTS: [Experiment; 10] = [
    Experiment::new("K1", 20, store_kills::run),
    Experiment::new("K2", 20, agent_kills::run),
    Experiment::new("K3", 20, all_kills::run),
    Experiment::new("K4", 20, cuts::run),
    Experiment::new("K5", 2, partitions::run),
    Experiment::new("K6", 2, histories::run),
    Experiment::new("K7", 1, two_nodes::run),
    Experiment::new("K8", 3, torchrun_agents::run),
    Experiment::new("K9", 5, many_agents::run),
    Experiment {
        name: "matrix",
        runs: None,
        play: |tools, _, figures| matrix::run(tools, figures),
    },
];

/// An experiment.
#[derive(Clone, Copy)]
struct Experiment {
    name: &'static str,
    /// Its runs, unless another number is given; none if it takes no number.
    runs: Option<usize>,
    play: fn(&Tools, usize, &mut Figures) -> anyhow::Result<()>,
}

impl Experiment {
    const fn new(
        name: &'static str,
        runs: usize,
        play: fn(&Tools, usize, &mut Figures) -> anyhow::Result<()>,
    ) -> Self {
        Self {
            name,
            runs: Some(runs),
            play,
        }
    }
}

/// The programs of an experiment.
struct Tools {
    rdzv: PathBuf,
    python: PathBuf,
    /// The script of the workers.
    worker: PathBuf,
    /// Many agents in one process, where an experiment needs them.
    crowd: Option<PathBuf>,
    /// The simulator, which also looks at records of real agents, where an experiment makes one.
    checker: Option<PathBuf>,
}

/// Builds what is needed, and goes on in namespaces of its own.
pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    let chosen = chosen(words)?;
    let is_chosen = |name: &str| chosen.iter().any(|known| known.name == name);
    let rdzv = release_binary()?;
    // Only the workers of nodes need it.
    let python = match chosen.iter().all(|known| known.name == "K6") {
        true => PathBuf::new(),
        false => install::python()?,
    };
    let crowd = match is_chosen("K6") || is_chosen("K9") {
        true => test_program("crowd")?,
        false => PathBuf::new(),
    };
    let checker = match is_chosen("K6") {
        true => optimised("rdzv-sim", "rdzv-sim")?,
        false => PathBuf::new(),
    };
    let mut command = Command::new(this_program()?);
    command
        .args(["bench", ENCLOSED])
        .args([rdzv, python, crowd, checker])
        .args(words);
    Err(network::enclose(&command))
}

/// Plays the experiments.
pub(super) fn enclosed(words: &[String]) -> anyhow::Result<()> {
    let [rdzv, python, crowd, checker, words @ ..] = words else {
        bail!("four programs are needed");
    };
    network::ensure_enclosed()?;
    let folder = tempfile::tempdir()?;
    let worker = folder.path().join("worker.py");
    fs::write(&worker, WORKER)?;
    let tools = Tools {
        rdzv: rdzv.into(),
        python: python.into(),
        worker,
        crowd: (!crowd.is_empty()).then(|| crowd.into()),
        checker: (!checker.is_empty()).then(|| checker.into()),
    };
    let mut figures = Figures::default();
    for Experiment { name, runs, play } in chosen(words)? {
        println!("\n==> {name}");
        let before = super::stolen::Processors::now()?;
        let played = play(&tools, runs.unwrap_or(1), &mut figures);
        let stolen = super::stolen::Processors::now()?.stolen_since(before);
        println!("    processor time that the machine's host took meanwhile: {stolen:.1} %");
        played.with_context(|| format!("{name} failed"))?;
    }
    ensure!(figures.print(), "a target was missed");
    Ok(())
}

/// The experiments that the words name, or all, with their numbers of runs.
fn chosen(words: &[String]) -> anyhow::Result<Vec<Experiment>> {
    let (named, given) = match words {
        [named @ .., flag, number] if flag == "--runs" => match number.parse::<usize>() {
            Ok(runs) if runs > 0 => (named, Some(runs)),
            _ => {
                return Err(bad_words(format!(
                    "bench ha takes a number of runs from 1 on, not '{number}'"
                )));
            }
        },
        _ => (words, None),
    };
    for word in named {
        match EXPERIMENTS.iter().find(|known| known.name == word) {
            None => {
                let all = EXPERIMENTS.map(|known| known.name).join("`, `");
                return Err(bad_words(format!(
                    "bench ha takes `{all}`, and `--runs N` after them, not '{word}'"
                )));
            }
            Some(known) if known.runs.is_none() && given.is_some() => {
                return Err(bad_words(format!(
                    "`{word}` plays each of its rows once and takes no `--runs`"
                )));
            }
            Some(_) => {}
        }
    }
    let is_chosen =
        |known: &Experiment| named.is_empty() || named.iter().any(|word| word == known.name);
    let chosen = EXPERIMENTS.into_iter().filter(is_chosen);
    let chosen = chosen.map(|known| Experiment {
        runs: known.runs.map(|runs| given.unwrap_or(runs)),
        ..known
    });
    Ok(chosen.collect())
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
    use crate::command::BadWords;

    #[test]
    fn experiments_are_named_or_all() {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let all = chosen(&[]).unwrap();
        assert_eq!((all.len(), all[0].runs), (EXPERIMENTS.len(), Some(20)));
        let one = chosen(&words("K2 --runs 3")).unwrap();
        assert_eq!((one.len(), one[0].name, one[0].runs), (1, "K2", Some(3)));
        // The matrix plays as ever where nobody has named it.
        let all = chosen(&words("--runs 3")).unwrap();
        let matrix = all.iter().find(|known| known.name == "matrix").unwrap();
        assert_eq!((all[0].runs, matrix.runs), (Some(3), None));
        for wrong in [
            "K99",
            "--runs 0",
            "--runs many",
            "--runs",
            "--times 3",
            "K1 K2 3",
            "matrix --runs 3",
        ] {
            let error = chosen(&words(wrong)).map(drop).unwrap_err();
            assert!(error.is::<BadWords>(), "{wrong}");
            assert_eq!(error.to_string().lines().count(), 1, "{wrong}");
        }
    }
}
