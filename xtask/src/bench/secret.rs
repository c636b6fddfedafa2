//! `cargo xtask bench secret`: the cost of the secret of a job, beside the same without one.
//!
//! | quantity | what |
//! |---|---|
//! | connect | a client of the store connects, proves what there is to prove, and is answered |
//! | add, set and get | calls on one connection |
//! | start | `rdzv run` with two `/bin/true`, from its start to its end |

use std::io::Write as _;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::measure::measure;
use super::table::median;
use super::{arguments, release_binary, test_program};
use crate::command::output;

const DEFAULT_RUNS: usize = 10;

const VARIANTS: [&str; 3] = ["nothing", "token", "token and TLS"];

const QUANTITIES: [&str; 4] = ["connect", "add", "set and get", "set and get of 1 MiB"];

/// Most milliseconds that a token may add to a start.
const START: f64 = 1.0;

/// Most that a token may add to a request: noise.
const REQUEST: f64 = 1.05;

pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("secret", words, DEFAULT_RUNS)?;
    let calls = output(Command::new(test_program("secret_cost")?).arg(runs.to_string()))?;
    let rounds: Vec<Value> = calls
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("failed to read the figures of the store")?;
    ensure!(rounds.len() == runs, "{} rounds of {runs}", rounds.len());
    let figure = |variant: &str, quantity: &str| {
        let figures: Vec<f64> = rounds
            .iter()
            .filter_map(|round| round[variant][quantity].as_f64())
            .collect();
        median(&figures)
    };
    println!("\nbench secret, {runs} runs: medians in microseconds\n");
    println!("| quantity | nothing | token | token and TLS | token / nothing | TLS / nothing |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut met = true;
    for quantity in QUANTITIES {
        let [plain, token, tls] = VARIANTS.map(|variant| figure(variant, quantity));
        println!(
            "| {quantity} | {plain:.2} | {token:.2} | {tls:.2} | {:.2} | {:.2} |",
            token / plain,
            tls / plain
        );
        met &= match quantity {
            "connect" => token - plain <= START * 1e3,
            _ => token / plain <= REQUEST,
        };
    }
    let added = added_to_start(runs * 5)?;
    println!(
        "\nstart: {added:+.2} ms with a token (median of {} pairs)",
        runs * 5
    );
    ensure!(
        met && added <= START,
        "asked for: at most {START} ms more at a start, and nothing for a request"
    );
    Ok(())
}

/// Milliseconds that a token adds to a launch: the median of the differences of pairs.
fn added_to_start(pairs: usize) -> anyhow::Result<f64> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(b"the token of a benchmark")?;
    let rdzv = release_binary()?;
    let launch = |with_token: bool| {
        let mut command = Command::new(&rdzv);
        command.args(["run", "--nproc-per-node", "2"]);
        if with_token {
            command.arg("--token-file").arg(file.path());
        }
        command.args(["--no-python", "/bin/true"]);
        measure(&command).map(|usage| usage.wall_seconds * 1e3)
    };
    let mut differences = Vec::new();
    for pair in 0..pairs {
        // Each is first in half of the pairs.
        let first = launch(pair % 2 == 0)?;
        let second = launch(pair % 2 == 1)?;
        differences.push(match pair % 2 {
            0 => first - second,
            _ => second - first,
        });
    }
    Ok(median(&differences))
}
