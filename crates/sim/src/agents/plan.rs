//! Plan that a seed determines: kinds of agents, network, faults, and times.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::{Rule, Settings};

/// External event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// The process of an agent starts, unless it runs.
    Start,
    /// The workers of the agent fail, so that it joins again.
    Restart,
    /// The agent receives the command to leave.
    Leave,
    /// The agent ends the run.
    Close,
    /// The agent's process and its keeper are killed, and its connection closes.
    Crash,
    /// The agent's machine is lost silently; it may return later.
    Vanish,
    /// The agent's process is stopped for this time.
    Stall(Duration),
    /// The agent loses the network for this time, without a notice.
    Cut(Duration),
    /// The agent's connection is reset.
    Reset,
    /// The agent's wall clock jumps by this number of seconds.
    ClockJump(f64),
    /// The coordinator is stopped for this time.
    HostStalls(Duration),
    /// The agent's process is killed, and its keeper restarts it.
    Killed,
    /// The coordinator is killed with its keeper, so that its record is lost.
    ///
    /// Another coordinator starts at the same address.
    NoteLost,
    /// Like [`NoteLost`](Self::NoteLost), but at another address.
    ///
    /// Agents reach it like the previous one.
    Moved,
    /// The operator restarts the coordinator with `recover`.
    ///
    /// The operator confirms that all missing agents have exited.
    Recover,
    /// The coordinator dies after this number of further outputs, and restarts.
    HostDies(u32),
}

/// Location at which agents find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A coordinator in the store. Torchrun agents, if any, use only the state.
    Coordinator,
    /// A coordinator that restarts when it dies. There are no torchrun agents.
    Restartable,
    /// The state in a store without a coordinator. All agents know only the state.
    Store,
}

/// All decisions that are made before a run starts.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Location at which the agents find each other.
    pub medium: Medium,
    /// Settings that the agents agree on.
    pub settings: Settings,
    /// Number of agents.
    pub agents: usize,
    /// `true` for each agent that knows only the state, like torchrun's.
    pub torchrun: Vec<bool>,
    /// `true` if the coordinator is in the first agent's process, and dies with it.
    pub hosted: bool,
    /// Agents that connect to the coordinator through a proxy.
    pub proxies: BTreeSet<usize>,
    /// `true` if the store notifies agents of changes of the state.
    pub notifies: bool,
    /// `true` if the store notices dead agents automatically.
    pub notices_dead: bool,
    /// Minimum and maximum time that a message takes.
    pub latency: (Duration, Duration),
    /// One in this number of questions and answers is lost; 0 for none.
    pub loses_one_of: u32,
    /// Offset of each agent's wall clock, in seconds.
    pub skew: Vec<f64>,
    /// Acts with their time and agent, in no order.
    pub acts: Vec<(Duration, usize, Act)>,
    /// Times at which the workers of an agent succeed, if it is in a round.
    pub successes: Vec<(Duration, usize)>,
    /// `true` if the plan may contain faults that make an agent count as lost.
    pub faulty: bool,
    /// `true` if the clocks may differ by much.
    pub clocks_are_wrong: bool,
    /// Rules that coordinators and agents keep.
    pub rules: Rules<Rule>,
    /// Time at which all planned events are over.
    pub end: Duration,
}

impl Plan {
    /// Returns a plan without faults, in which all agents start at the same time.
    ///
    /// With a coordinator, no agent is a torchrun agent.
    pub fn of_many(agents: usize, medium: Medium) -> Self {
        let count = u32::try_from(agents).unwrap_or(u32::MAX);
        Self {
            medium,
            settings: Settings::new(count, count),
            agents,
            torchrun: vec![medium == Medium::Store; agents],
            hosted: false,
            proxies: BTreeSet::new(),
            notifies: medium == Medium::Store,
            notices_dead: false,
            latency: (Duration::from_micros(50), Duration::from_micros(400)),
            loses_one_of: 0,
            skew: vec![0.0; agents],
            acts: (0..agents)
                .map(|agent| (Duration::ZERO, agent, Act::Start))
                .collect(),
            successes: Vec::new(),
            faulty: false,
            clocks_are_wrong: false,
            rules: Rules::default(),
            end: Duration::ZERO,
        }
    }

    /// `true` if an agent with running workers may be silent for a long time.
    pub fn has_silence(&self) -> bool {
        let silences = |act: &Act| {
            matches!(
                act,
                Act::Vanish | Act::Stall(_) | Act::Cut(_) | Act::HostStalls(_)
            )
        };
        self.acts.iter().any(|(_, _, act)| silences(act))
    }

