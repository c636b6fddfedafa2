//! `cargo xtask bench store`: the TCP store server against PyTorch's server.
//!
//! PyTorch's server is the one with libuv. Both servers run all the time. The same native load
//! generator (the test program `load`) and PyTorch's own client send requests to them in turn. Both
//! servers listen on all addresses, and the clients use a numeric address.
//!
//! | quantity | content |
//! |---|---|
//! | pipelined | 64 connections, 16 requests in flight on each |
//! | unpipelined | 64 connections, 1 request in flight on each |
//! | processor time | processor time of the server process per unpipelined request |
//! | connections | connections per second, each opened, validated and pinged |
//! | calls | median time of one call of PyTorch's client, without other load |

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::{Peer, Server};
use super::processes::children;
use super::table::{self, Better, Comparison, median};
use super::{release_binary, test_program};
use crate::command::output;
use crate::install;

const SERVE: &str = include_str!("store_serve.py");
const CLIENT: &str = include_str!("store_client.py");

/// Duration of each measurement of requests, in seconds.
const SECONDS: &str = "2";

/// Number of connections to the server of rdzv.
const OUR_CONNECTIONS: &str = "10000";

/// Minimum number of connections per second to the server of rdzv.
const CONNECTIONS_PER_SECOND: f64 = 20_000.0;

/// Number of connections to PyTorch's server.
///
/// It is lower because that server resolves the name of every peer, which can take long.
const THEIR_CONNECTIONS: &str = "100";

/// Target for single calls, below 1: the same client and kernel add noise.
const NOT_SLOWER: f64 = 0.95;

const CALLS: [&str; 7] = [
    "set and add",
    "get",
    "add",
    "check",
    "wait",
    "compare_set",
    "get of 1 MiB",
];

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let python = install::python()?;
    let generator = test_program("load")?;
    let ours = Server::start(Command::new(release_binary()?).args(["store", "--port", "0"]))?;
    let theirs = Server::start(Command::new(&python).args(["-c", SERVE]))?;
    let mut client = Peer::start(Command::new(&python).args(["-c", CLIENT]))?;

    let mut pipelined = Comparison::new("pipelined", "1000/s", Better::More, 3.0);
    let mut unpipelined = Comparison::new("unpipelined", "1000/s", Better::More, 1.0);
    let mut processor = Comparison::new("processor time", "us", Better::Less, 1.0 / 0.75);
    let mut connections = Comparison::new("connections", "1000/s", Better::More, 1.0);
    let mut calls = CALLS.map(|call| Comparison::new(call, "us", Better::Less, NOT_SLOWER));
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (server, is_ours) in [(&ours, true), (&theirs, false)] {
            let side = |comparison: &mut Comparison, value| comparison.add(is_ours, value);
            let figures = load(server, &generator, "requests", &["64", "16", SECONDS])?;
            side(&mut pipelined, figures.per_second / 1e3);
            let figures = load(server, &generator, "requests", &["64", "1", SECONDS])?;
            side(&mut unpipelined, figures.per_second / 1e3);
            side(&mut processor, figures.processor_seconds_each * 1e6);
            let count = if is_ours {
                OUR_CONNECTIONS
            } else {
                THEIR_CONNECTIONS
            };
            let figures = load(server, &generator, "connections", &[count])?;
            side(&mut connections, figures.per_second / 1e3);
            let times = client.ask(&server.port.to_string())?;
            for (comparison, call) in calls.iter_mut().zip(CALLS) {
                let time = times[call].as_f64();
                side(
                    comparison,
                    time.context("the client did not report a call")?,
                );
            }
        }
    }

    let accepted = median(&connections.ours) * 1e3;
    let mut all = vec![pipelined, unpipelined, processor, connections];
    all.extend(calls);
    let met = table::print(&format!("bench store, {runs} runs"), "PyTorch", &all);
    println!(
        "\n{accepted:.0} of {OUR_CONNECTIONS} connections per second; target: at least {CONNECTIONS_PER_SECOND:.0}"
    );
    ensure!(
        met && accepted >= CONNECTIONS_PER_SECOND,
        "a target was missed"
    );
    Ok(())
}

/// Result of one measurement by the load generator.
struct Figures {
    per_second: f64,
    processor_seconds_each: f64,
}

/// Runs the load generator against a server.
fn load(server: &Server, generator: &Path, what: &str, words: &[&str]) -> anyhow::Result<Figures> {
    // `rdzv store` serves in a child of its supervisor. PyTorch's server has no child.
    let started = server.process_id();
    let serving = children(started).first().copied().unwrap_or(started);
    let mut command = Command::new(generator);
    command.args([what, &server.address(), &serving.to_string()]);
    let text = output(command.args(words))?;
    figures(&text).with_context(|| format!("failed to read the figures '{}'", text.trim()))
}

fn figures(text: &str) -> Option<Figures> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let done = value["done"].as_f64()?;
    Some(Figures {
        per_second: done / value["wall_seconds"].as_f64()?,
        processor_seconds_each: value["server_cpu_seconds"].as_f64()? / done,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_second_and_per_request() {
        let text = r#"{"done":100,"wall_seconds":0.5,"server_cpu_seconds":0.001}"#;
        let figures = figures(text).expect("complete figures");
        assert!((figures.per_second - 200.0).abs() < 1e-9);
        assert!((figures.processor_seconds_each - 1e-5).abs() < 1e-12);
        assert!(super::figures("{}").is_none());
    }
}
