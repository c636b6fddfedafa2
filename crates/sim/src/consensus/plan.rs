//! The plan of a seed: sizes, network, faults.

use std::time::Duration;

use fastrand::Rng;
use rdzv_consensus::Rule;
use rdzv_core::rules::Rules;

/// A fault. Processes are numbered by their places in the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// A process is killed after so many more outputs, if a majority is left. With its machine, nobody is told.
    Kill(usize, u32, bool),
    /// The leader is killed so.
    KillLeader(u32, bool),
    /// A process starts where none runs.
    Start(usize),
    /// A process ends in order.
    End(usize),
    /// The leader ends in order.
    EndLeader,
    /// A process stands still.
    Stall(usize, Duration),
    /// Nothing goes from the first to the second.
    CutOneWay(usize, usize, Duration),
    /// Nothing goes between those of the mask and all others.
    Split(u32, Duration),
    /// The leader hears and reaches nobody.
    IsolateLeader(Duration),
    /// Each reaches the next one only.
    Chain(Duration),
    /// Each reaches this one only.
    Hub(usize, Duration),
    /// Connections of a process are reset.
    Reset(usize),
    /// The network of a process is slow.
    Slow(usize, Duration),
    /// The leader asks for its own removal.
    RemoveLeader,
    /// The leader hands over, and stays.
    HandOver,
}

/// The plan of a seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Places for processes.
    pub processes: usize,
    /// Processes that start the group, from the first on.
    pub first: usize,
    /// The most voters.
    pub most: usize,
    /// Clients.
    pub clients: usize,
    /// Keys that they count.
    pub keys: u64,
    /// One way between two processes, in nanoseconds.
    pub latency: (u64, u64),
    /// Frames of 1000 that are lost, doubled, or overtake others.
    pub lossy: u64,
    /// A snapshot after so many commands.
    pub truncate_after: u64,
    /// A client waits so long between two operations, at most.
    pub pause: Duration,
    /// Faults.
    pub acts: Vec<(Duration, Act)>,
    /// The end of all faults.
    pub end: Duration,
    /// The clocks of the members after the first one differ so that 18 ticks of the second take nearly as long as 20 of the third: both
    /// stand for election at once.
    pub waits_are_equal: bool,
    /// The rules that the members keep.
    pub rules: Rules<Rule>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x0c0_5e75);
        let processes = [1, 2, 3, 3, 4, 5, 5, 6, 7][random.usize(0..9)];
        let first = if processes >= 3 && random.bool() {
            3
        } else {
            1
        };
        let seconds = random.u64(4..16);
        let slow = random.u64(0..4) == 0;
        let mut plan = Self {
            processes,
            first,
            most: [1, 3, 5, 5, 7][random.usize(0..5)].max(first),
            clients: random.usize(1..6),
            keys: random.u64(1..4),
            latency: if slow {
                (1_000_000, 20_000_000)
            } else {
                (50_000, 500_000)
            },
            lossy: if random.u64(0..3) == 0 {
                random.u64(1..30)
            } else {
                0
            },
            truncate_after: random.u64(10..200),
            pause: Duration::from_millis(random.u64(10..300)),
            acts: Vec::new(),
            end: Duration::from_secs(seconds),
            waits_are_equal: seed % 8 == 3,
            rules: Rules::default(),
        };
        let count = random.u64(0..24) * u64::from(random.u64(0..10) > 0);
        for _ in 0..count {
            let at = Duration::from_millis(random.u64(100..seconds * 1000));
            plan.act(&mut random, at);
        }
        plan
    }

    fn act(&mut self, random: &mut Rng, at: Duration) {
        let processes = self.processes;
        let who = random.usize(0..processes);
        let long = Duration::from_millis(match random.u64(0..3) {
            0 => random.u64(1..300),
            1 => random.u64(300..2_000),
            _ => random.u64(2_000..6_000),
        });
        let after = random.u32(0..12) * random.u32(0..2);
        let with_machine = random.u32(0..3) == 0;
        let act = match random.u32(0..22) {
            0..=2 => Act::Kill(who, after, with_machine),
            3..=5 => Act::KillLeader(after, with_machine),
            6 => Act::End(who),
            7 | 8 => Act::EndLeader,
            9 | 10 => Act::Stall(who, long),
            11 => Act::CutOneWay(who, random.usize(0..processes), long),
            12 | 13 => Act::Split(random.u32(1..1 << processes), long),
            14 | 15 => Act::IsolateLeader(long),
            16 => Act::Chain(long),
            17 => Act::Hub(who, long),
            18 => Act::Reset(who),
            19 => Act::Slow(who, long),
            20 => Act::RemoveLeader,
            _ => Act::HandOver,
        };
        self.acts.push((at, act));
        // Whatever has ended is soon there again, as another member.
        let back = at + Duration::from_millis(random.u64(5..3_000));
        self.acts.push((back, Act::Start(who)));
    }
}
