//! `cargo xtask bench rendezvous reattach`: 10,000 agents lose a coordinator.
//!
//! The agents hold a round. All of them are in one process, with a connection each over loopback.
//! The coordinator is the process of `rdzv store` that serves. It is the only voter or one of
//! three. After each kill the agents reattach to the next coordinator. Then one agent joins again,
//! which leads all of them to the next round.

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

/// Milliseconds without a coordinator until an agent would suspend workers.
const FENCE: &str = "3000";

/// Life of a store before a kill.
///
/// A shorter life is followed by a pause, and new voters need time to join.
const SETTLED: Duration = Duration::from_secs(3);

/// Maximum seconds until all agents have reattached.
///
/// The second limit applies until all of them hold the next round.
const ATTACHED: f64 = 1.5;
const FORMED: f64 = 3.0;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let (rdzv, program) = (release_binary()?, test_program("crowd")?);
    let mut rows = Vec::new();
    let mut met = true;
    for voters in [1, 3] {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let places = (1..=voters).map(|place| SocketAddr::from(([127, 0, 0, place], port)));
        let places: Vec<SocketAddr> = places.collect();
        let list = places.iter().map(SocketAddr::to_string).collect::<Vec<_>>();
        let (list, port) = (list.join(","), port.to_string());
        let stores = places.iter().map(|_| {
            let mut store = Command::new(&rdzv);
            store.args(["store", "--restarts", "1000000"]);
            match voters {
                1 => store.args(["--host", "127.0.0.1", "--port", &port]),
                _ => store.args(["--join", &list]),
            };
            Server::start(&mut store)
        });
        // The stores start in order, so each has the first free address.
        let stores = stores.collect::<anyhow::Result<Vec<_>>>()?;
        coordinator(&places);
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
            let keeper = stores[coordinator(&places)].process_id();
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

/// Waits until exactly one address coordinates, and returns its index.
fn coordinator(places: &[SocketAddr]) -> usize {
    loop {
        let found = places.iter().enumerate();
        let found = found.filter(|(_, place)| matches!(coordinates(**place), Ok(true)));
        if let [(index, _)] = found.collect::<Vec<_>>()[..] {
            return index;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asks the process at an address if it coordinates.
fn coordinates(place: SocketAddr) -> anyhow::Result<bool> {
    // The store's greeting, and its ping with a number for which a coordinator has an answer.
    const QUESTION: [u8; 10] = *b"\x00\xce\xf7\x85\x3c\x0dRdzv";
    let mut stream = TcpStream::connect(place)?;
    stream.write_all(&QUESTION)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    Ok(&answer == b"Rdz1")
}

/// Process with all agents.
struct Crowd {
    peer: Peer,
    /// Number of reattached agents, counted over all kills.
    returns: u64,
    fences: u64,
}

impl Crowd {
    /// Waits for a fact of this name with at least this number.
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

/// Returns the seconds since the epoch, the clock of the facts.
fn now() -> f64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64())
}
