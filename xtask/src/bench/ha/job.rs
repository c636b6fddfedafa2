//! A job on several machines: agents, perhaps a store, and the workers, whose record is read.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;

use super::events::{self, Event};
use super::forwarder::Forwarder;
use super::network::{Network, SWITCH, address};
use super::plan::{Place, Plan};
use super::probe::coordinates;
use super::record::Record;
use super::{Tools, now, tree};
use crate::bench::launcher::signal;

/// Nothing that is waited for takes longer: a round with workers that import PyTorch on a busy machine.
pub(super) const LONGEST: Duration = Duration::from_secs(90);

/// Nobody tells when a file grows or a process is started, so it is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Machines beside those of the nodes: for the store, or for an agent of torchrun.
const SPARE_MACHINES: usize = 1;

/// The port of the rendezvous.
pub(super) const PORT: u16 = 29400;

/// The job. Everything of it ends when this is dropped.
pub(super) struct Job<'a> {
    pub(super) tools: &'a Tools,
    pub(super) plan: Plan,
    pub(super) folder: tempfile::TempDir,
    pub(super) store: Option<Child>,
    /// By the number of the machine, from 1; none while nobody runs there.
    pub(super) nodes: Vec<Option<Child>>,
    pub(super) record: Record,
    pub(super) network: Network,
    /// What stands for the store, where that has another address.
    service_address: Option<Forwarder>,
}

impl<'a> Job<'a> {
    pub(super) fn start(tools: &'a Tools, plan: Plan) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let record = Record::new(folder.path().join("steps"))?;
        let mut job = Self {
            tools,
            network: Network::new(plan.nodes + SPARE_MACHINES)?,
            nodes: (0..plan.nodes).map(|_| None).collect(),
            plan,
            folder,
            store: None,
            record,
            service_address: None,
        };
        if job.plan.place == Place::Service {
            let at = SocketAddr::new(SWITCH.parse()?, PORT);
            job.service_address = Some(Forwarder::start(at, job.address(job.store_machine()))?);
        }
        if let Place::Store | Place::Service | Place::StoreAmong(_) = job.plan.place {
            job.start_store(&[])?;
        }
        for number in 1..=job.plan.nodes {
            job.start_node(number)?;
        }
        Ok(job)
    }

    /// The number of the machine of the store.
    pub(super) fn store_machine(&self) -> usize {
        self.plan.nodes + 1
    }

    pub(super) fn endpoint(&self) -> String {
        match self.plan.place {
            Place::Store => format!("{}:{PORT}", address(self.store_machine())),
            Place::Service => format!("{SWITCH}:{PORT}"),
            Place::StoreAmong(voters) => {
                let others = (1..voters).map(|number| format!(",{}", address(number)));
                let store = address(self.store_machine());
                format!("{store}:{PORT}{}", others.collect::<String>())
            }
            Place::First | Place::Open => format!("{}:{PORT}", address(1)),
            Place::Voters(count) => {
                let others = (2..=count).map(|number| format!(",{}", address(number)));
                format!("{}:{PORT}{}", address(1), others.collect::<String>())
            }
        }
    }

    /// The addresses of all places, each with its port.
    pub(super) fn addresses(&self) -> String {
        let places = match self.plan.place {
            Place::Voters(count) => (1..=count).map(|number| self.address(number).to_string()),
            _ => return self.endpoint(),
        };
        places.collect::<Vec<_>>().join(",")
    }

    /// Whether the store, where there is one, coordinates.
    pub(super) fn is_served(&self) -> bool {
        coordinates(self.address(self.store_machine()))
    }

    /// Where the node of a machine listens, if it is one of the places.
    pub(super) fn address(&self, number: usize) -> SocketAddr {
        SocketAddr::new(address(number).parse().expect("it is an address"), PORT)
    }

    pub(super) fn console_file(&self, number: usize) -> PathBuf {
        self.path(&format!("console-{number}"))
    }

