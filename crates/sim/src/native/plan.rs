//! What a seed lets happen: how many agents of which kind, which network, which faults, when.

use std::time::Duration;

use fastrand::Rng;
use rdzv_rendezvous_proto::Settings;

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
    /// Its process is killed; its connection closes.
    Crash,
    /// Its machine is gone without a word; another one takes its place later.
    Vanish,
    /// Its process stands still for a while.
    Stall(Duration),
    /// It loses the network for a while, and nobody is told.
    Cut(Duration),
    /// Its connection is reset.
    Reset,
    /// The coordinator stands still for a while.
    HostStalls(Duration),
}

/// All that is decided before a run begins.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What the agents agree on.
    pub settings: Settings,
    /// Which agents there are: whether each is one of torchrun.
    pub torchrun: Vec<bool>,
    /// How long a message takes.
    pub latency: (Duration, Duration),
    /// What happens, in no order: when, to which agent.
    pub acts: Vec<(Duration, usize, Act)>,
    /// Whether anything is in there by which an agent is rightly taken for lost.
    pub faulty: bool,
    /// When all that has been planned is over.
    pub end: Duration,
}

impl Plan {
    /// So many native agents that all start at once.
    pub fn of_many(agents: usize) -> Self {
        let count = u32::try_from(agents).unwrap_or(u32::MAX);
        Self {
            settings: Settings::new(count, count),
            torchrun: vec![false; agents],
            latency: (Duration::from_micros(50), Duration::from_micros(200)),
            acts: (0..agents)
                .map(|agent| (Duration::ZERO, agent, Act::Start))
                .collect(),
            faulty: false,
            end: Duration::ZERO,
        }
    }

    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        // Another stream of numbers than the one that the run itself draws from.
        let mut random = Rng::with_seed(!seed);
        let agents = match random.u32(0..100) {
            0..70 => random.usize(2..8),
            70..95 => random.usize(8..24),
            _ => random.usize(24..100),
        };
        let min = random.usize(1..=agents);
        let max = random.usize(min..=agents + 2);
        let mut settings = Settings::new(min as u32, max as u32);
        settings.last_call_timeout = Duration::from_millis(random.u64(100..30_000));
        let mixed = random.u32(0..3) == 0;
        let slow = random.u32(0..3) == 0;
        let mut plan = Self {
            settings,
            torchrun: (0..agents)
                .map(|_| mixed && random.u32(0..3) == 0)
                .collect(),
            latency: if slow {
                (Duration::from_millis(1), Duration::from_millis(40))
            } else {
                (Duration::from_micros(50), Duration::from_millis(2))
            },
            acts: Vec::new(),
            faulty: random.u32(0..10) < 7,
            end: Duration::ZERO,
        };
        plan.draw_acts(&mut random);
        plan
    }

    fn draw_acts(&mut self, random: &mut Rng) {
        let agents = self.torchrun.len();
        let together = random.bool();
        for agent in 0..agents {
            let at = match together {
                true => Duration::from_millis(random.u64(0..200)),
                false => Duration::from_millis(random.u64(0..40_000)),
            };
            self.acts.push((at, agent, Act::Start));
        }
        let seconds = |random: &mut Rng| Duration::from_millis(random.u64(100..30_000));
        for _ in 0..random.usize(0..3 + agents) {
            let agent = random.usize(0..agents);
            let at = Duration::from_millis(random.u64(0..120_000));
            let act = match random.u32(0..if self.faulty { 14 } else { 4 }) {
                0..3 => Act::Restart,
                3 => Act::Leave,
                4 | 5 => Act::Crash,
                6 => Act::Vanish,
                7 | 8 => Act::Stall(seconds(random)),
                9 | 10 => Act::Cut(seconds(random)),
                11 | 12 => Act::Reset,
                _ => Act::HostStalls(seconds(random)),
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
