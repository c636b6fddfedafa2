//! Nodes, their worker groups and workers; the rendezvous.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_agent_proto::group::{
    Exit, GroupEnding, GroupIdentity, GroupInput, GroupOutput, GroupSpec, GroupState, Master,
    MembershipCause, RestartOptions, Round, StopOptions, WorkerExit, WorkerGroupMachine,
};
use rdzv_core::machine::Machine as _;
use rdzv_core::rank::{Assignment, GroupRank, LocalRank};

use super::{Act, Plan};
use crate::scheduler::{Scheduler, due, nanos};
use crate::trace::Trace;
use crate::{Result, broken};

const MS: u64 = 1_000_000;

/// Time that a message between an agent and a worker takes.
///
/// It is constant, so messages stay in order.
const MESSAGE: u64 = MS;

/// Time after which SIGKILL ends a worker that the kernel holds.
const HELD: u64 = 15_000 * MS;

/// Time after the last fault within which all workers run again.
const SETTLES: u64 = 120_000 * MS;

/// Bounds of delays.
const SOON: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
const LATER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3));

#[derive(Debug)]
enum Event {
    Act(Act),
    /// An input of the machine of a node's agent, which has this number.
    Input(usize, u64, GroupInput),
    Wake(usize, u64),
    /// A node starts, at first or in the place of a lost one.
    Begin(usize),
    /// The nodes form a round, if all that are there wait.
    Form,
    /// A message from the agent to a worker, which has this process id.
    Message(usize, u32, Message),
    /// The worker leaves the function of this round, unless it has left it.
    Leave(usize, u32, u64),
    Connect(usize, u32),
    /// The agent learns that the worker is ready, or that its function raised.
    Ready(usize, u32, u64, bool),
    Exit(usize, u32, Exit),
    End,
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Abort(u64),
    Go(u64),
    Fail,
}

#[derive(Debug)]
struct Worker {
    local_rank: LocalRank,
    /// Round in which the agent believes the worker to be.
    round: u64,
    /// Round whose function runs; `None` outside of the function.
    runs: Option<u64>,
    has_connected: bool,
    /// `true` if the agent knows that the worker has left its function.
    is_ready: bool,
    holds: bool,
    sticks: bool,
    is_abandoned: bool,
    /// End of the block that must not be interrupted.
    atomic_end: u64,
    /// Earliest time at which the agent may kill the worker.
    may_be_killed: Option<u64>,
    is_signalled: bool,
}

#[derive(Debug)]
struct Node {
    agent: u64,
    group: WorkerGroupMachine,
    wake: Option<u64>,
    /// `true` if the node waits for a round.
    waits: bool,
    round: Option<u64>,
    workers: BTreeMap<u32, Worker>,
    /// `true` if the agent has received SIGTERM.
    is_ending: bool,
    ending: Option<GroupEnding>,
}

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of rounds.
    pub rounds: u64,
    /// Number of workers that kept their process.
    pub kept: u64,
    /// Number of workers that were started.
    pub started: u64,
    /// Number of times that an agent sent SIGKILL to a worker.
    pub killed: u64,
    /// Number of jobs that ended.
    pub ended: u64,
}

/// The world of one seed.
#[derive(Debug)]
pub struct World {
    time: Scheduler<Event>,
    plan: Plan,
    /// `None` where no node runs.
    nodes: Vec<Option<Node>>,
    /// Number of the last round.
    round: Option<u64>,
    /// Nodes of the last round that have not left it.
    members: Vec<usize>,
    next_pid: u32,
    is_over: bool,
    report: Report,
}

