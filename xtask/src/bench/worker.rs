//! Worker that the launchers of both sides start.
//!
//! It writes its events to a file, or its start to a socket. Each line of the file has a word and
//! the nanoseconds since the epoch.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

pub(super) const NAME: &str = "worker";

/// Length of a line of the flood, with its newline: a typical log line.
pub(super) const LINE: usize = 100;

/// Longest wait for a worker to start; torchrun starts within a few seconds.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let started = now();
    let (part, rest) = arguments
        .split_first()
        .context("the worker needs the name of a part")?;
    match (part.as_str(), rest) {
        ("die-once", [notes]) => die_once(Path::new(notes), started),
        ("pour", [notes, folder]) => pour(Path::new(notes), Path::new(folder)),
        ("stay", [socket]) => stay(Path::new(socket), started),
        _ => bail!("unknown part '{part}' of the worker"),
    }
}

/// Makes rank 1 fail in the first attempt; its replacement records its start.
fn die_once(notes: &Path, started: u128) -> anyhow::Result<()> {
    let first_attempt = number("TORCHELASTIC_RESTART_COUNT")? == 0;
    match (first_attempt, number("RANK")?) {
        (true, 1) => {
            note(notes, "died", now())?;
            std::process::exit(7);
        }
        // The launcher stops this worker, because another worker of the group has failed.
        (true, _) => loop {
            std::thread::park();
        },
        (false, 1) => note(notes, "replaced", started),
        (false, _) => Ok(()),
    }
}

/// Reads a number from an environment variable that the launcher sets.
fn number(name: &str) -> anyhow::Result<u32> {
    let text = std::env::var(name).with_context(|| format!("{name} is not set"))?;
    text.parse()
        .with_context(|| format!("{name} is not a number: {text}"))
}

/// Reports its start to `socket`, and then waits forever.
fn stay(socket: &Path, started: u128) -> anyhow::Result<()> {
    // Some launchers leave their workers running when they are killed.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let start = Start {
        time: started,
        pid: std::process::id(),
        rank: number("RANK")?,
    };
    UnixDatagram::unbound()?.send_to(&serde_json::to_vec(&start)?, socket)?;
    loop {
        std::thread::park();
    }
}

/// Message from a worker about its start.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Time of its first instruction, in nanoseconds since the epoch.
    pub(super) time: u128,
    pub(super) pid: u32,
    pub(super) rank: u32,
}

/// Socket that receives a message from each started worker.
pub(super) struct Starts(UnixDatagram);

impl Starts {
    pub(super) fn bind(path: &Path) -> anyhow::Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(STEP_TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Waits until `world` workers started after this time; returns them by rank.
    pub(super) fn of_all(&self, world: usize, after: u128) -> anyhow::Result<BTreeMap<u32, Start>> {
        let mut started = BTreeMap::new();
        let mut message = [0; 200];
        while started.len() < world {
            let length = self.0.recv(&mut message).with_context(|| {
                format!("only {} of {world} workers have started", started.len())
            })?;
            let start: Start = serde_json::from_slice(&message[..length])
                .context("a worker sent an invalid message")?;
            if start.time > after {
                started.insert(start.rank, start);
            }
        }
        Ok(started)
    }
}

/// Copies the file of its local rank to stdout without pauses.
fn pour(notes: &Path, folder: &Path) -> anyhow::Result<()> {
    let rank = number("LOCAL_RANK")?;
    let mut text = std::fs::File::open(folder.join(rank.to_string()))?;
    note(notes, "began", now())?;
    let mut out = std::io::stdout().lock();
    // Inside this call, the kernel copies the file to stdout.
    std::io::copy(&mut text, &mut out)?;
    out.flush().context("failed to write the last line")
}

pub(super) fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_nanos())
}

fn note(path: &Path, word: &str, time: u128) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{word} {time}\n").as_bytes())
        .with_context(|| format!("failed to write {}", path.display()))
}

/// Returns the time of the event `word`, in nanoseconds since the epoch.
pub(super) fn noted(path: &Path, word: &str) -> anyhow::Result<u128> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("no worker wrote an event to {}", path.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
        .with_context(|| format!("no worker wrote the event '{word}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_started_worker_says_can_be_read() {
        let start = Start {
            time: 12,
            pid: 34,
            rank: 5,
        };
        let text = serde_json::to_vec(&start).unwrap();
        assert_eq!(serde_json::from_slice::<Start>(&text).unwrap(), start);
    }

    #[test]
    fn a_note_is_found_by_its_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        note(&path, "died", 12).unwrap();
        note(&path, "replaced", 34).unwrap();
        assert_eq!(noted(&path, "replaced").unwrap(), 34);
        assert!(noted(&path, "began").is_err());
    }
}
