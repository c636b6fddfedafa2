//! Plan of a seed: sizes, network, faults.

use std::time::Duration;

use fastrand::Rng;
use rdzv_consensus::ConsensusRule;
use rdzv_core::rules::Rules;

/// Fault. Processes are numbered by their slots in the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Kills a process after a number of further outputs, if a majority remains.
    ///
    /// With its machine, no peer is notified.
    Kill(usize, u32, bool),
    /// Kills the leader in the same way.
    KillLeader(u32, bool),
    /// Starts a process in an empty slot.
    Start(usize),
    /// Ends a process cleanly.
    End(usize),
    /// Ends the leader cleanly.
    EndLeader,
    /// Stops a process for a time.
    Stall(usize, Duration),
    /// Cuts the direction from the first process to the second.
    CutOneWay(usize, usize, Duration),
    /// Cuts the processes of the mask off from all others.
    Split(u32, Duration),
    /// Cuts the leader off from all others, in both directions.
    IsolateLeader(Duration),
    /// Leaves only the connections between neighbouring slots.
    Chain(Duration),
    /// Leaves only the connections to this process.
    Hub(usize, Duration),
    /// Resets the connections of a process.
    Reset(usize),
    /// Slows the network of a process down.
    Slow(usize, Duration),
    /// Makes the leader request its own removal.
    RemoveLeader,
    /// Makes the leader hand over, without ending.
    HandOver,
}

/// Plan of a seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of slots for processes.
    pub processes: usize,
    /// Number of processes that start the group, from the first slot.
    pub first: usize,
    /// Maximum number of voters.
    pub most: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of keys that the clients count.
    pub keys: u64,
    /// Minimum and maximum time of a message, in nanoseconds.
    pub latency: (u64, u64),
    /// Frames of 1000 that are lost, doubled, or overtaken by others.
    pub lossy: u64,
    /// Number of log entries between two snapshots.
    pub truncate_after: u64,
    /// Maximum pause of a client between two operations.
    pub pause: Duration,
    /// Faults with their times.
    pub acts: Vec<(Duration, Act)>,
    /// Time at which all faults end, except for stops and slow networks.
    pub end: Duration,
    /// `true` if two members campaign at the same time because of their clocks.
    ///
    /// 18 ticks of the second member take nearly as long as 20 ticks of the third.
    pub waits_are_equal: bool,
    /// Rules that the members keep.
    pub rules: Rules<ConsensusRule>,
}

impl Plan {
    /// Returns the plan of a seed.
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
        // If the slot is then empty, a process starts there as another member.
        let back = at + Duration::from_millis(random.u64(5..3_000));
        self.acts.push((back, Act::Start(who)));
    }
}
