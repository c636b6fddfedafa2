//! Nodes with fences: three machines, each with a voter and an agent.
//!
//! The machines are cut off from each other.
//!
//! **INV-F1**: When a round is announced, no worker of an older round runs, unless its node has no
//! fence. With one endpoint, the fence is on while there are three voters. Each machine has a
//! separate clock; two clocks differ by up to 5 %. Signals take up to
//! [`SIGNALS_TAKE`](world::SIGNALS_TAKE). In the end, without faults, all nodes are in one round
//! and their workers run.

pub mod world;

use std::time::Duration;

use fastrand::Rng;
use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::Rule;

/// Fault of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The machine cannot reach any other machine for this time.
    Cut(usize, Duration),
    /// Messages from and to the machine take longer by this time, for some seconds.
    Slow(usize, Duration),
    /// The process with the voter is stopped.
    Stall(usize, Duration),
    /// The connection of the agent breaks.
    Reset(usize),
    /// The agent is killed, and its workers end with it.
    ///
    /// Another agent starts when this time has passed and the workers have ended. It knows
    /// nothing of the old one.
    Kill(usize, Duration),
}

/// World of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Time after which a node without a majority suspends its workers.
    pub node_timeout: Duration,
    /// Faults, with their times.
    pub acts: Vec<(Duration, Act)>,
    /// Time at which the faults end, except for stopped processes.
    pub end: Duration,
    /// Rules that the machines keep.
    pub rules: Rules<Rule>,
    /// `true` if there is only one endpoint.
    ///
    /// Voters then join and leave, and the fence turns on and off.
    pub is_open: bool,
}

impl Plan {
    /// Returns the world of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x5eed);
        let timeouts = [800, 3000, 3000, 7000].map(Duration::from_millis);
        let end = Duration::from_secs(40);
        let count = random.usize(1..12);
        let acts = (0..count).map(|_| {
            let at = Duration::from_millis(random.u64(4000..40_000));
            let who = random.usize(0..3);
            let long = Duration::from_millis(random.u64(100..12_000));
            let act = match random.u32(0..9) {
                0..=3 => Act::Cut(who, long),
                4 | 5 => Act::Slow(who, Duration::from_millis(random.u64(300..950))),
                6 => Act::Stall(who, long / 4),
                7 => Act::Reset(who),
                _ => Act::Kill(who, long / 2),
            };
            (at, act)
        });
        let mut acts: Vec<_> = acts.collect();
        acts.sort_by_key(|(at, _)| *at);
        Self {
            node_timeout: timeouts[random.usize(0..4)],
            acts,
            end,
            rules: Rules::default(),
            is_open: seed % 4 == 3,
        }
    }
}
