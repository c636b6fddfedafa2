//! The agent's side of views: the job as this agent knows it.
//!
//! Without a viewer, nothing here wakes up. While a viewer is attached to any agent of the job,
//! every agent sends the changes of its report once a second. In a job of more than 800 nodes,
//! agents without a viewer send them less often. The coordinator passes them on to the agents that
//! have a viewer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdzv_agent::observe::{NodeReport, OutputTail, Sampler, stacks, tail};
use rdzv_rendezvous::{GroupStatus, ReportExchange};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::Value;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::{sleep, timeout};

use super::job::{Answer, Job, Message, Output, Question, difference, parse};

/// Time between two reports.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Number of nodes above which an agent without a viewer reports less often.
///
/// The coordinator handles this number of reports a second in a job of 800 to 1,440 nodes.
const FREQUENT_NODES: f64 = 800.0;

/// Maximum of the time between two reports, in periods.
///
/// An agent with unchanged reports must not look silent.
const MOST_PERIODS: f64 = 1.8;

/// Number of periods after which an unchanged report is sent too.
const UNCHANGED: u32 = 4;

/// Number of periods after which lost messages are requested again.
const RESYNC: u32 = 4;

/// Time without a report after which an agent is silent.
const SILENT_AFTER: Duration = Duration::from_secs(8);

/// Time after which a silent agent is dropped if the job has a later round.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of viewers at a time.
pub(super) const MOST_VIEWERS: usize = 64;

/// Number of messages that a viewer may lag behind.
const MOST_BEHIND: usize = 4096;

/// Maximum number of agents whose reports are kept.
const MOST_AGENTS: usize = 100_000;

/// Maximum number of other agents' questions that an agent answers at a time.
const MOST_ANSWERS: usize = MOST_VIEWERS;

/// Time limit for the answers of all agents to a question.
const ANSWER_WITHIN: Duration = Duration::from_secs(6);

/// Time limit for a new line of output; the viewer asks again.
const LINE_WITHIN: Duration = Duration::from_secs(4);

/// Time limit for the last report to viewers, and time to write it.
const FINISH_WITHIN: Duration = Duration::from_millis(300);
const LINGER: Duration = Duration::from_millis(50);

/// Default number of lines of output.
const LINES: usize = 200;

/// Returns the time between two reports of an agent without a viewer.
fn period(nodes: u32) -> Duration {
    PERIOD.mul_f64((f64::from(nodes) / FREQUENT_NODES).clamp(1.0, MOST_PERIODS))
}

/// The job as one agent knows it. Clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct JobServer(Arc<Shared>);

struct Shared {
    name: String,
    node: Arc<Mutex<NodeReport>>,
    group: GroupStatus,
    /// Exchange with the other agents, if there can be any.
    exchange: Option<ReportExchange>,
    stack_tool: Option<PathBuf>,
    state: Mutex<Known>,
    changed: Notify,
    messages: broadcast::Sender<Arc<str>>,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the report of this node, with what the group's status adds to it.
    fn node(&self) -> NodeReport {
        let group = self.group.look().unwrap_or_default();
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        let mut node = node.clone();
        node.awaiting = group.waiting.map(|wait| wait.sentence);
        // Reports travel through a coordinator, which other kinds of rendezvous do not have.
        let has_coordinator = group.coordinator.is_some() || group.voters.is_some();
        node.is_alone = node.group_world_size > Some(1) && !has_coordinator;
        node
    }

    /// Applies a message to the model, and sends it to the viewers of this agent.
    /// Drops the message if a report is missing before it.
    fn take(&self, known: &mut Known, message: Message) {
        let text = serde_json::to_string(&message).unwrap_or_default();
        let from = message.from.clone();
        if known.job.take(message) {
            known.missing.remove(&from);
            let _ = self.messages.send(text.into());
        } else {
            known.missing.insert(from);
        }
    }

    fn send(&self, has_viewer: bool, is_for_all: bool, message: &Message) {
        if let Some(exchange) = &self.exchange {
            let bytes = serde_json::to_vec(message).unwrap_or_default();
            exchange.send(has_viewer, is_for_all, bytes);
        }
    }

