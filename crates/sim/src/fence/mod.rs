//! Nodes with fences: three machines, each with a voter and an agent, which are cut off from one another.
//!
//! **INV-F1**: no worker of an older round runs when a newer one is announced, unless its node has
//! no fence: with one endpoint, the fence is on while there are three voters. Each machine has its
//! own clock; two clocks differ by up to 5 %. Signals take up to
//! [`SIGNALS_TAKE`](world::SIGNALS_TAKE). In the end, without faults, all nodes are in one round
//! and their workers run.

pub mod world;

use std::time::Duration;

use fastrand::Rng;
use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::Rule;

/// Something that happens to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It cannot reach any other machine for this time.
    Cut(usize, Duration),
    /// Messages from and to it take so much longer, for some seconds.
    Slow(usize, Duration),
    /// The process with its voter stands still.
    Stall(usize, Duration),
    /// The connection of its agent breaks.
    Reset(usize),
    /// Its agent is killed, and its workers end with it. Another agent is started after so long, which knows nothing of it.
    Kill(usize, Duration),
}

/// The world of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The time after which a node without a majority stops its workers.
    pub node_timeout: Duration,
    /// The faults, and their times.
    pub acts: Vec<(Duration, Act)>,
    /// When the faults end.
    pub end: Duration,
    /// The rules that the machines keep.
    pub rules: Rules<Rule>,
    /// `true` if there is one endpoint, so that voters come and go, and the fence turns on and off.
    pub is_open: bool,
}

impl Plan {
    /// A world without faults.
    pub fn calm() -> Self {
        Self {
            node_timeout: Duration::from_secs(3),
            acts: Vec::new(),
            end: Duration::from_secs(60),
            rules: Rules::default(),
            is_open: false,
        }
    }

    /// The world of a seed.
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
