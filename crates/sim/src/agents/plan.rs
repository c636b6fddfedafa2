//! What a seed lets happen: how many agents of which kind, which network, which faults, when.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::{Rule, Settings};

/// Something that happens from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// An agent's process starts, unless it runs.
    Start,
    /// Its workers fail, so that it joins again.
    Restart,
    /// It is told to go.
    Leave,
    /// It ends the run.
    Close,
    /// Its process is killed, and its keeper; its connection closes.
    Crash,
    /// Its machine is gone without a word; another one takes its place later.
    Vanish,
    /// Its process stands still for a while.
    Stall(Duration),
    /// It loses the network for a while, and nobody is told.
    Cut(Duration),
    /// Its connection is reset.
    Reset,
    /// Its wall clock is moved by so many seconds.
    ClockJump(f64),
    /// The coordinator stands still for a while.
    HostStalls(Duration),
    /// Its process is killed; its keeper starts it again.
    Killed,
    /// The coordinator is killed with its keeper, so that its note is lost, and somebody starts another one at the same
    /// address.
    NoteLost,
    /// The same, at another address, which agents reach as the one before.
    Moved,
    /// The operator starts the coordinator anew, and gives their word that all who are missing have ended.
    Recover,
    /// The coordinator is killed after so many more things that it wants done, and another one is started.
    HostDies(u32),
}

/// Where agents find one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At a coordinator in the store. Some agents may be of torchrun and know only the state.
    Coordinator,
    /// At a coordinator that is started again when it dies. No agents are of torchrun.
    Restartable,
    /// At the state in a store that does nothing by itself. All agents know only the state.
    Store,
}

/// All that is decided before a run begins.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the agents find one another.
    pub place: Place,
    /// What the agents agree on.
    pub settings: Settings,
    /// How many agents there are.
    pub agents: usize,
    /// Whether each of them knows only the state, as those of torchrun.
    pub torchrun: Vec<bool>,
    /// Whether the coordinator is in the process of the first agent, and dies with it.
    pub hosted: bool,
    /// The agents that a proxy is between, and the coordinator.
    pub proxies: BTreeSet<usize>,
    /// Whether the store tells of changes of the state.
    pub notifies: bool,
    /// Whether the store notices dead agents by itself.
    pub notices_dead: bool,
    /// How long a message takes.
    pub latency: (Duration, Duration),
    /// Of so many questions and answers about the state one is lost; 0: none.
    pub loses_one_of: u32,
    /// How far each agent's wall clock is off, in seconds.
    pub skew: Vec<f64>,
    /// What happens, in no order: when, to which agent.
    pub acts: Vec<(Duration, usize, Act)>,
    /// When the workers of which agent succeed, if it is in a round.
    pub successes: Vec<(Duration, usize)>,
    /// Whether anything is in there by which an agent is rightly taken for lost.
    pub faulty: bool,
    /// Whether clocks are far from one another.
    pub clocks_are_wrong: bool,
    /// The rules that coordinators and agents keep.
    pub rules: Rules<Rule>,
    /// When all that has been planned is over.
    pub end: Duration,
}

