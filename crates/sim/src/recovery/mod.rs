//! Workers that recover in their processes: the worker groups of several nodes.
//!
//! The machines are those of the agents. The rendezvous, the processes and the workers are models.
//! A worker connects late or never, and leaves its function late or never. It is inside of a block
//! that must not be interrupted, raises exceptions, and is killed.
//!
//! - **IP-1**: a worker receives `go` only after it was ready for the round that it left.
//! - **IP-2**: on one node, no two workers run their function in different rounds. Workers that
//!   the kernel holds and the agent has abandoned do not count.
//! - **IP-3**: no worker is killed before the abort timeout, or before the shutdown timeout after a
//!   closing signal.
//! - **IP-4**: a worker that never connected is neither aborted nor kept.
//!
//! In the end, without faults, all nodes are in one round and all workers run. Otherwise the job
//! has ended on all nodes, because the restarts of a node were used up.

pub mod world;

use std::time::Duration;

use fastrand::Rng;
use rdzv_agent_proto::group::RecoveryRule;
use rdzv_core::rules::Rules;

/// Fault of a node or of one of its workers; numbers identify both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A worker is killed.
    Kill(usize, u32),
    /// The function of a worker raises an exception.
    Raise(usize, u32),
    /// From now on, a worker handles neither an abort nor a signal.
    Hold(usize, u32),
    /// A worker must not be interrupted for this time.
    Atomic(usize, u32, Duration),
    /// The kernel holds a worker, so that SIGKILL ends it only after some seconds.
    Stick(usize, u32),
    /// The node fails, and another one takes its place after this time.
    Lose(usize, Duration),
    /// The agent receives SIGTERM, and another one takes its place later.
    Signal(usize),
}

/// Simulated world of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of workers of each node.
    pub workers: u32,
    /// Percentage of workers that connect to their agent.
    pub connected: u32,
    /// `true` if fewer nodes can form a round.
    pub may_shrink: bool,
    /// Maximum number of restarts of each node.
    pub max_restarts: u32,
    /// Time that workers have to leave their function.
    pub abort_timeout: Duration,
    /// Time between the closing signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// Faults, with their times.
    pub acts: Vec<(Duration, Act)>,
    /// Rules that the machines follow.
    pub rules: Rules<RecoveryRule>,
}

impl Plan {
    /// Returns the world of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x4ec0);
        let (nodes, workers) = (random.usize(1..4), random.u32(1..4));
        let acts = (0..random.usize(1..16)).map(|_| {
            let at = Duration::from_millis(random.u64(0..60_000));
            let (node, worker) = (random.usize(0..nodes), random.u32(0..workers));
            let long = Duration::from_millis(random.u64(0..8000));
            let act = match random.u32(0..12) {
                0..=3 => Act::Kill(node, worker),
                4 | 5 => Act::Raise(node, worker),
                6 => Act::Hold(node, worker),
                7 | 8 => Act::Atomic(node, worker, long),
                9 => Act::Stick(node, worker),
                10 => Act::Signal(node),
                _ => Act::Lose(node, long),
            };
            (at, act)
        });
        let acts = acts.collect();
        let seconds = |most: u64, random: &mut Rng| Duration::from_secs(random.u64(1..most));
        Self {
            nodes,
            workers,
            connected: [0, 50, 100, 100][random.usize(0..4)],
            may_shrink: random.bool(),
            max_restarts: [1, 3, 1000, 1000][random.usize(0..4)],
            abort_timeout: seconds(6, &mut random),
            shutdown_timeout: seconds(6, &mut random),
            acts,
            rules: Rules::default(),
        }
    }
}
