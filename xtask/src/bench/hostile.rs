//! `cargo xtask bench hostile`: an honest client of `rdzv store` beside each attack of the hostile suite.
//!
//! The server is a new one for each attack. The client (the program `hostile` of the test programs)
//! writes and reads as fast as it is answered, while the attack goes on and for a second at least.
//! A connection that the server ends is a failure.

use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::Server;
use super::table::figure;
use super::{release_binary, test_program};
use crate::command::output;

/// The most that the 99th percentile of a write and a read may take, in milliseconds.
const MOST: f64 = 50.0;

/// The measurement without any attack.
const NOBODY: &str = "none";

pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    ensure!(arguments.is_empty(), "bench hostile takes no arguments");
    let rdzv = release_binary()?;
    let client = test_program("hostile")?;
    let attacks = output(Command::new(&client).arg("list"))?;
    println!("\nbench hostile: a write and a read of an honest client, beside each attack\n");
    println!("| attack | answers | p50, ms | p99, ms | met |");
    println!("|---|---:|---:|---:|---|");
    let mut missed = 0;
    for attack in [NOBODY].into_iter().chain(attacks.lines()) {
        let store = Server::start(Command::new(&rdzv).args(["store", "--port", "0"]))?;
        let text = output(Command::new(&client).args([attack, &store.address()]))
            .with_context(|| format!("the honest client failed beside '{attack}'"))?;
        let answer: Value = serde_json::from_str(&text)?;
        let milliseconds = |name: &str| {
            let seconds = answer[name].as_f64();
            seconds
                .map(|seconds| seconds * 1e3)
                .context("a figure is missing")
        };
        let (p50, p99) = (milliseconds("p50")?, milliseconds("p99")?);
        let met = p99 <= MOST;
        missed += usize::from(!met);
        println!(
            "| {attack} | {} | {} | {} | {} |",
            answer["answers"],
            figure(p50),
            figure(p99),
            if met { "yes" } else { "NO" }
        );
    }
    println!("\nasked for: p99 of at most {MOST} ms beside each attack, and no lost connection");
    ensure!(missed == 0, "{missed} target(s) were missed");
    Ok(())
}