impl Plan {
    /// So many agents that all start at once, none of torchrun if there is a coordinator, and nothing
    /// that goes wrong.
    pub fn of_many(agents: usize, place: Place) -> Self {
        let count = u32::try_from(agents).unwrap_or(u32::MAX);
        Self {
            place,
            settings: Settings::new(count, count),
            agents,
            torchrun: vec![place == Place::Store; agents],
            hosted: false,
            proxies: BTreeSet::new(),
            notifies: place == Place::Store,
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

    /// Whether an agent that runs its workers may not be heard of for long.
    pub fn has_silence(&self) -> bool {
        let silences = |act: &Act| {
            matches!(
                act,
                Act::Vanish | Act::Stall(_) | Act::Cut(_) | Act::HostStalls(_)
            )
        };
        self.acts.iter().any(|(_, _, act)| silences(act))
    }

    /// Whether nobody in contact may know of a round that still runs: the note is lost, and those who know it are not heard of.
    pub fn has_gap(&self) -> bool {
        let is_lost = |(_, _, act): &(_, _, Act)| matches!(act, Act::NoteLost | Act::Moved);
        self.has_silence() && self.acts.iter().any(is_lost)
    }

    /// Whether there are more agents than a round takes.
    pub fn has_spares(&self) -> bool {
        self.agents > self.settings.max_nodes as usize
    }

    /// The plan of a seed.
    pub fn of_seed(seed: u64, place: Place) -> Self {
        // Another stream of numbers than the one that the run itself draws from.
        let mut random = Rng::with_seed(!seed);
        let most = if place == Place::Store { 60 } else { 100 };
        let agents = match random.u32(0..100) {
            0..75 => random.usize(2..8),
            75..95 => random.usize(8..24),
            _ => random.usize(24..most),
        };
        Self::drawn(agents, place, &mut random)
    }

    /// The plan of a seed for so many agents.
    pub fn of_seed_for(agents: usize, seed: u64, place: Place) -> Self {
        Self::drawn(agents, place, &mut Rng::with_seed(!seed))
    }

    fn drawn(agents: usize, place: Place, random: &mut Rng) -> Self {
        let min = random.usize(1..=agents);
        let max = random.usize(min..=agents + 2);
        let mut plan = Self::of_many(agents, place);
        plan.settings = Settings::new(min as u32, max as u32);
        plan.settings.last_call_timeout = Duration::from_millis(random.u64(100..30_000));
        plan.faulty = random.u32(0..10) < 7;
        // A value that all write in turn bears one write in a round trip, and every agent writes
        // its heartbeat every five seconds.
        if random.u32(0..3) == 0 && agents <= 100 {
            plan.latency = (Duration::from_millis(1), Duration::from_millis(40));
        }
        match place {
            Place::Coordinator => {
                let mixed = random.u32(0..3) == 0;
                for torchrun in &mut plan.torchrun {
                    *torchrun = mixed && random.u32(0..3) == 0;
                }
                // They write in turn, each after two ways at least. Rounds that are complete before
                // the last of them has written are followed by others, again and again.
                let writers = plan.torchrun.iter().filter(|is| **is).count() as u32;
                let all_write = plan.latency.1 * 4 * writers;
                let settings = &mut plan.settings;
                settings.last_call_timeout = settings.last_call_timeout.max(all_write);
            }
            Place::Restartable => {}
            Place::Store => plan.draw_store(random),
        }
        plan.hosted = place == Place::Restartable && random.bool();
        plan.draw_acts(random);
        if place == Place::Restartable {
            plan.draw_deaths(random);
            plan.draw_successes(random);
            plan.draw_proxies(random);
        }
        plan
    }

    /// How the store, the network to it and the clocks of agents behave.
    fn draw_store(&mut self, random: &mut Rng) {
        if random.u32(0..4) == 0 {
            // Whoever gives up in the last call begins it anew for the others, so agents whose time
            // is hardly longer than that may miss one another for ever.
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
        // By more than the fifteen seconds of lost nodes, which must make no difference.
        self.clocks_are_wrong = self.faulty && random.u32(0..12) == 0;
        let far = if self.clocks_are_wrong { 60.0 } else { 3.0 };
        if random.bool() {
            for skew in &mut self.skew {
                *skew = far * (random.f64() - 0.5);
            }
        }
    }

    /// When all workers succeed, or some of them.
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

    /// Which connections go through a proxy.
    fn draw_proxies(&mut self, random: &mut Rng) {
        if random.u32(0..4) == 0 {
            self.proxies = (0..self.agents).filter(|_| random.bool()).collect();
        }
    }

    /// When the coordinator is killed.
    fn draw_deaths(&mut self, random: &mut Rng) {
        for _ in 0..random.usize(1..8) {
            let at = Duration::from_millis(match random.bool() {
                // While everybody joins, or something else happens.
                true => match self.acts.get(random.usize(0..self.acts.len())) {
                    Some((at, ..)) => at.as_millis() as u64 + random.u64(0..60),
                    None => 0,
                },
                false => random.u64(0..120_000),
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
        // That a run is over is lost with the note, if nobody is left who knows it; and where there
        // are more agents than a round takes, those that wait may fill one before anybody of the
        // last one is heard of.
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
        // A coordinator that stands still and is killed then has not heard who has left.
        let stalls = |(_, _, act): &(_, _, Act)| matches!(act, Act::HostStalls(_));
        let is_deaf = self.acts.iter().any(stalls);
        let is_gone = |act: &Act| match act {
            Act::Crash | Act::Vanish | Act::NoteLost | Act::Moved => true,
            Act::Leave => is_deaf,
            _ => false,
        };
        if self.acts.iter().any(|(_, _, act)| is_gone(act)) {
            // Those who have ended while nobody could note it are waited for, until somebody says
            // so.
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
        let at_coordinator = self.place != Place::Store;
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
