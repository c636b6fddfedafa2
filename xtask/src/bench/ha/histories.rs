//! K6: 200 agents join, leave, close and succeed in many runs, while the processes of five voters are killed and their machines
//! are cut off from one another; for so many minutes as runs are asked for. The history of each run has to be linearizable: what
//! an agent was told is done is not taken back.
//!
//! The voters are `rdzv store --join`. What they replicate is the rendezvous: the keys of their stores are not, and clients of
//! those do not connect again, so no operation on a key is among these. Agents reach all machines; voters are cut off from one
//! another alone. One voter is killed at a time, and the next one when all are there again, because nothing is promised beyond the
//! loss of a majority at once. Nor do the groups of agents close more runs than a coordinator remembers.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Tools;
use super::draw::Draw;
use super::figures::Figures;
use super::job::{LONGEST, PORT, pass};
use super::network::{Network, address};
use super::partitions::{CUTS, Cut, NODES, position};
use super::probe::{self, coordinates};
use super::tree;
use crate::bench::launcher::signal;

const AGENTS: usize = 200;

/// The time for a voter that was started again to be one, before the next kill or cut.
const REPAIR: Duration = Duration::from_millis(1_500);

/// A cut lasts so many milliseconds, and as many more as are drawn.
const CUT: (u64, u64) = (500, 6_000);

/// A kill comes so many milliseconds before a cut, or in it.
const AROUND: u64 = 1_500;

/// A machine that flaps comes and goes so often, each for so long.
const FLAPS: usize = 5;
const FLAP: Duration = Duration::from_millis(500);

/// The time in which agents get their last answers.
const LAST: Duration = Duration::from_secs(5);

/// The processes of a voter that are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service,
    ServiceTwice,
    Launcher,
    Both,
    Nobody,
}

const VICTIMS: [Victim; 5] = [
    Victim::Service,
    Victim::ServiceTwice,
    Victim::Launcher,
    Victim::Both,
    Victim::Nobody,
];

pub(super) fn run(tools: &Tools, minutes: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut voters = Voters::start(tools, folder.path())?;
    voters.wait_until_whole()?;
    let record = folder.path().join("record");
    let crowd = Crowd::start(tools, &voters.endpoints(), &record)?;
    let mut draw = Draw::new(6);
    let (mut kills, mut cuts) = ([0; VICTIMS.len()], vec![0; CUTS.len() + 2]);
    let until = Instant::now() + Duration::from_secs(60) * u32::try_from(minutes)?;
    while Instant::now() < until {
        let victim = draw.below(VICTIMS.len() as u64) as usize;
        let cut = draw.below(cuts.len() as u64) as usize;
        voters.disturb(&mut draw, VICTIMS[victim], cut)?;
        kills[victim] += 1;
        cuts[cut] += 1;
        voters.wait_until_whole()?;
        pass(REPAIR + Duration::from_millis(draw.below(500)));
    }
    pass(LAST);
    let told = crowd.end()?;
    let checked = check(tools, &record)?;

    let name = |what: &str| format!("K6, five voters, {AGENTS} agents, {minutes} min: {what}");
    let kinds = VICTIMS.iter().zip(kills);
    let kinds = kinds.filter(|(victim, _)| **victim != Victim::Nobody);
    let killed: usize = kinds.clone().map(|(_, count)| count).sum();
    let kinds: Vec<_> = kinds
        .map(|(victim, count)| format!("{victim:?} {count}"))
        .collect();
    figures.tell(name("kills"), format!("{killed}: {}", kinds.join(", ")));
    let names = CUTS.iter().map(|cut| cut.name).chain(["flapping"]);
    let kinds: Vec<_> = names
        .zip(&cuts)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let cut: usize = cuts[..CUTS.len() + 1].iter().sum();
    figures.tell(name("cuts"), format!("{cut}: {}", kinds.join(", ")));
    for kind in ["join", "leave", "close", "success", "status"] {
        let (count, longest) = (
            &checked["waits"][kind]["count"],
            &checked["waits"][kind]["longest"],
        );
        let longest = longest.as_f64().unwrap_or_default() / 1e6;
        figures.tell(
            name(kind),
            format!("{count} answered, the longest after {longest:.0} ms"),
        );
    }
    figures.tell(
        name("reasons of the end of rounds"),
        told["reasons"].to_string(),
    );
    figures.tell(
        name("agents without a connection for more than 2 s, which may be taken for lost"),
        format!("{} of {}", told["late"], told["agents"]),
    );
    figures.tell(
        name("history"),
        format!(
            "{} operations in {} runs are linearizable",
            checked["operations"], checked["runs"]
        ),
    );
    Ok(())
}

/// Has the record looked at. One that is not in order is kept.
fn check(tools: &Tools, record: &Path) -> anyhow::Result<Value> {
    let checker = tools
        .checker
        .as_ref()
        .context("the checker was not built")?;
    let checked = Command::new(checker).arg("history").arg(record).output()?;
    if !checked.status.success() {
        let kept = tempfile::Builder::new()
            .prefix("bench-ha-K6-")
            .tempdir()?
            .keep();
        let kept = kept.join("record");
        fs::copy(record, &kept)?;
        let said = String::from_utf8_lossy(&checked.stderr);
        bail!("the history in {} is not in order: {said}", kept.display());
    }
    Ok(serde_json::from_slice(&checked.stdout)?)
}

/// The voters, each a store on a machine of its own.
struct Voters<'a> {
    tools: &'a Tools,
    folder: PathBuf,
    network: Network,
    /// By the number of the machine, from 1.
    stores: Vec<Option<Child>>,
}

