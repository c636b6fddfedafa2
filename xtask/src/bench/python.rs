//! `cargo xtask bench python`: the stores of the Python package beside PyTorch's client, on one server; and
//! the time that the package and its launcher take to be there.
//!
//! | quantity | each time |
//! |---|---|
//! | calls | median time of one call from Python, alone |
//! | 64 threads | gets per second, a connection for each thread |
//! | import | `import rdzv`, beside an interpreter that imports nothing |
//! | version | `rdzv --version`, beside the interpreter that imports nothing |

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::peer::{Peer, Server};
use super::table::{self, Better, Comparison, median};
use super::{arguments, release_binary};
use crate::command::output;
use crate::{python, wheel};

const DEFAULT_RUNS: usize = 5;
const CLIENT: &str = include_str!("python_client.py");
const CALLS: [&str; 5] = ["get", "set", "add", "check", "set and add"];

/// Least advantage of 64 threads.
const THREADS: f64 = 1.5;

/// Starts of each program in one run.
const STARTS: usize = 20;

pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("python", arguments, DEFAULT_RUNS)?;
    let python = python::environment(&wheel::release()?)?;
    let launcher = release_binary()?;
    let server = Server::start(Command::new(&launcher).args(["store", "--port", "0"]))?;
    let mut client = Peer::start(Command::new(&python).args(["-c", CLIENT]))?;

    let mut calls = CALLS.map(|call| Comparison::new(call, "us", Better::Less, 1.0));
    let mut threads = Comparison::new("64 threads", "1000/s", Better::More, THREADS);
    let (mut bare, mut import, mut version) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        let figures = client.ask(&server.port.to_string())?;
        let pair = |name: &str| -> anyhow::Result<(f64, f64)> {
            let both = &figures[name];
            let figure = |side: usize| both[side].as_f64();
            let found = figure(0).zip(figure(1));
            found.with_context(|| format!("the client left {name} out"))
        };
        for (comparison, call) in calls.iter_mut().zip(CALLS) {
            let (ours, theirs) = pair(call)?;
            comparison.add(true, ours);
            comparison.add(false, theirs);
        }
        let (ours, theirs) = pair("threads")?;
        threads.add(true, ours);
        threads.add(false, theirs);
        for _ in 0..STARTS {
            bare.push(milliseconds(&python, &["-I", "-c", "pass"])?);
            import.push(milliseconds(&python, &["-I", "-c", "import rdzv"])?);
            version.push(milliseconds(&launcher, &["--version"])?);
        }
    }

    let mut all = calls.to_vec();
    all.push(threads);
    let met = table::print(&format!("bench python, {runs} runs"), "PyTorch", &all);
    let (bare, import) = (median(&bare), median(&import));
    println!(
        "\nimport rdzv: {import:.1} ms, {:.1} ms above an interpreter that imports nothing ({bare:.1} ms)",
        import - bare
    );
    println!("rdzv --version: {:.1} ms", median(&version));
    ensure!(met, "a target was missed");
    Ok(())
}

fn milliseconds(program: &Path, words: &[&str]) -> anyhow::Result<f64> {
    let start = Instant::now();
    output(Command::new(program).args(words))?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
