//! What a seed lets happen: how many agents, which network, which faults, when.

use std::time::Duration;

use fastrand::Rng;
use rdzv_rendezvous_proto::Settings;

/// Something that happens to an agent from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// Its process starts, under a new process id.
    Start,
    /// Its workers fail, so that it joins again.
    Restart,
    /// It is told to go.
    Leave,
    /// It ends the run.
    Close,
    /// Its process is killed.
    Crash,
    /// Its process stands still for a while.
    Stall(Duration),
    /// It loses the network for a while.
    Cut(Duration),
    /// Its wall clock is moved by so many seconds.
    ClockJump(f64),
}

/// All that is decided before a run begins.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the agents agree on.
    pub settings: Settings,
    /// How many agents there are.
    pub agents: usize,
    /// Whether the store tells of changes.
    pub notifies: bool,
    /// Whether the store notices dead agents by itself.
    pub notices_dead: bool,
    /// How long a message takes.
    pub latency: (Duration, Duration),
    /// Of so many messages one is lost; 0: none.
    pub loses_one_of: u32,
    /// How far each agent's wall clock is off, in seconds.
    pub skew: Vec<f64>,
    /// What happens, in no order: when, to which agent.
    pub acts: Vec<(Duration, usize, Act)>,
    /// Whether anything is in there that may make an agent look lost.
    pub faulty: bool,
    /// Whether clocks are so wrong that agents look lost for good.
    pub clocks_are_wrong: bool,
    /// When all that has been planned is over.
    pub end: Duration,
}

impl Plan {
    /// So many agents that all start at once, and nothing that goes wrong.
    pub fn of_many(agents: usize) -> Self {
        let count = u32::try_from(agents).unwrap_or(u32::MAX);
        Self {
            settings: Settings::new(count, count),
            agents,
            notifies: true,
            notices_dead: false,
            latency: (Duration::from_micros(100), Duration::from_micros(400)),
            loses_one_of: 0,
            skew: vec![0.0; agents],
            acts: (0..agents)
                .map(|agent| (Duration::ZERO, agent, Act::Start))
                .collect(),
            faulty: false,
            clocks_are_wrong: false,
            end: Duration::ZERO,
        }
    }

    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        // Another stream of numbers than the one that the run itself draws from.
        let mut random = Rng::with_seed(!seed);
        let agents = match random.u32(0..100) {
            0..75 => random.usize(2..8),
            75..97 => random.usize(8..20),
            _ => random.usize(20..60),
        };
        Self::drawn(agents, &mut random)
    }

    /// The plan of a seed for so many agents.
    pub fn of_seed_for(agents: usize, seed: u64) -> Self {
        Self::drawn(agents, &mut Rng::with_seed(!seed))
    }

    fn drawn(agents: usize, random: &mut Rng) -> Self {
        let min = random.usize(1..=agents);
        let max = random.usize(min..=agents + 2);
        let mut settings = Settings::new(as_count(min), as_count(max));
        settings.last_call_timeout = Duration::from_millis(random.u64(100..30_000));
        if random.u32(0..4) == 0 {
            // Whoever gives up in the last call begins it anew for the others, so agents whose time
            // is hardly longer than that may miss one another for ever.
            let more = Duration::from_secs(random.u64(40..120));
            settings.join_timeout = settings.last_call_timeout * 4 + more;
        }
        if random.u32(0..4) == 0 {
            settings.cas_backoff_max = Duration::from_millis(random.u64(1..200));
        }
        let faulty = random.u32(0..10) < 7;
        // A value that all write in turn bears one write in a round trip, and every agent writes its
        // heartbeat every five seconds.
        let slow = random.u32(0..3) == 0 && agents <= 60;
        let mut plan = Self {
            settings,
            agents,
            notifies: random.bool(),
            notices_dead: random.bool(),
            latency: if slow {
                (Duration::from_millis(1), Duration::from_millis(40))
            } else {
                (Duration::from_micros(100), Duration::from_millis(2))
            },
            loses_one_of: if faulty && random.bool() {
                random.u32(5..200)
            } else {
                0
            },
            skew: vec![0.0; agents],
            acts: Vec::new(),
            faulty,
            clocks_are_wrong: false,
            end: Duration::ZERO,
        };
        plan.draw_clocks(random);
        plan.draw_acts(random);
        plan.end = plan.acts.iter().map(|act| act.0).max().unwrap_or_default();
        plan
    }

    fn draw_clocks(&mut self, random: &mut Rng) {
        // A few seconds are nothing; more than the fifteen of lost nodes is.
        self.clocks_are_wrong = self.faulty && random.u32(0..12) == 0;
        let far = if self.clocks_are_wrong { 60.0 } else { 3.0 };
        if random.bool() {
            for skew in &mut self.skew {
                *skew = far * (random.f64() - 0.5);
            }
        }
    }

    fn draw_acts(&mut self, random: &mut Rng) {
        let spread = [0, 300, 20_000][random.usize(0..3)];
        for agent in 0..self.agents {
            let at = Duration::from_millis(random.u64(0..=spread));
            self.acts.push((at, agent, Act::Start));
        }
        let length = 120_000;
        for _ in 0..random.usize(0..12) {
            let at = Duration::from_millis(random.u64(0..length));
            let agent = random.usize(0..self.agents);
            let back = at + Duration::from_millis(random.u64(100..40_000));
            let short = Duration::from_millis(random.u64(10..30_000));
            let kinds = if self.faulty { 8 } else { 4 };
            match random.u32(0..kinds) {
                0 | 1 => self.acts.push((at, agent, Act::Restart)),
                2 => self.acts.push((at, agent, Act::Leave)),
                3 => {
                    self.acts.push((at, agent, Act::Leave));
                    self.acts.push((back, agent, Act::Start));
                }
                4 => self.acts.push((at, agent, Act::Crash)),
                5 => {
                    self.acts.push((at, agent, Act::Crash));
                    self.acts.push((back, agent, Act::Start));
                }
                6 => self.acts.push((at, agent, Act::Stall(short))),
                _ if random.bool() => self.acts.push((at, agent, Act::Cut(short))),
                _ => {
                    let far = if self.clocks_are_wrong { 100.0 } else { 2.0 };
                    let by = far * (random.f64() - 0.5);
                    self.acts.push((at, agent, Act::ClockJump(by)));
                }
            }
        }
        if random.u32(0..6) == 0 {
            let at = Duration::from_millis(random.u64(0..length));
            let agent = random.usize(0..self.agents);
            self.acts.push((at, agent, Act::Close));
        }
    }
}

fn as_count(nodes: usize) -> u32 {
    u32::try_from(nodes).unwrap_or(u32::MAX)
}