    /// `true` if no connected process may know of a round that still runs.
    ///
    /// The record is lost, and the agents that know the round are silent.
    pub fn has_gap(&self) -> bool {
        let is_lost = |(_, _, act): &(_, _, Act)| matches!(act, Act::NoteLost | Act::Moved);
        self.has_silence() && self.acts.iter().any(is_lost)
    }

    /// `true` if there are more agents than a round accepts.
    pub fn has_spares(&self) -> bool {
        self.agents > self.settings.max_nodes as usize
    }

    /// Returns the plan of a seed.
    pub fn of_seed(seed: u64, medium: Medium) -> Self {
        // The plan draws from another random sequence than the run.
        let mut random = Rng::with_seed(!seed);
        let most = if medium == Medium::Store { 60 } else { 100 };
        let agents = match random.u32(0..100) {
            0..75 => random.usize(2..8),
            75..95 => random.usize(8..24),
            _ => random.usize(24..most),
        };
        Self::drawn(agents, medium, &mut random)
    }

    /// Returns the plan of a seed for this number of agents.
    pub fn of_seed_for(agents: usize, seed: u64, medium: Medium) -> Self {
        Self::drawn(agents, medium, &mut Rng::with_seed(!seed))
    }

    fn drawn(agents: usize, medium: Medium, random: &mut Rng) -> Self {
        let min = random.usize(1..=agents);
        let max = random.usize(min..=agents + 2);
        let mut plan = Self::of_many(agents, medium);
        plan.settings = Settings::new(min as u32, max as u32);
        plan.settings.last_call_timeout = Duration::from_millis(random.u64(100..30_000));
        plan.faulty = random.u32(0..10) < 7;
        // A value that all agents write in turn allows one write per round trip, and every agent
        // writes its heartbeat every five seconds.
        if random.u32(0..3) == 0 && agents <= 100 {
            plan.latency = (Duration::from_millis(1), Duration::from_millis(40));
        }
        match medium {
            Medium::Coordinator => {
                let mixed = random.u32(0..3) == 0;
                for torchrun in &mut plan.torchrun {
                    *torchrun = mixed && random.u32(0..3) == 0;
                }
                // Torchrun agents write in turn, each after at least two messages. If a round
                // completes before the last of them has written, other rounds follow again and
                // again.
                let writers = plan.torchrun.iter().filter(|is| **is).count() as u32;
                let all_write = plan.latency.1 * 4 * writers;
                let settings = &mut plan.settings;
                settings.last_call_timeout = settings.last_call_timeout.max(all_write);
            }
            Medium::Restartable => {}
            Medium::Store => plan.draw_store(random),
        }
        plan.hosted = medium == Medium::Restartable && random.bool();
        plan.draw_acts(random);
        if medium == Medium::Restartable {
            plan.draw_deaths(random);
            plan.draw_successes(random);
            plan.draw_proxies(random);
        }
        plan
    }

    /// Draws the behaviour of the store, its network, and the agents' clocks.
    fn draw_store(&mut self, random: &mut Rng) {
        if random.u32(0..4) == 0 {
            // An agent that stops waiting during the last call restarts it for the others. Agents
            // whose timeout is hardly longer than the last call may therefore never meet.
            let more = Duration::from_secs(random.u64(40..120));
            self.settings.join_timeout = self.settings.last_call_timeout * 4 + more;
        }
        if random.u32(0..4) == 0 {
            self.settings.cas_backoff_max = Duration::from_millis(random.u64(1..200));
        }
        self.notifies = random.bool();
        self.notices_dead = random.bool();
        if self.faulty && random.bool() {
            self.loses_one_of = random.u32(5..200);
        }
        // The difference exceeds the fifteen seconds of lost nodes, and must not matter.
        self.clocks_are_wrong = self.faulty && random.u32(0..12) == 0;
        let far = if self.clocks_are_wrong { 60.0 } else { 3.0 };
        if random.bool() {
            for skew in &mut self.skew {
                *skew = far * (random.f64() - 0.5);
            }
        }
    }

    /// Draws the times at which all workers succeed, or some of them.
    fn draw_successes(&mut self, random: &mut Rng) {
        for _ in 0..random.usize(0..4) {
            let at = random.u64(0..120_000);
            let is_all = random.u32(0..4) > 0;
            for agent in 0..self.agents {
                let at = Duration::from_millis(at + random.u64(0..1_000));
                if is_all || random.bool() {
                    self.successes.push((at, agent));
                    self.end = self.end.max(at);
                }
            }
        }
    }

    /// Draws the connections that use a proxy.
    fn draw_proxies(&mut self, random: &mut Rng) {
        if random.u32(0..4) == 0 {
            self.proxies = (0..self.agents).filter(|_| random.bool()).collect();
        }
    }