    /// Sends the change of this node's report to viewers here and elsewhere.
    fn report(&self, own: &mut OwnReport, is_viewed: bool, is_watched: bool) {
        let exchange = self.exchange.as_ref();
        let is_connected = exchange.is_some_and(ReportExchange::is_sent);
        if !is_connected && exchange.is_some() {
            // The changes until the connection is up are in the next whole message.
            own.is_cut = true;
        } else if std::mem::take(&mut own.is_cut) {
            own.is_whole = true;
        }
        if own.is_cut && !is_viewed {
            return;
        }
        let mut report = self.node();
        own.sampler.sample(&mut report);
        let value = serde_json::to_value(&report).unwrap_or_default();
        let sent = (!own.is_whole).then_some(&own.sent);
        let change = difference(sent, &value);
        own.quiet += 1;
        if change.is_some() || own.quiet >= UNCHANGED {
            own.number += u64::from(change.is_some());
            let message = Message {
                from: self.name.clone(),
                number: own.number,
                is_whole: own.is_whole,
                change,
                ..Message::default()
            };
            if is_watched && is_connected {
                self.send(is_viewed, false, &message);
            }
            if is_viewed {
                self.take(&mut self.known(), message);
            }
            (own.sent, own.quiet, own.is_whole) = (value, 0, false);
        }
        if is_viewed && let Some(exchange) = exchange {
            own.viewed += 1;
            let is_due = is_connected && own.viewed.is_multiple_of(RESYNC);
            if is_due && !self.known().missing.is_empty() {
                // A viewer that attaches again lets all agents send everything.
                exchange.send(false, false, Vec::new());
            }
            if exchange.is_sent() {
                exchange.send(true, false, Vec::new());
            }
        }
        if is_viewed {
            self.notice_silent();
        }
    }

    /// Notices agents that send nothing any more.
    fn notice_silent(&self) {
        let mut known = self.known();
        let round = known.job.round();
        let silent = known.heard.iter().filter_map(|(name, heard)| {
            let (agent, silent) = (known.job.agents.get(name)?, heard.elapsed());
            let report = &agent.report;
            // The name of a restarted agent has another process id.
            let is_replaced = silent > SILENT_AFTER
                && known.job.agents.iter().any(|(other, it)| {
                    let same = |one: &NodeReport| (one.node.to_string(), one.group_rank);
                    other != name && !it.is_silent && same(&it.report) == same(report)
                });
            let is_gone = is_replaced || silent > GONE_AFTER && report.round < round;
            (is_gone || silent > SILENT_AFTER && !agent.is_silent).then(|| Message {
                from: name.clone(),
                is_silent: Some(true),
                is_gone,
                ..Message::default()
            })
        });
        let silent: Vec<Message> = silent.collect();
        for message in silent {
            if message.is_gone {
                known.heard.remove(&message.from);
            }
            self.take(&mut known, message);
        }
    }

    /// Answers a question about the workers of this node.
    async fn answer(&self, question: &Question) -> Answer {
        let report = self.node();
        let mut answer = Answer {
            id: question.id,
            ..Answer::default()
        };
        match &question.output {
            None => {
                let tool = self.stack_tool.as_ref();
                answer.stacks = stacks(&report, tool, question.rank).await;
            }
            Some(output) => {
                let mut workers = report.workers.iter();
                let worker = workers.find(|worker| Some(worker.identity.rank.0) == question.rank);
                if let Some(worker) = worker {
                    let path = if output.is_stderr {
                        &worker.stderr
                    } else {
                        &worker.stdout
                    };
                    let pid = worker.identity.pid;
                    let is_same = output.pid == pid;
                    let from = output.from.map(|from| if is_same { from } else { 0 });
                    let read = read(path.as_ref(), from, output).await;
                    answer.tail = Some(OutputTail { pid, ..read });
                }
            }
        }
        answer
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Shared({})", self.name)
    }
}

#[derive(Default)]
struct Known {
    viewers: usize,
    job: Job,
    heard: BTreeMap<String, Instant>,
    /// Agents whose last message did not fit their last report.
    missing: BTreeSet<String>,
    /// Channel that reports the last message to [`JobServer::finish`].
    over: Option<std::sync::mpsc::SyncSender<()>>,
    /// Number of questions of other agents that this agent is answering.
    answering: usize,
    /// Questions that still wait for answers.
    questions: BTreeMap<u64, mpsc::UnboundedSender<(String, Answer)>>,
}

impl Known {
    /// Forgets the job, unless there is a viewer. Returns `true` if there is none.
    fn forget_unless_viewed(&mut self) -> bool {
        let is_unviewed = self.viewers == 0;
        if is_unviewed {
            let answering = self.answering;
            *self = Self {
                answering,
                ..Self::default()
            };
        }
        is_unviewed
    }

    /// Counts a question, unless there are too many.
    fn begin_answer(&mut self) -> bool {
        let may = self.answering < MOST_ANSWERS;
        self.answering += usize::from(may);
        may
    }
}

