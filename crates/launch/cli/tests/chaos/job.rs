//! Execution of a plan.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdzv_testing::pids::{self, open, signal as send_signal};
use rdzv_testing::{Marker, Process, free_port};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::observer::{self, Observer, Seen};
use crate::plan::{After, Plan, Rendezvous, What};
use crate::proxy::Proxy;
use crate::record::{Fired, Node, Record};
use crate::store_process::Store;

/// Time limit of a fault's wait for all workers, because some may never begin.
const ALL_BEGAN_WITHIN: Duration = Duration::from_millis(1500);
/// Maximum duration of a run after its end signal, beyond the shutdown timeout.
const SLACK: Duration = Duration::from_secs(20);
/// Time limit for all processes after the kill of a keeper or agent (INV-A9).
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Action with a due time.
enum Due {
    Fault(What),
    Continue(OwnedFd),
    Unstall(usize),
    End,
}

/// Running job.
struct Job<'a> {
    plan: &'a Plan,
    directory: TempDir,
    observer: Observer,
    proxies: Vec<Proxy>,
    launchers: Vec<Launcher>,
    due: Vec<(Instant, Due)>,
    seen: Vec<Seen>,
    living: Vec<observer::Process>,
    fired: Vec<Fired>,
    complaints: Vec<String>,
}

struct Launcher {
    program: Process,
    process: OwnedFd,
    marker: Marker,
    report: PathBuf,
    stderr: PathBuf,
    ended: Option<Node>,
}

/// Runs a plan to completion, and leaves no process behind.
pub(crate) fn run(plan: &Plan) -> Record {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let observer = Observer::new(&socket);
    let store = (plan.rendezvous == Rendezvous::OwnStore).then(Store::start);
    let proxies: Vec<Proxy> = match &store {
        Some(store) => plan
            .nodes
            .iter()
            .map(|_| Proxy::new(store.address))
            .collect(),
        None => Vec::new(),
    };
    // A kill of wrong processes would hit this process.
    let mut bystander = Process::start(Command::new(fixture_worker()).arg("hang"));
    let began = Instant::now();
    let mut job = Job {
        plan,
        directory,
        observer,
        proxies,
        launchers: Vec::new(),
        due: vec![(began + plan.end, Due::End)],
        seen: Vec::new(),
        living: Vec::new(),
        fired: Vec::new(),
        complaints: Vec::new(),
    };
    // The reader stays open to the end: a pipe without a reader is broken, not stalled.
    let _console = job.launch(&socket);
    job.schedule(After::Launch);
    job.go_on(began);
    if bystander.try_wait().is_some() {
        job.complaints
            .push("a process outside the job was hit".into());
    }
    bystander.kill();
    drop(store);
    let mut seen = job.seen;
    seen.extend(job.observer.finish());
    Record {
        began,
        complaints: job.complaints,
        seen,
        fired: job.fired,
        nodes: job
            .launchers
            .into_iter()
            .map(|launcher| launcher.ended.expect("a run lasts until all have ended"))
            .collect(),
    }
}