    /// Draws the deaths of the coordinator and of agents, and losses of the record.
    fn draw_deaths(&mut self, random: &mut Rng) {
        for _ in 0..random.usize(1..8) {
            let at = Duration::from_millis(if random.bool() {
                match self.acts.get(random.usize(0..self.acts.len())) {
                    Some((at, ..)) => at.as_millis() as u64 + random.u64(0..60),
                    None => 0,
                }
            } else {
                random.u64(0..120_000)
            });
            let after = if random.bool() { 0 } else { random.u32(0..60) };
            self.acts.push((at, 0, Act::HostDies(after)));
            self.end = self.end.max(at);
        }
        for _ in 0..random.usize(0..6) {
            let at = Duration::from_millis(random.u64(0..120_000));
            let agent = random.usize(0..self.agents);
            self.acts.push((at, agent, Act::Killed));
            self.end = self.end.max(at);
        }
        let is_killed = |(_, _, act): &(_, _, Act)| *act == Act::Killed;
        self.faulty |= self.hosted || self.acts.iter().any(is_killed);
        // If the record is lost, so is the end of the run, unless a remaining agent knows it. If
        // there are more agents than a round accepts, waiting agents may fill a round before any
        // agent of the last round has reported.
        let closes = self.acts.iter().any(|(_, _, act)| *act == Act::Close);
        if random.u32(0..3) == 0 && !closes && !self.has_spares() {
            self.faulty = true;
            for _ in 0..random.usize(1..4) {
                let at = Duration::from_millis(random.u64(0..120_000));
                let moves = !self.hosted && random.u32(0..3) == 0;
                let act = if moves { Act::Moved } else { Act::NoteLost };
                self.acts.push((at, 0, act));
                self.end = self.end.max(at);
            }
        }
        // A coordinator that is stopped and then killed has not received which agents have left.
        let stalls = |(_, _, act): &(_, _, Act)| matches!(act, Act::HostStalls(_));
        let is_deaf = self.acts.iter().any(stalls);
        let is_gone = |act: &Act| match act {
            Act::Crash | Act::Vanish | Act::NoteLost | Act::Moved => true,
            Act::Leave => is_deaf,
            _ => false,
        };
        if self.acts.iter().any(|(_, _, act)| is_gone(act)) {
            // The coordinator waits for agents whose end was not recorded, until the operator
            // confirms it.
            self.end += Duration::from_secs(30);
            self.acts.push((self.end, 0, Act::Recover));
        }
        if self.hosted {
            let ends = |act: &Act| {
                matches!(
                    act,
                    Act::Leave
                        | Act::Close
                        | Act::Crash
                        | Act::Vanish
                        | Act::Stall(_)
                        | Act::Cut(_)
                )
            };
            self.acts.retain(|(_, agent, act)| *agent > 0 || !ends(act));
        }
    }

    fn draw_acts(&mut self, random: &mut Rng) {
        let agents = self.agents;
        self.acts.clear();
        let spread = [0, 300, 40_000][random.usize(0..3)];
        for agent in 0..agents {
            let at = Duration::from_millis(random.u64(0..=spread));
            self.acts.push((at, agent, Act::Start));
        }
        let at_coordinator = self.medium != Medium::Store;
        let most = if at_coordinator { 3 + agents } else { 12 };
        let seconds = |random: &mut Rng| Duration::from_millis(random.u64(100..30_000));
        for _ in 0..random.usize(0..most) {
            let agent = random.usize(0..agents);
            let at = Duration::from_millis(random.u64(0..120_000));
            let act = match random.u32(0..if self.faulty { 14 } else { 4 }) {
                0..3 => Act::Restart,
                3 => Act::Leave,
                4 | 5 => Act::Crash,
                6 => Act::Vanish,
                7 | 8 => Act::Stall(seconds(random)),
                9 | 10 => Act::Cut(seconds(random)),
                11 | 12 if at_coordinator => Act::Reset,
                _ if at_coordinator => Act::HostStalls(seconds(random)),
                _ => {
                    let far = if self.clocks_are_wrong { 100.0 } else { 2.0 };
                    Act::ClockJump(far * (random.f64() - 0.5))
                }
            };
            self.acts.push((at, agent, act));
            if matches!(act, Act::Crash | Act::Vanish | Act::Leave) && random.u32(0..4) > 0 {
                self.acts.push((at + seconds(random), agent, Act::Start));
            }
        }
        if random.u32(0..8) == 0 {
            let at = Duration::from_millis(random.u64(0..120_000));
            self.acts.push((at, random.usize(0..agents), Act::Close));
        }
        let last = self.acts.iter().map(|(at, _, act)| match act {
            Act::Stall(time) | Act::Cut(time) | Act::HostStalls(time) => *at + *time,
            _ => *at,
        });
        self.end = last.max().unwrap_or_default();
    }
}
