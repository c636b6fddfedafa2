//! A job on several machines: agents, perhaps a store, and the workers, whose record is read.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;

use super::events::{self, Event};
use super::network::{Network, address};
use super::record::Record;
use super::{Tools, now, tree};
use crate::bench::launcher::signal;

/// Nothing that is waited for takes longer: a round with workers that import PyTorch on a busy machine.
pub(super) const LONGEST: Duration = Duration::from_secs(90);

/// Nobody tells when a file grows or a process is started, so it is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// The port of the rendezvous.
const PORT: u16 = 29400;

/// Where the agents meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// At `rdzv store`, on a machine of its own.
    Store,
    /// At the agent of the first node.
    First,
    /// At the agents of the first three nodes, which are voters.
    Voters,
}

/// The part that the workers play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workers {
    /// Train.
    Ddp,
    /// Count.
    Plain,
}

/// A job as it is started.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    /// `--nnodes`.
    pub(super) nnodes: &'static str,
    pub(super) place: Place,
    pub(super) workers: Workers,
    /// The least milliseconds of a step.
    pub(super) pace: u32,
    /// Restarts of agents and of the store.
    pub(super) agent_restarts: usize,
    pub(super) max_restarts: usize,
    /// `--rdzv-conf`.
    pub(super) conf: String,
    /// After this step the job ends by itself.
    pub(super) last_step: Option<u64>,
}

impl Plan {
    /// Four nodes that all take part, with workers that train at 20 ms a step.
    pub(super) fn new(place: Place) -> Self {
        Self {
            nodes: 4,
            nnodes: "4",
            place,
            workers: Workers::Ddp,
            pace: 20,
            agent_restarts: 1_000,
            max_restarts: 0,
            conf: String::new(),
            last_step: None,
        }
    }
}

/// The job. Everything of it ends when this is dropped.
pub(super) struct Job<'a> {
    tools: &'a Tools,
    pub(super) plan: Plan,
    folder: tempfile::TempDir,
    pub(super) store: Option<Child>,
    /// By the number of the machine, from 1; none while nobody runs there.
    nodes: Vec<Option<Child>>,
    pub(super) record: Record,
    pub(super) network: Network,
}

impl<'a> Job<'a> {
    pub(super) fn start(tools: &'a Tools, plan: Plan) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let record = Record::new(folder.path().join("steps"))?;
        let mut job = Self {
            tools,
            network: Network::new(plan.nodes + 1)?,
            nodes: (0..plan.nodes).map(|_| None).collect(),
            plan,
            folder,
            store: None,
            record,
        };
        if job.plan.place == Place::Store {
            job.start_store(&[])?;
        }
        for number in 1..=job.plan.nodes {
            job.start_node(number)?;
        }
        Ok(job)
    }

    /// The number of the machine of the store.
    fn store_machine(&self) -> usize {
        self.plan.nodes + 1
    }

    pub(super) fn start_store(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        let number = self.store_machine();
        let mut command = self.command(number)?;
        command
            .args(["store", "--host", &address(number)])
            .args(["--port", &PORT.to_string()])
            .args(["--restarts", &self.plan.agent_restarts.to_string()])
            .args(flags);
        self.store = Some(command.spawn().context("failed to start the store")?);
        Ok(())
    }

    pub(super) fn endpoint(&self) -> String {
        match self.plan.place {
            Place::Store => format!("{}:{PORT}", address(self.store_machine())),
            Place::First => format!("{}:{PORT}", address(1)),
            Place::Voters => format!("{}:{PORT},{},{}", address(1), address(2), address(3)),
        }
    }

    /// Where the node of a machine listens, if it is one of the places.
    pub(super) fn address(&self, number: usize) -> SocketAddr {
        SocketAddr::new(address(number).parse().expect("it is an address"), PORT)
    }

    /// Starts the node of a machine, at first or again, always with the same line.
    pub(super) fn start_node(&mut self, number: usize) -> anyhow::Result<()> {
        let plan = &self.plan;
        let mut command = self.command(number)?;
        command.args(["run", "--nproc-per-node", "1", "--rdzv-id", "job"]);
        command.args(["--nnodes", plan.nnodes, "--rdzv-backend", "c10d"]);
        command.args(["--rdzv-endpoint", &self.endpoint()]);
        command.args(["--local-addr", &address(number)]);
        if !plan.conf.is_empty() {
            command.args(["--rdzv-conf", &plan.conf]);
        }
        command.args(["--agent-restarts", &plan.agent_restarts.to_string()]);
        command.args(["--max-restarts", &plan.max_restarts.to_string()]);
        command.arg("--events-file").arg(self.events_file(number));
        command.arg("--no-python").arg(&self.tools.python);
        self.add_worker(&mut command);
        let node = command.spawn().context("failed to start a node")?;
        self.nodes[number - 1] = Some(node);
        Ok(())
    }

    fn add_worker(&self, command: &mut Command) {
        command
            .arg(&self.tools.worker)
            .arg(match self.plan.workers {
                Workers::Ddp => "ddp",
                Workers::Plain => "plain",
            })
            .arg(self.folder.path())
            .arg(self.plan.pace.to_string());
        if let Some(step) = self.plan.last_step {
            command.env("LAST_STEP", step.to_string());
        }
    }

    /// `rdzv` on a machine.
    fn command(&self, number: usize) -> anyhow::Result<Command> {
        let rdzv = self.tools.rdzv.to_string_lossy();
        let mut command = self.network.machine(number).command(&rdzv);
        self.prepare(&mut command, number)?;
        Ok(command)
    }

    /// Has it write to the console of its machine.
    fn prepare(&self, command: &mut Command, number: usize) -> anyhow::Result<()> {
        let console = self.console_file(number);
        let console: File = OpenOptions::new().create(true).append(true).open(console)?;
        command
            .env("GLOO_SOCKET_IFNAME", "cable")
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console);
        Ok(())
    }

    fn console_file(&self, number: usize) -> PathBuf {
        self.path(&format!("console-{number}"))
    }

    fn events_file(&self, number: usize) -> PathBuf {
        self.path(&format!("events-{number}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Everything on the screen of a machine so far.
    pub(super) fn console(&self, number: usize) -> String {
        fs::read_to_string(self.console_file(number)).unwrap_or_default()
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
        tree::first_child(tree::first_child(self.launcher(number).ok()?)?)
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
        let mut last = Instant::now();
        self.wait_for(what, LONGEST, |job| {
            // Steps are looked at less often than processes.
            if last.elapsed() < 5 * LOOK {
                return Ok(false);
            }
            last = Instant::now();
            job.record.read()?;
            Ok(job.record.round() >= Some(least) && job.record.runs(world, steps))
        })?;
        self.record.round().context("there is no round")
    }

    /// Has the workers end, and waits for all nodes, and the store. Returns the exit codes of the nodes.
    pub(super) fn end(&mut self) -> anyhow::Result<Vec<ExitStatus>> {
        fs::write(self.path("end"), "")?;
        let codes = self.wait_for_end()?;
        if let Some(mut store) = self.store.take() {
            signal(store.id(), Signal::SIGTERM)?;
            let status = store.wait()?;
            ensure!(status.success(), "the store ended with {status}");
        }
        self.record.read()?;
        Ok(codes)
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