    pub(super) fn events_file(&self, number: usize) -> PathBuf {
        self.path(&format!("events-{number}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Everything on the screen of a machine so far.
    pub(super) fn console(&self, number: usize) -> String {
        fs::read_to_string(self.console_file(number)).unwrap_or_default()
    }

    /// The length of the screen of each machine so far, that of the store among them.
    pub(super) fn consoles(&self) -> Vec<usize> {
        let machines = 1..=self.store_machine();
        machines.map(|number| self.console(number).len()).collect()
    }

    pub(super) fn events(&self, number: usize) -> anyhow::Result<Vec<Event>> {
        events::read(&self.events_file(number))
    }

    /// The process that was started on a machine; its children are the guard and, below that, the agent.
    pub(super) fn launcher(&self, number: usize) -> anyhow::Result<u32> {
        let node = self.nodes[number - 1].as_ref();
        Ok(node.context("no node runs on that machine")?.id())
    }

    pub(super) fn agent(&self, number: usize) -> Option<u32> {
        tree::agent(tree::first_child(self.launcher(number).ok()?)?)
    }

    /// The process of the store that serves.
    pub(super) fn service(&self) -> Option<u32> {
        tree::first_child(self.store.as_ref()?.id())
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = usize> + use<> {
        1..=self.plan.nodes
    }

    /// Waits for something that is looked at again and again.
    pub(super) fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        mut is_there: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        loop {
            if is_there(self)? {
                return Ok(());
            }
            if Instant::now() > until {
                let folder = self.keep()?;
                bail!("no {what} within {} s; see {folder}", limit.as_secs());
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until the newest round has as many workers, and each has ended some steps in it. Returns its number.
    pub(super) fn wait_for_steps(&mut self, world: usize, steps: usize) -> anyhow::Result<u64> {
        let what = format!("round with {steps} steps of {world} workers");
        self.wait_for_round(&what, world, steps, 0)
    }

    /// The same for a round of at least this number.
    pub(super) fn wait_for_round(
        &mut self,
        what: &str,
        world: usize,
        steps: usize,
        least: u64,
    ) -> anyhow::Result<u64> {
        self.wait_for_share(what, world, world, steps, least)
    }

    /// The same where so many workers of the world leave a record.
    pub(super) fn wait_for_share(
        &mut self,
        what: &str,
        workers: usize,
        world: usize,
        steps: usize,
        least: u64,
    ) -> anyhow::Result<u64> {
        let mut last = Instant::now();
        self.wait_for(what, LONGEST, |job| {
            // Steps are looked at less often than processes.
            if last.elapsed() < 5 * LOOK {
                return Ok(false);
            }
            last = Instant::now();
            job.record.read()?;
            Ok(job.record.round() >= Some(least) && job.record.runs(workers, world, steps))
        })?;
        self.record.round().context("there is no round")
    }

    /// Has the workers end, and waits for all nodes, and the store. Returns how many nodes did not end with 0.
    pub(super) fn end(&mut self) -> anyhow::Result<usize> {
        fs::write(self.path("end"), "")?;
        let codes = self.wait_for_end()?;
        if let Some(mut store) = self.store.take() {
            signal(store.id(), Signal::SIGTERM)?;
            let status = store.wait()?;
            ensure!(status.success(), "the store ended with {status}");
        }
        self.record.read()?;
        Ok(codes.iter().filter(|code| !code.success()).count())
    }

    /// Waits for the end of all nodes.
    pub(super) fn wait_for_end(&mut self) -> anyhow::Result<Vec<ExitStatus>> {
        let mut codes = Vec::new();
        let mut nodes: Vec<_> = self.nodes.iter_mut().map(Option::take).collect();
        self.wait_for("end of all nodes", LONGEST, |_| {
            let ended = nodes.iter_mut().flatten();
            let ended = ended.map(|node| node.try_wait());
            let ended = ended.collect::<Result<Option<Vec<_>>, _>>()?;
            codes.extend(ended.iter().flatten());
            Ok(ended.is_some())
        })?;
        Ok(codes)
    }

    /// The exit code of a node that has ended, which is over then.
    pub(super) fn ended(&mut self, number: usize) -> anyhow::Result<Option<ExitStatus>> {
        let node = &mut self.nodes[number - 1];
        let status = match node {
            Some(node) => node.try_wait()?,
            None => None,
        };
        if status.is_some() {
            *node = None;
        }
        Ok(status)
    }

    /// Waits until the node of a machine has ended, and starts it again.
    pub(super) fn replace_node(&mut self, number: usize) -> anyhow::Result<()> {
        self.wait_for("end of a node", LONGEST, |job| {
            Ok(job.ended(number)?.is_some())
        })?;
        self.start_node(number)
    }

    /// The machine of the node that coordinates, if one of the places does.
    pub(super) fn coordinator(&self) -> Option<usize> {
        let mut places = match self.plan.place {
            Place::Store | Place::Service => return None,
            Place::StoreAmong(voters) => 1..=voters - 1,
            // As long as nobody has taken over.
            Place::First | Place::Open => 1..=1,
            Place::Voters(count) => 1..=count,
        };
        places.find(|number| coordinates(self.address(*number)))
    }

    /// Waits until each of these nodes is in another round than at a time. Returns when the last one was.
    pub(super) fn wait_for_formed(&mut self, nodes: &[usize], since: u64) -> anyhow::Result<u64> {
        let mut last = 0;
        self.wait_for("round of the others", LONGEST, |job| {
            last = 0;
            for number in nodes {
                match events::formed(&job.events(*number)?, since) {
                    Some(event) => last = last.max(event.time),
                    None => return Ok(false),
                }
            }
            Ok(true)
        })?;
        Ok(last)
    }

    /// All nodes but one.
    pub(super) fn others(&self, than: usize) -> Vec<usize> {
        self.nodes().filter(|number| *number != than).collect()
    }

    /// Keeps the files of this job, in which the reason of a failure may be found.
    pub(super) fn keep(&self) -> anyhow::Result<String> {
        let kept = tempfile::Builder::new()
            .prefix("bench-ha-")
            .tempdir()?
            .keep();
        copy(self.folder.path(), &kept)?;
        Ok(kept.display().to_string())
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        tree::end_all(&self.network);
        let children = self.nodes.iter_mut().flatten().chain(&mut self.store);
        for child in children {
            // It was killed above.
            let _ = child.wait();
        }
    }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Waits, because time that passes is what is played.
pub(super) fn pass(time: Duration) -> u64 {
    thread::sleep(time);
    now()
}