impl JobServer {
    /// Creates the server of a node.
    ///
    /// `has_peers` is `false` if the agent reaches no other agents.
    pub(crate) fn new(
        node: Arc<Mutex<NodeReport>>,
        group: GroupStatus,
        has_peers: bool,
        stack_tool: Option<PathBuf>,
    ) -> Self {
        let name = {
            let node = node.lock().unwrap_or_else(PoisonError::into_inner);
            format!(
                "{}/{}",
                rdzv_agent::launcher::host::name_so_far(),
                node.agent_pid
            )
        };
        Self(Arc::new(Shared {
            name,
            node,
            exchange: has_peers.then(|| group.exchange().clone()),
            group,
            stack_tool,
            state: Mutex::default(),
            changed: Notify::new(),
            messages: broadcast::channel(MOST_BEHIND).0,
        }))
    }

    /// Returns the report of this node.
    pub(crate) fn node(&self) -> NodeReport {
        self.0.node()
    }

    /// Attaches a viewer; `None` if there are too many.
    ///
    /// Returns the viewer with the job until now, and the messages that follow.
    pub(super) fn attach(&self) -> Option<(Viewer, Vec<Message>, broadcast::Receiver<Arc<str>>)> {
        let mut known = self.0.known();
        let viewer = Viewer::count(self, &mut known)?;
        let job = known.job.messages().collect();
        Some((viewer, job, self.0.messages.subscribe()))
    }

    /// Sends the report of the end if this agent has viewers.
    ///
    /// Waits until it has been sent, at most for the time limit.
    pub(crate) fn finish(&self) {
        let (over, is_over) = std::sync::mpsc::sync_channel(1);
        {
            let mut known = self.0.known();
            if known.viewers == 0 {
                return;
            }
            known.over = Some(over);
        }
        self.0.changed.notify_one();
        let _ = is_over.recv_timeout(FINISH_WITHIN);
    }

    /// Exchanges reports for as long as there are viewers. Never returns.
    pub(crate) async fn run(self) {
        let shared = &*self.0;
        let (mut watch, mut own) = (0, OwnReport::default());
        let mut next = Instant::now();
        loop {
            let viewers = shared.known().viewers;
            let is_watched = viewers > 0 || watch > 0;
            let over = shared.known().over.take();
            if over.is_some() {
                next = Instant::now();
            }
            if is_watched && next <= Instant::now() {
                shared.report(&mut own, viewers > 0, watch > 0);
                let nodes = shared.node().group_world_size.filter(|_| viewers == 0);
                next = Instant::now() + period(nodes.unwrap_or(1));
                if let Some(over) = over {
                    let _ = shared.messages.send("".into());
                    // The connections write what they have before this task continues.
                    sleep(LINGER).await;
                    let _ = over.send(());
                }
            } else if !is_watched {
                own = OwnReport::default();
            }
            tokio::select! {
                (now, messages) = arrived(shared.exchange.as_ref()) => {
                    if now != watch {
                        own.is_whole = true;
                    }
                    watch = now;
                    for message in messages {
                        self.received(&message);
                    }
                }
                () = shared.changed.notified() => {
                    own.is_whole |= viewers == 0;
                    if shared.known().forget_unless_viewed()
                        && let Some(exchange) = &shared.exchange
                    {
                        exchange.send(false, false, Vec::new());
                    }
                }
                () = sleep(next.saturating_duration_since(Instant::now())), if is_watched => {}
            }
        }
    }

    /// Asks this agent, and then all other agents unless its answer is enough.
    ///
    /// Waits until `enough` is `true`, or for the time limit.
    pub(super) async fn ask(
        &self,
        mut question: Question,
        enough: impl Fn(&[Answer], usize) -> bool,
    ) -> Vec<Answer> {
        question.id = fastrand::u64(1..);
        let shared = &self.0;
        let own = shared.answer(&question).await;
        let node = shared.node();
        let nodes = node.group_world_size.unwrap_or(1) as usize;
        let mut answers = vec![own];
        if enough(&answers, nodes) || node.is_alone || shared.exchange.is_none() {
            return answers;
        }
        // Answers reach only agents that have a viewer.
        let _viewer = Viewer::count(self, &mut shared.known());
        let (sender, mut arriving) = mpsc::unbounded_channel();
        shared.known().questions.insert(question.id, sender);
        let id = question.id;
        shared.send(
            true,
            true,
            &Message {
                from: shared.name.clone(),
                question: Some(question),
                ..Message::default()
            },
        );
        let _ = timeout(ANSWER_WITHIN, async {
            while !enough(&answers, nodes) {
                let Some((_, answer)) = arriving.recv().await else {
                    return;
                };
                answers.push(answer);
            }
        })
        .await;
        shared.known().questions.remove(&id);
        answers
    }