impl World {
    /// Creates a world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        let mut time = Scheduler::new(seed, trace);
        for node in 0..plan.nodes {
            time.at(0, Event::Begin(node));
        }
        let last = plan.acts.iter().map(|(at, _)| nanos(*at)).max();
        for (at, act) in &plan.acts {
            time.at(nanos(*at), Event::Act(*act));
        }
        time.at(last.unwrap_or(0) + SETTLES, Event::End);
        Self {
            time,
            nodes: (0..plan.nodes).map(|_| None).collect(),
            plan,
            round: None,
            members: Vec::new(),
            next_pid: 0,
            is_over: false,
            report: Report::default(),
        }
    }

    /// Runs all events, and checks the result.
    pub fn run(mut self) -> Result<Report> {
        while let Some(event) = self.time.pop() {
            if matches!(event, Event::End) {
                break;
            }
            self.time.log("event", || format!("{event:?}"));
            self.happen(event)?;
            self.check_rounds()?;
        }
        self.check_end()?;
        Ok(self.report)
    }

    fn happen(&mut self, event: Event) -> Result {
        match event {
            Event::Act(act) => self.act(act),
            Event::Input(node, agent, input) => self.input(node, agent, input)?,
            Event::Wake(node, agent) => {
                if let Some(it) = self.agent(node, agent) {
                    it.wake = None;
                }
                self.input(node, agent, GroupInput::TimePassed)?;
            }
            Event::Begin(node) if self.nodes[node].is_none() && !self.is_over => {
                let agent = self.time.unique();
                self.nodes[node] = Some(Node {
                    agent,
                    group: WorkerGroupMachine::new(self.spec()),
                    wake: None,
                    waits: false,
                    round: None,
                    workers: BTreeMap::new(),
                    is_ending: false,
                    ending: None,
                });
                self.input(node, agent, GroupInput::Begin)?;
            }
            Event::Begin(_) | Event::End => {}
            Event::Form => self.form(),
            Event::Message(node, pid, message) => self.receive(node, pid, message),
            Event::Leave(node, pid, round) => {
                if let Some(worker) = self.worker(node, pid)
                    && worker.runs == Some(round)
                {
                    worker.runs = None;
                    self.time
                        .after(MESSAGE, Event::Ready(node, pid, round, false));
                }
            }
            Event::Connect(node, pid) => {
                if let Some(worker) = self.worker(node, pid) {
                    worker.has_connected = true;
                    let input = GroupInput::Recoverable(worker.local_rank);
                    self.tell(node, 0, input);
                }
            }
            Event::Ready(node, pid, round, has_raised) => {
                if let Some(worker) = self.worker(node, pid)
                    && worker.round == round
                {
                    worker.is_ready = true;
                    // The abort has ended.
                    worker.may_be_killed.take_if(|_| !worker.is_signalled);
                    let rank = worker.local_rank;
                    let input = if has_raised {
                        GroupInput::Raised(rank)
                    } else {
                        GroupInput::Ready(rank)
                    };
                    self.tell(node, 0, input);
                }
            }
            Event::Exit(node, pid, exit) => self.exit(node, pid, exit),
        }
        Ok(())
    }

    fn act(&mut self, act: Act) {
        let (Act::Kill(node, rank)
        | Act::Raise(node, rank)
        | Act::Hold(node, rank)
        | Act::Atomic(node, rank, _)
        | Act::Stick(node, rank)) = act
        else {
            // A second signal would shorten the shutdown timeout.
            if let Act::Signal(node) = act
                && let Some(it) = &mut self.nodes[node]
                && !std::mem::replace(&mut it.is_ending, true)
            {
                self.tell(node, 0, GroupInput::Signal(15));
            }
            let Act::Lose(node, replaced) = act else {
                return;
            };
            if self.nodes[node].take_if(|it| it.ending.is_none()).is_some() {
                self.leave(node, MembershipCause::Lost);
                self.time.after(nanos(replaced), Event::Begin(node));
            }
            return;
        };
        let now = self.time.now;
        let Some(it) = &mut self.nodes[node] else {
            return;
        };
        let Some((&pid, worker)) = it
            .workers
            .iter_mut()
            .find(|(_, it)| it.local_rank.0 == rank)
        else {
            return;
        };
        match act {
            Act::Kill(..) => self.time.at_once(Event::Exit(node, pid, Exit::Signal(9))),
            Act::Raise(..) if worker.has_connected => {
                if let Some(round) = worker.runs.take() {
                    self.time
                        .after(MESSAGE, Event::Ready(node, pid, round, true));
                }
            }
            Act::Raise(..) => self.time.at_once(Event::Exit(node, pid, Exit::Code(1))),
            Act::Hold(..) => worker.holds = true,
            Act::Atomic(.., long) => worker.atomic_end = now + nanos(long),
            Act::Stick(..) => worker.sticks = true,
            Act::Lose(..) | Act::Signal(_) => {}
        }
    }

    fn receive(&mut self, node: usize, pid: u32, message: Message) {
        let (now, late) = (self.time.now, self.time.between(LATER));
        let is_prompt = self.time.chance(70);
        let Some(worker) = self.worker(node, pid) else {
            return;
        };
        match message {
            Message::Abort(round) if worker.runs == Some(round) && !worker.holds => {
                let at = now + if is_prompt { MS } else { late };
                let at = at.max(worker.atomic_end);
                self.time.at(at, Event::Leave(node, pid, round));
            }
            Message::Abort(_) => {}
            Message::Go(round) => worker.runs = Some(round),
            Message::Fail => self.time.at_once(Event::Exit(node, pid, Exit::Code(1))),
        }
    }

    fn exit(&mut self, node: usize, pid: u32, exit: Exit) {
        let now = self.time.clocks(0).wall;
        let Some(it) = &mut self.nodes[node] else {
            return;
        };
        if let Some(worker) = it.workers.remove(&pid)
            && !worker.is_abandoned
        {
            let exit = WorkerExit {
                local_rank: worker.local_rank,
                pid,
                exit,
                at: now,
                stopped_by_agent: worker.is_signalled,
            };
            let delay = self.time.between(SOON);
            self.tell(node, delay, GroupInput::Exited(vec![exit]));
        }
    }

    /// Schedules an input of a node's machine.
    fn tell(&mut self, node: usize, delay: u64, input: GroupInput) {
        if let Some(it) = &self.nodes[node] {
            self.time.after(delay, Event::Input(node, it.agent, input));
        }
    }

    fn input(&mut self, node: usize, agent: u64, input: GroupInput) -> Result {
        let now = self.time.clocks(0);
        let Some(it) = self.agent(node, agent) else {
            return Ok(());
        };
        it.group.handle(now, input);
        while let Some(output) = self
            .agent(node, agent)
            .and_then(|it| it.group.poll_output())
        {
            self.time
                .log(format!("node {node}"), || format!("{output:?}"));
            self.output(node, output)?;
        }
        if let Some(it) = &mut self.nodes[node] {
            let due = due(it.group.deadline());
            self.time.wake(&mut it.wake, due, Event::Wake(node, agent));
        }
        Ok(())
    }

    fn output(&mut self, node: usize, output: GroupOutput) -> Result {
        let now = self.time.now;
        match output {
            GroupOutput::Join { .. } => {
                self.leave(node, MembershipCause::Restarted);
                if let Some(it) = &mut self.nodes[node] {
                    it.waits = true;
                }
                self.notify(MembershipCause::Waiting);
                self.form_soon();
            }
            GroupOutput::Assign(_) => {
                let delay = self.time.between(SOON);
                let assignment = Assignment::from((0, 1, 0, 1));
                self.tell(node, delay, GroupInput::Assigned(assignment));
            }
            GroupOutput::Start(request) => self.start(node, request.ranks.local_rank),
            GroupOutput::Go(request) => self.go(node, request.ranks.local_rank)?,
            GroupOutput::Abort { workers, .. } => {
                let timeout = nanos(self.plan.abort_timeout);
                for (pid, worker) in of_ranks(&mut self.nodes[node], &workers) {
                    if !worker.has_connected {
                        return broken(format!("IP-4: worker {pid} is aborted"));
                    }
                    worker.may_be_killed = Some(now + timeout);
                    let message = Message::Abort(worker.round);
                    self.time.after(MESSAGE, Event::Message(node, pid, message));
                }
            }
            GroupOutput::Fail(worker) => {
                for (pid, _) in of_ranks(&mut self.nodes[node], &[worker]) {
                    self.time
                        .after(MESSAGE, Event::Message(node, pid, Message::Fail));
                }
            }
            GroupOutput::Signal { workers, .. } => {
                let timeout = nanos(self.plan.shutdown_timeout);
                for (pid, worker) in of_ranks(&mut self.nodes[node], &workers) {
                    let earlier = worker.may_be_killed.filter(|_| worker.is_signalled);
                    worker.may_be_killed = Some(earlier.unwrap_or(u64::MAX).min(now + timeout));
                    worker.is_signalled = true;
                    // A worker that holds the interpreter handles no signal either.
                    if !worker.holds && !worker.sticks {
                        let delay = self.time.between(LATER);
                        self.time
                            .after(delay, Event::Exit(node, pid, Exit::Signal(15)));
                    }
                }
            }
            GroupOutput::Kill { workers } => {
                for (pid, worker) in of_ranks(&mut self.nodes[node], &workers) {
                    if worker.may_be_killed.is_none_or(|at| now < at) {
                        return broken(format!("IP-3: worker {pid} is killed too early"));
                    }
                    let delay = if worker.sticks { HELD } else { MS };
                    self.report.killed += 1;
                    self.time
                        .after(delay, Event::Exit(node, pid, Exit::Signal(9)));
                }
            }
            GroupOutput::Abandon { workers } => {
                for (pid, worker) in of_ranks(&mut self.nodes[node], &workers) {
                    if !worker.sticks {
                        return broken(format!("worker {pid} is abandoned, but nothing holds it"));
                    }
                    worker.is_abandoned = true;
                }
            }
            GroupOutput::ClearLeftovers => self.tell(node, MS, GroupInput::Cleared),
            GroupOutput::Finish(ending) => self.finish(node, ending)?,
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, node: usize, local_rank: LocalRank) {
        self.next_pid += 1;
        let pid = self.next_pid;
        let connects = self.time.chance(self.plan.connected);
        let delay = self.time.between(LATER);
        let Some(it) = &mut self.nodes[node] else {
            return;
        };
        let round = it.round.unwrap_or_default();
        let worker = Worker {
            local_rank,
            round,
            runs: Some(round),
            has_connected: false,
            is_ready: false,
            holds: false,
            sticks: false,
            is_abandoned: false,
            atomic_end: 0,
            may_be_killed: None,
            is_signalled: false,
        };
        it.workers.insert(pid, worker);
        self.report.started += 1;
        self.tell(node, 0, GroupInput::Started(local_rank));
        if connects {
            self.time.after(delay, Event::Connect(node, pid));
        }
    }

    fn go(&mut self, node: usize, local_rank: LocalRank) -> Result {
        let round = self.nodes[node].as_ref().and_then(|it| it.round);
        let round = round.unwrap_or_default();
        for (pid, worker) in of_ranks(&mut self.nodes[node], &[local_rank]) {
            if !worker.has_connected {
                return broken(format!("IP-4: worker {pid} receives `go`"));
            }
            if !worker.is_ready || worker.runs.is_some() {
                return broken(format!(
                    "IP-1: worker {pid} has not left round {}",
                    worker.round
                ));
            }
            (worker.is_ready, worker.round, worker.may_be_killed) = (false, round, None);
            self.report.kept += 1;
            self.time
                .after(MESSAGE, Event::Message(node, pid, Message::Go(round)));
        }
        Ok(())
    }

    fn finish(&mut self, node: usize, ending: GroupEnding) -> Result {
        let Some(it) = &mut self.nodes[node] else {
            return Ok(());
        };
        if let Some(pid) = it.workers.iter().find(|(_, worker)| !worker.is_abandoned) {
            return broken(format!("INV-G2: worker {} runs after the end", pid.0));
        }
        if matches!(ending, GroupEnding::Signalled { .. }) && !self.is_over {
            self.nodes[node] = None;
            self.leave(node, MembershipCause::Lost);
            let delay = self.time.between(LATER);
            self.time.after(delay, Event::Begin(node));
            return Ok(());
        }
        let is_first = matches!(ending, GroupEnding::Failed { .. });
        it.ending = Some(ending);
        if is_first && !self.is_over {
            self.is_over = true;
            self.report.ended += 1;
            for other in 0..self.plan.nodes {
                let delay = self.time.between(SOON);
                let (node, reason) = (node.to_string(), "failed".to_owned());
                self.tell(other, delay, GroupInput::PeerFailed { node, reason });
            }
        }
        Ok(())
    }

    /// Removes a node from the round, and notifies the others.
    fn leave(&mut self, node: usize, cause: MembershipCause) {
        if self.members.contains(&node) {
            self.members.retain(|it| *it != node);
            self.notify(cause);
        }
        self.form_soon();
    }

    /// Notifies the members of the round that it is superseded.
    fn notify(&mut self, cause: MembershipCause) {
        let Some(round) = self.round else {
            return;
        };
        for member in self.members.clone() {
            let delay = self.time.between(SOON);
            let reason = format!("{cause:?}");
            let input = GroupInput::MembershipChanged {
                round,
                cause,
                reason,
            };
            self.tell(member, delay, input);
        }
    }

    fn form_soon(&mut self) {
        let delay = self.time.between(SOON);
        self.time.after(delay, Event::Form);
    }

    /// Forms a round if all nodes that are there wait.
    fn form(&mut self) {
        let there: Vec<usize> = (0..self.plan.nodes)
            .filter(|node| {
                self.nodes[*node]
                    .as_ref()
                    .is_some_and(|it| it.ending.is_none())
            })
            .collect();
        let all_wait = there
            .iter()
            .all(|node| self.nodes[*node].as_ref().is_some_and(|it| it.waits));
        let are_enough = self.plan.may_shrink || there.len() == self.plan.nodes;
        if self.is_over || there.is_empty() || !all_wait || !are_enough {
            return;
        }
        let number = self.round.map_or(0, |round| round + 1);
        self.round = Some(number);
        self.report.rounds += 1;
        self.members.clone_from(&there);
        for (rank, node) in there.iter().enumerate() {
            let delay = self.time.between(SOON);
            if let Some(it) = &mut self.nodes[*node] {
                (it.waits, it.round) = (false, Some(number));
            }
            let round = Round {
                number,
                group_rank: GroupRank(rank as u32),
                group_world_size: there.len() as u32,
                replaced: Vec::new(),
                master: Master {
                    addr: "node".to_owned(),
                    port: 1,
                    hosted_by_agent: true,
                },
                losses_known_within: Duration::from_secs(2),
                answers_barrier: false,
            };
            self.tell(*node, delay, GroupInput::Joined(round));
        }
    }

    /// Checks IP-2.
    fn check_rounds(&self) -> Result {
        for (node, it) in self.nodes.iter().enumerate() {
            let workers = it.iter().flat_map(|it| it.workers.values());
            let mut rounds: Vec<u64> = workers
                .filter(|it| !it.is_abandoned)
                .filter_map(|it| it.runs)
                .collect();
            rounds.dedup();
            if rounds.len() > 1 {
                return broken(format!(
                    "IP-2: workers of node {node} run in rounds {rounds:?}"
                ));
            }
        }
        Ok(())
    }

    fn check_end(&self) -> Result {
        for (node, it) in self.nodes.iter().enumerate() {
            let Some(it) = it else {
                continue;
            };
            let running = it
                .workers
                .values()
                .filter(|it| it.runs == self.round)
                .count();
            let is_healthy = it.group.state() == GroupState::Healthy && it.round == self.round;
            let all_run = is_healthy && running == self.plan.workers as usize;
            if self.is_over != it.ending.is_some() || !(self.is_over || all_run) {
                let state = it.group.state();
                return broken(format!(
                    "in the end node {node} is {state:?} with {running} workers in round {:?}, and \
                     its ending is {:?}",
                    self.round, it.ending
                ));
            }
        }
        Ok(())
    }

    fn agent(&mut self, node: usize, agent: u64) -> Option<&mut Node> {
        let it = self.nodes[node].as_mut();
        it.filter(|it| it.agent == agent && it.ending.is_none())
    }

    fn worker(&mut self, node: usize, pid: u32) -> Option<&mut Worker> {
        self.nodes[node].as_mut()?.workers.get_mut(&pid)
    }

    fn spec(&self) -> GroupSpec {
        GroupSpec {
            identity: GroupIdentity {
                local_world_size: self.plan.workers,
                ..GroupIdentity::default()
            },
            restarts: RestartOptions {
                max_restarts: self.plan.max_restarts,
                ..RestartOptions::default()
            },
            stop: StopOptions {
                shutdown_timeout: self.plan.shutdown_timeout,
                ..StopOptions::default()
            },
            dynamic: true,
            joins_again: true,
            abort_timeout: Some(self.plan.abort_timeout),
            rules: self.plan.rules,
            ..GroupSpec::default()
        }
    }
}

/// Returns the workers with these local ranks, and their process ids.
fn of_ranks<'n>(
    node: &'n mut Option<Node>,
    ranks: &[LocalRank],
) -> impl Iterator<Item = (u32, &'n mut Worker)> {
    let workers = node.iter_mut().flat_map(|it| &mut it.workers);
    workers
        .filter(move |(_, it)| !it.is_abandoned && ranks.contains(&it.local_rank))
        .map(|(pid, it)| (*pid, it))
}