impl<'a> Voters<'a> {
    fn start(tools: &'a Tools, folder: &Path) -> anyhow::Result<Self> {
        let mut voters = Self {
            tools,
            folder: folder.to_owned(),
            network: Network::new(NODES)?,
            stores: (0..NODES).map(|_| None).collect(),
        };
        for number in 1..=NODES {
            voters.start_store(number)?;
        }
        Ok(voters)
    }

    fn endpoints(&self) -> String {
        let endpoints = (1..=NODES).map(|number| format!("{}:{PORT}", address(number)));
        endpoints.collect::<Vec<_>>().join(",")
    }

    fn start_store(&mut self, number: usize) -> anyhow::Result<()> {
        let rdzv = self.tools.rdzv.to_string_lossy();
        let mut command = self.network.machine(number).command(&rdzv);
        let console = self.folder.join(format!("console-{number}"));
        let console = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(console)?;
        command
            .args(["store", "--join", &self.endpoints()])
            .args(["--restarts", "1000000"])
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console);
        self.stores[number - 1] = Some(command.spawn().context("failed to start a store")?);
        Ok(())
    }

    /// Waits until all voters answer, and exactly one coordinates.
    fn wait_until_whole(&self) -> anyhow::Result<()> {
        let until = Instant::now() + LONGEST;
        loop {
            let endpoints: Vec<_> = (1..=NODES)
                .map(|number| format!("{}:{PORT}", address(number)).parse())
                .collect::<Result<_, _>>()?;
            let leads = endpoints.iter().filter(|at| coordinates(**at)).count();
            if leads == 1 && endpoints.iter().all(|at| probe::answers(*at)) {
                return Ok(());
            }
            if Instant::now() > until {
                let consoles = (1..=NODES).map(|number| {
                    let console = self.folder.join(format!("console-{number}"));
                    let console = fs::read_to_string(console).unwrap_or_default();
                    let last: Vec<_> = console.lines().rev().take(5).collect();
                    format!("{number}: {}", last.join(" | "))
                });
                let consoles = consoles.collect::<Vec<_>>().join("\n");
                bail!("{leads} voters coordinate, and not all may be there:\n{consoles}");
            }
            pass(Duration::from_millis(20));
        }
    }

    /// A process is killed while machines do not reach one another, or a little before.
    fn disturb(&mut self, draw: &mut Draw, victim: Victim, cut: usize) -> anyhow::Result<()> {
        let (first, number) = (draw.machine(NODES), draw.machine(NODES));
        let (before, around) = (
            draw.below(2) == 0,
            Duration::from_millis(draw.below(AROUND)),
        );
        let held = Duration::from_millis(CUT.0 + draw.below(CUT.1));
        if before {
            self.kill(draw, number, victim)?;
            pass(around);
        }
        match CUTS.get(cut) {
            Some(cut) => self.cut(cut, first)?,
            None if cut == CUTS.len() => self.flap(first)?,
            None => {}
        }
        if !before {
            pass(around);
            self.kill(draw, number, victim)?;
        }
        if cut < CUTS.len() {
            pass(held);
        }
        self.network.set_paths(|_, _| true)?;
        let keeper = self.stores[number - 1]
            .as_mut()
            .context("a store is missing")?;
        if keeper.try_wait()?.is_some() {
            self.start_store(number)?;
        }
        Ok(())
    }

    fn cut(&self, cut: &Cut, first: usize) -> anyhow::Result<()> {
        let reaches = cut.reaches;
        self.network
            .set_paths(|from, to| reaches(position(from, first), position(to, first)))
    }

    fn flap(&self, flaps: usize) -> anyhow::Result<()> {
        for _ in 0..FLAPS {
            self.network
                .set_paths(|from, to| from != flaps && to != flaps)?;
            pass(FLAP);
            self.network.set_paths(|_, _| true)?;
            pass(FLAP);
        }
        Ok(())
    }

    fn kill(&mut self, draw: &mut Draw, number: usize, victim: Victim) -> anyhow::Result<()> {
        let store = self.stores[number - 1]
            .as_mut()
            .context("a store is missing")?;
        let keeper = store.id();
        let service = tree::first_child(keeper);
        let killed: Vec<u32> = match victim {
            Victim::Nobody => Vec::new(),
            Victim::Service | Victim::ServiceTwice => service.into_iter().collect(),
            Victim::Launcher => vec![keeper],
            Victim::Both => service.into_iter().chain([keeper]).collect(),
        };
        for process in killed {
            // With the one before it may have ended already.
            let _ = signal(process, Signal::SIGKILL);
        }
        match victim {
            Victim::ServiceTwice => {
                pass(Duration::from_millis(draw.below(100)));
                if let Some(next) = tree::first_child(keeper).filter(|next| Some(*next) != service)
                {
                    let _ = signal(next, Signal::SIGKILL);
                }
            }
            // Its port is free when it is gone.
            Victim::Launcher | Victim::Both => drop(store.wait()?),
            Victim::Service | Victim::Nobody => {}
        }
        Ok(())
    }
}

impl Drop for Voters<'_> {
    fn drop(&mut self) {
        tree::end_all(&self.network);
        for store in self.stores.iter_mut().flatten() {
            // It was killed above.
            let _ = store.wait();
        }
    }
}

/// The process with all agents.
struct Crowd(Child);

impl Crowd {
    fn start(tools: &Tools, places: &str, record: &Path) -> anyhow::Result<Self> {
        let program = tools.crowd.as_ref().context("the crowd was not built")?;
        let mut command = Command::new(program);
        command
            .args(["record", places])
            .arg(record)
            .args([&AGENTS.to_string(), "6"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(Self(command.spawn().context("failed to start the crowd")?))
    }

    /// Has it end, and say what became of it.
    fn end(mut self) -> anyhow::Result<Value> {
        drop(self.0.stdin.take());
        let output = self.0.stdout.take().context("it is piped")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the crowd ended with {status}");
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