    /// Handles a message of another agent.
    fn received(&self, bytes: &[u8]) {
        let shared = &*self.0;
        let Ok(mut message) = parse::<Message>(bytes) else {
            return;
        };
        if message.from == shared.name {
            return;
        }
        if let Some(question) = message.question.take()
            && shared.known().begin_answer()
        {
            let server = self.clone();
            tokio::spawn(async move {
                let answer = server.0.answer(&question).await;
                server.0.known().answering -= 1;
                let is_for_all = question.rank.is_none();
                if is_for_all || !answer.stacks.is_empty() || answer.tail.is_some() {
                    let has_viewer = server.0.known().viewers > 0;
                    server.0.send(
                        has_viewer,
                        false,
                        &Message {
                            from: server.0.name.clone(),
                            answer: Some(answer),
                            ..Message::default()
                        },
                    );
                }
            });
        }
        let mut known = shared.known();
        if let Some(answer) = message.answer.take() {
            if let Some(question) = known.questions.get(&answer.id) {
                let _ = question.send((message.from.clone(), answer));
            }
            return;
        }
        if known.viewers == 0 || known.heard.len() >= MOST_AGENTS {
            return;
        }
        known.heard.insert(message.from.clone(), Instant::now());
        let agent = known.job.agents.get(&message.from);
        message.is_silent = agent.is_some_and(|agent| agent.is_silent).then_some(false);
        shared.take(&mut known, message);
    }
}

async fn arrived(exchange: Option<&ReportExchange>) -> (u32, Vec<Vec<u8>>) {
    match exchange {
        Some(exchange) => exchange.next().await,
        None => std::future::pending().await,
    }
}

/// Report of this node that was sent last.
#[derive(Debug, Default)]
struct OwnReport {
    sampler: Sampler,
    sent: Value,
    number: u64,
    /// Number of periods without a message.
    quiet: u32,
    /// Number of periods with a viewer.
    viewed: u32,
    /// `true` if the next message must contain everything.
    is_whole: bool,
    /// `true` if the other agents lack changes, because there was no connection.
    is_cut: bool,
}

async fn read(path: Option<&PathBuf>, from: Option<u64>, output: &Output) -> OutputTail {
    let lines = output.lines.unwrap_or(LINES);
    let Some(path) = path else {
        let error = "the output of this rank goes to the console, not to a file; start the run with \
                     --tee 3 to write it to a file too";
        return OutputTail {
            error: Some(error.to_owned()),
            ..OutputTail::default()
        };
    };
    let read = async {
        // The watch begins before the file is read, so it misses no line.
        let watch = output.waits.then(|| watch(path));
        let found = tail(path, from, lines, 0)?;
        match watch.filter(|_| found.text.is_empty()) {
            Some(Ok(watch)) => drop(timeout(LINE_WITHIN, watch.readable()).await),
            // The user has no watch left (`fs.inotify.max_user_instances`).
            Some(Err(_)) => sleep(PERIOD).await,
            None => return Ok(found),
        }
        tail(path, from, lines, 0)
    };
    let read: io::Result<OutputTail> = read.await;
    read.unwrap_or_else(|error| OutputTail {
        error: Some(format!("cannot read {}: {error}", path.display())),
        ..OutputTail::default()
    })
}

/// Returns a descriptor that is readable once the file has changed.
#[expect(
    deprecated,
    reason = "the successor is `unsafe` because a type may lie about its descriptor; an `OwnedFd` \
              does not"
)]
fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&watch, path, WatchFlags::MODIFY)?;
    AsyncFd::new(watch)
}

/// Viewer that is attached; the drop detaches it.
pub(super) struct Viewer(JobServer);

impl Viewer {
    fn count(server: &JobServer, known: &mut Known) -> Option<Self> {
        if known.viewers >= MOST_VIEWERS {
            return None;
        }
        known.viewers += 1;
        server.0.changed.notify_one();
        Some(Self(server.clone()))
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.0.known().viewers -= 1;
        self.0.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::{PERIOD, SILENT_AFTER, UNCHANGED, period};

    #[test]
    fn many_nodes_report_less_often_and_never_look_silent() {
        assert_eq!(period(1), PERIOD);
        assert_eq!(period(800), PERIOD);
        assert_eq!(period(1200), PERIOD.mul_f64(1.5));
        assert!(period(10_000) * UNCHANGED < SILENT_AFTER);
    }
}