impl Job<'_> {
    fn launch(&mut self, socket: &Path) -> std::io::PipeReader {
        let port = free_port().to_string();
        let steps = self.plan.steps(socket.to_str().unwrap());
        let (reader, console) = std::io::pipe().unwrap();
        if self.plan.stalled_console {
            fill(&console);
        }
        for index in 0..self.plan.nodes.len() {
            let stdout = if self.plan.stalled_console {
                console.try_clone().unwrap().into()
            } else {
                Stdio::null()
            };
            let launcher = self.launcher(index, &port, &steps, stdout);
            self.observer.watch(
                launcher.program.pid(),
                launcher.process.try_clone().unwrap(),
            );
            self.launchers.push(launcher);
        }
        reader
    }

    fn launcher(&self, index: usize, port: &str, steps: &[String], stdout: Stdio) -> Launcher {
        let marker = Marker::new();
        let directory = self.directory.path().join(format!("node{index}"));
        fs::create_dir(&directory).unwrap();
        let (report, stderr) = (directory.join("report.json"), directory.join("stderr"));
        let count = self.plan.nodes.len();
        let nodes = if self.plan.elastic {
            format!("1:{count}")
        } else {
            count.to_string()
        };
        let endpoint = match self.proxies.get(index) {
            Some(proxy) => proxy.address.to_string(),
            None => format!("127.0.0.1:{port}"),
        };
        let node_rank = index.to_string();
        let rendezvous: &[&str] = match self.plan.rendezvous {
            Rendezvous::Standalone => &["--standalone"],
            Rendezvous::Static => &[
                "--nnodes",
                &nodes,
                "--node-rank",
                &node_rank,
                "--master-port",
                port,
                "--rdzv-conf",
                "timeout=20",
            ],
            Rendezvous::FirstAgent | Rendezvous::OwnStore => &[
                "--nnodes",
                &nodes,
                "--rdzv-backend=c10d",
                "--agent-restarts=0",
                "--rdzv-id=job",
                "--rdzv-endpoint",
                &endpoint,
                "--rdzv-conf",
                "join_timeout=20,last_call_timeout=1,keep_alive_interval=1,\
                 keep_alive_max_attempt=5,read_timeout=4",
            ],
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdzv"));
        command
            .arg("run")
            .arg("--report")
            .arg(&report)
            .args(rendezvous)
            .arg(format!("--nproc-per-node={}", self.plan.nodes[index]))
            .arg(format!("--max-restarts={}", self.plan.max_restarts))
            .arg(format!("--shutdown-timeout={}", self.plan.shutdown_timeout))
            .args(self.plan.tee.then_some("--tee=3"))
            .arg("--no-python")
            .arg(fixture_worker())
            .args(steps)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("TMPDIR", &directory)
            .env("PET_LOCAL_ADDR", "127.0.0.1")
            .env("OMP_NUM_THREADS", "1")
            // The test reads the order of failures from torchrun's report.
            .env("RDZV_COMPAT_OUTPUT", "1")
            .env("RUST_BACKTRACE", "0")
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(File::create(&stderr).unwrap());
        marker.mark(&mut command);
        let program = Process::start(&mut command);
        let process = open(program.pid()).unwrap();
        Launcher {
            program,
            process,
            marker,
            report,
            stderr,
            ended: None,
        }
    }

    /// Waits for events and runs due actions until all launchers have exited.
    fn go_on(&mut self, began: Instant) {
        let world = self.plan.nodes.iter().sum::<u32>() as usize;
        let mut gave_up = false;
        let mut waits_for_all = Some(began + ALL_BEGAN_WITHIN);
        let shutdown_timeout = Duration::from_secs(self.plan.shutdown_timeout.into());
        let hang = began + self.plan.end + shutdown_timeout + SLACK;
        while self
            .launchers
            .iter()
            .any(|launcher| launcher.ended.is_none())
        {
            let now = Instant::now();
            if now > hang && !gave_up {
                gave_up = true;
                self.give_up();
            }
            let workers = self.living.iter().filter(|process| process.is_worker);
            if waits_for_all.is_some_and(|deadline| now > deadline || workers.count() >= world) {
                waits_for_all = None;
                self.schedule(After::AllBegan);
            }
            self.due.sort_by_key(|(at, _)| *at);
            if self.due.first().is_some_and(|(at, _)| *at <= now) {
                let (_, due) = self.due.remove(0);
                self.bring_about(due);
                continue;
            }
            let next = self.due.first().map(|(at, _)| *at);
            let deadline =
                rdzv_core::time::earliest([next, waits_for_all, (!gave_up).then_some(hang)]);
            if let Some(seen) = self.observer.next(deadline.unwrap_or(now + SLACK)) {
                self.note(seen);
            }
        }
    }

    fn note(&mut self, seen: Seen) {
        self.seen.push(seen.clone());
        match seen {
            Seen::Began(process, _) => self.living.push(process),
            Seen::Ended(pid, at) => {
                self.living.retain(|process| process.pid != pid);
                let launcher = self
                    .launchers
                    .iter()
                    .position(|launcher| launcher.program.pid() == pid && launcher.ended.is_none());
                if let Some(index) = launcher {
                    self.launcher_ended(index, at);
                }
            }
        }
    }

    fn launcher_ended(&mut self, index: usize, ended: Instant) {
        let launcher = &mut self.launchers[index];
        let status = launcher.program.wait();
        // A killed launcher cannot wait for its processes. Any other launcher has waited for them.
        let limit = match std::os::unix::process::ExitStatusExt::signal(&status) {
            Some(_) => GONE_WITHIN,
            None => Duration::ZERO,
        };
        let left = launcher.marker.left_at(ended + limit, None);
        if !left.is_empty() {
            let complaint = format!("node {index} ({status}) left behind {left:?}");
            self.complaints.push(complaint);
            launcher.marker.kill_all();
        }
        let report = fs::read(&launcher.report).ok();
        launcher.ended = Some(Node {
            marker: launcher.marker.clone(),
            status,
            ended,
            stderr: String::from_utf8_lossy(&fs::read(&launcher.stderr).unwrap()).into_owned(),
            report: report.and_then(|text| serde_json::from_slice(&text).ok()),
        });
    }

    fn give_up(&mut self) {
        for (index, launcher) in self.launchers.iter().enumerate() {
            if launcher.ended.is_none() {
                let left = launcher.marker.processes();
                self.complaints
                    .push(format!("node {index} hangs: {left:#?}"));
                launcher.marker.kill_all();
            }
        }
    }

    fn schedule(&mut self, after: After) {
        let now = Instant::now();
        for fault in &self.plan.faults {
            if fault.after == after {
                let at = now + Duration::from_millis(fault.millis.into());
                self.due.push((at, Due::Fault(fault.what)));
            }
        }
    }

    fn bring_about(&mut self, due: Due) {
        match due {
            Due::Fault(what) => self.break_something(what),
            Due::Continue(process) => {
                send_signal(&process, Signal::CONT);
            }
            Due::Unstall(node) => self.proxies[node].stall(false),
            Due::End => {
                for node in 0..self.launchers.len() {
                    let signal = Signal::TERM;
                    self.break_something(What::Keeper { node, signal });
                }
            }
        }
    }

    fn break_something(&mut self, what: What) {
        let keeper = |node: usize| {
            let launcher: &Launcher = &self.launchers[node];
            let pid = launcher.program.pid();
            launcher.ended.is_none().then_some(pid)
        };
        let agent = |node: usize| keeper(node).and_then(pids::agent);
        let one_of = |pick: u32, workers: bool| {
            let alive: Vec<i32> = self
                .living
                .iter()
                .filter(|process| process.is_worker == workers)
                .map(|process| process.pid)
                .collect();
            let index = (pick as usize).checked_rem(alive.len())?;
            Some(alive[index])
        };
        let (target, signal, resumes) = match what {
            What::Worker { pick, signal } => (one_of(pick, true), signal, None),
            What::Child { pick, signal } => (one_of(pick, false), signal, None),
            What::Agent { node, signal } => (agent(node), signal, None),
            What::Keeper { node, signal } => (keeper(node), signal, None),
            What::PauseWorker { pick, millis } => (one_of(pick, true), Signal::STOP, Some(millis)),
            What::PauseAgent { node, millis } => (agent(node), Signal::STOP, Some(millis)),
            What::PauseKeeper { node, millis } => (keeper(node), Signal::STOP, Some(millis)),
            What::Node { node } => {
                if keeper(node).is_some() {
                    self.fired.push(Fired {
                        at: Instant::now(),
                        what,
                        pid: None,
                    });
                    self.launchers[node].marker.kill_all();
                }
                return;
            }
            What::Cut { node } | What::Stall { node, .. } => {
                if keeper(node).is_some() {
                    self.fired.push(Fired {
                        at: Instant::now(),
                        what,
                        pid: None,
                    });
                    self.break_link(what, node);
                }
                return;
            }
        };
        let Some((pid, process)) = target.and_then(|pid| Some((pid, open(pid)?))) else {
            return;
        };
        let at = Instant::now();
        if send_signal(&process, signal) {
            self.fired.push(Fired {
                at,
                what,
                pid: Some((pid, signal)),
            });
            if let Some(millis) = resumes {
                let later = at + Duration::from_millis(millis.into());
                self.due.push((later, Due::Continue(process)));
            }
        }
    }

    fn break_link(&mut self, what: What, node: usize) {
        if let What::Stall { millis, .. } = what {
            self.proxies[node].stall(true);
            let later = Instant::now() + Duration::from_millis(millis.into());
            self.due.push((later, Due::Unstall(node)));
        } else {
            self.proxies[node].cut();
        }
    }
}

/// Returns the path of the scripted worker.
pub(crate) fn fixture_worker() -> PathBuf {
    rdzv_testing::program("fixture_worker")
}

/// Fills a pipe, so that the next writer waits for a reader.
fn fill(console: &std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(console).unwrap();
    fcntl_setfl(console, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(console, &[b'.'; 4096]).is_ok() {}
    fcntl_setfl(console, flags).unwrap();
}
