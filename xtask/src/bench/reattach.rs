//! `cargo xtask bench rendezvous reattach`: loss of a coordinator.
//!
//! One process contains 10,000 agents, each with its own connection over loopback, and they hold a
//! round. The coordinator is the serving process of `rdzv store`, which is the only voter or one of
//! three. After each kill the agents reattach to the next coordinator. Then one agent joins again,
//! so that all agents form the next round.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;

use super::launcher::signal;
use super::peer::{Peer, Server};
use super::processes::children;
use super::table::{figure, median};
use super::{release_binary, test_program};

const AGENTS: u64 = 10_000;

/// Node timeout in milliseconds, for agents with a fence.
const FENCE: &str = "3000";

/// Pause before each kill.
///
/// After a life of less than 1 s, a store pauses before its restart. New voters also need time to
/// join.
const SETTLED: Duration = Duration::from_secs(3);

/// Maximum seconds until all agents have reattached.
const ATTACHED: f64 = 1.5;

/// Maximum seconds until all agents hold the next round.
const FORMED: f64 = 3.0;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let (rdzv, program) = (release_binary()?, test_program("crowd")?);
    let mut rows = Vec::new();
    let mut met = true;
    for voters in [1, 3] {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let endpoints = (1..=voters).map(|index| SocketAddr::from(([127, 0, 0, index], port)));
        let endpoints: Vec<SocketAddr> = endpoints.collect();
        let list = endpoints
            .iter()
            .map(SocketAddr::to_string)
            .collect::<Vec<_>>();
        let (list, port) = (list.join(","), port.to_string());
        let stores = endpoints.iter().map(|_| {
            let mut store = Command::new(&rdzv);
            store.args(["store", "--restarts", "1000000"]);
            match voters {
                1 => store.args(["--host", "127.0.0.1", "--port", &port]),
                _ => store.args(["--join", &list]),
            };
            Server::start(&mut store)
        });
        // The stores start in order, so each one takes the first free address.
        let stores = stores.collect::<anyhow::Result<Vec<_>>>()?;
        coordinator(&endpoints);
        let agents = AGENTS.to_string();
        let hold = ["hold", &list, "job", &agents, &agents, FENCE];
        let mut crowd = Crowd {
            peer: Peer::start(Command::new(&program).args(hold))?,
            returns: 0,
            fences: 0,
        };
        let (mut attached, mut formed) = (Vec::new(), Vec::new());
        let (mut round, _) = crowd.wait_for("joined", 0)?;
        for run in 1..=runs {
            println!("    {voters} voters, run {run} of {runs}");
            thread::sleep(SETTLED);
            let keeper = stores[coordinator(&endpoints)].process_id();
            let service = children(keeper).into_iter().next();
            let killed = now();
            signal(service.context("no store serves")?, Signal::SIGKILL)?;
            let (_, at) = crowd.wait_for("attached", crowd.returns + AGENTS)?;
            attached.push(at - killed);
            let again = now();
            crowd.peer.tell("again")?;
            let (next, at) = crowd.wait_for("joined", round + 1)?;
            formed.push(at - again);
            round = next;
        }
        met &= crowd.fences == 0;
        for (what, times, most) in [
            ("reattached", attached, ATTACHED),
            ("in the next round", formed, FORMED),
        ] {
            let longest = times.iter().copied().fold(0.0, f64::max);
            met &= longest <= most;
            let times = format!("{} | {}", figure(median(&times)), figure(longest));
            rows.push(format!("| {voters} | {what} | {times} | {most} |"));
        }
    }
    println!("\n| voters | all {AGENTS} agents | median, s | longest of {runs}, s | at most |");
    println!("|---:|---|---:|---:|---:|\n{}", rows.join("\n"));
    ensure!(
        met,
        "a target was missed, or an agent suspended its workers"
    );
    Ok(())
}

/// Waits until exactly one endpoint has a coordinator, and returns its index.
fn coordinator(endpoints: &[SocketAddr]) -> usize {
    loop {
        let found = endpoints.iter().enumerate();
        let found = found.filter(|(_, endpoint)| matches!(coordinates(**endpoint), Ok(true)));
        if let [(index, _)] = found.collect::<Vec<_>>()[..] {
            return index;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns `true` if the process at this endpoint is the coordinator.
fn coordinates(endpoint: SocketAddr) -> anyhow::Result<bool> {
    // The greeting of the store protocol, and a ping with a number that only a coordinator answers.
    const QUESTION: [u8; 10] = *b"\x00\xce\xf7\x85\x3c\x0dRdzv";
    let mut stream = TcpStream::connect(endpoint)?;
    stream.write_all(&QUESTION)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    Ok(&answer == b"Rdz1")
}

/// Process that contains all agents.
struct Crowd {
    peer: Peer,
    /// Number of reattachments of agents, over all kills.
    returns: u64,
    /// Number of times that agents suspended their workers.
    fences: u64,
}

impl Crowd {
    /// Waits for a fact of this name whose number is at least `least`.
    ///
    /// Returns the number, and the time in seconds.
    fn wait_for(&mut self, name: &str, least: u64) -> anyhow::Result<(u64, f64)> {
        loop {
            let fact = self.peer.answer()?;
            let number = fact["number"].as_u64().unwrap_or_default();
            match fact["fact"].as_str() {
                Some("attached") => self.returns = number,
                Some("fenced") => self.fences = number,
                _ => {}
            }
            if fact["fact"] == name && number >= least {
                return Ok((number, fact["at"].as_f64().unwrap_or_default() / 1e9));
            }
        }
    }
}

/// Returns the seconds since the epoch, from the clock that the facts use.
fn now() -> f64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64())
}
