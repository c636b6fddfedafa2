//! Tests of the worker group under random events in random order.
//!
//! Every run ends within its budget and leaves no worker alive. It reports the first failure.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use rdzv_agent_proto::group::{
    Exit, Finality, GroupEnding, GroupInput, GroupOutput, GroupState, MembershipCause, WorkerExit,
    WorkerGroupMachine,
};
use rdzv_core::machine::Machine;
use rdzv_core::rank::{Assignment, LocalRank};
use rdzv_core::time::{Mono, Now, Wall};

use crate::script::{parse, spec};

/// Exit code that prevents a restart.
const FINAL: i32 = 3;

/// Delay of a group before another attempt, if it has one.
const SETTLE_DELAY: Duration = Duration::from_millis(700);

const WORKERS: u32 = 3;

/// A driver without processes.
struct World {
    group: WorkerGroupMachine,
    dynamic: bool,
    clock: Duration,
    answers: VecDeque<GroupInput>,
    alive: BTreeSet<LocalRank>,
    signalled: BTreeSet<LocalRank>,
    clearing: bool,
    /// Index of the next round.
    rounds: u64,
    restarts: u32,
    /// Restarts of other nodes that this node was notified of.
    restarts_elsewhere: u32,
    /// `true` if another node ended the run.
    ended_by_others: bool,
    /// `true` if the kernel held a worker.
    forfeited: bool,
    /// `true` if a failure of this attempt prevents a restart.
    beyond_help: bool,
    /// Workers that hang in this attempt.
    unhealthy: Vec<LocalRank>,
    first_failure: Option<WorkerExit>,
    ending: Option<GroupEnding>,
}

impl World {
    fn new(max_restarts: u32, dynamic: bool, settle_delay: Duration) -> Self {
        let mut spec = spec(max_restarts);
        spec.identity.local_world_size = WORKERS;
        spec.restarts.settle_delay = settle_delay;
        spec.restarts.non_retryable = [FINAL].into();
        (spec.purge_store, spec.dynamic) = (!dynamic, dynamic);
        Self {
            group: WorkerGroupMachine::new(spec),
            dynamic,
            clock: Duration::ZERO,
            answers: VecDeque::from([GroupInput::Begin]),
            alive: BTreeSet::new(),
            signalled: BTreeSet::new(),
            clearing: false,
            rounds: 0,
            restarts: 0,
            restarts_elsewhere: 0,
            ended_by_others: false,
            forfeited: false,
            beyond_help: false,
            unhealthy: Vec::new(),
            first_failure: None,
            ending: None,
        }
    }

    /// Passes an input to the machine, and all answers that follow immediately.
    fn tell(&mut self, input: GroupInput) {
        self.answers.push_back(input);
        while let Some(input) = self.answers.pop_front() {
            assert!(self.ending.is_none() || self.answers.is_empty());
            let now = Now::at(Mono::from_origin(self.clock));
            self.group.handle(now, input);
            while let Some(output) = self.group.poll_output() {
                assert!(self.ending.is_none(), "{output:?} after finish");
                self.apply(output);
            }
        }
    }

    fn apply(&mut self, output: GroupOutput) {
        match output {
            GroupOutput::Join { restart_count } => {
                assert!(
                    self.alive.is_empty(),
                    "an attempt begins with no worker alive"
                );
                assert_eq!(restart_count, self.restarts);
                self.first_failure = None;
                self.beyond_help = false;
                self.unhealthy.clear();
                self.signalled.clear();
                self.rounds += 1;
                let joined = format!("joined {}", self.rounds - 1);
                self.answers.push_back(parse(&joined, 2));
            }
            GroupOutput::Assign(_) => {
                let assignment = Assignment::from((0, 2 * WORKERS, 0, 2 * WORKERS));
                self.answers.push_back(GroupInput::Assigned(assignment));
            }
            GroupOutput::Start(request) => {
                let local_rank = request.ranks.local_rank;
                assert!(self.alive.insert(local_rank));
                self.answers.push_back(GroupInput::Started(local_rank));
            }
            GroupOutput::FirstFailure(exit) => {
                assert_eq!(self.first_failure, Some(exit), "INV-G3");
            }
            GroupOutput::Unhealthy { workers, last } => {
                assert!(last || !self.forfeited);
                assert_eq!(self.first_failure, None, "INV-G3");
                self.unhealthy = workers;
            }
            GroupOutput::Announce(exit) => {
                assert_eq!(self.first_failure, Some(exit), "INV-G3");
            }
            GroupOutput::Restarting { .. } => {
                assert!(!self.beyond_help, "a restart cannot help");
                self.restarts += 1;
            }
            GroupOutput::Signal { workers, .. } => self.signalled.extend(workers),
            GroupOutput::Notify { .. } => {}
            GroupOutput::Kill { workers } => {
                assert_eq!(workers, Vec::from_iter(self.alive.clone()));
                let exits = workers
                    .into_iter()
                    .map(|rank| self.exit(rank, Exit::Signal(9)));
                let exits = exits.collect();
                self.answers.push_back(GroupInput::Exited(exits));
            }
            GroupOutput::ClearLeftovers => self.clearing = true,
            GroupOutput::AbandonLeftovers => self.clearing = false,
            GroupOutput::Finish(ending) => {
                assert!(self.alive.is_empty(), "INV-G2: {:?} are alive", self.alive);
                self.ending = Some(ending);
            }
            GroupOutput::PurgeStore
            | GroupOutput::Assigned { .. }
            | GroupOutput::Regrouping { .. }
            | GroupOutput::ExitBarrier { .. } => {}
            GroupOutput::Go(_)
            | GroupOutput::Abort { .. }
            | GroupOutput::Discard { .. }
            | GroupOutput::Fail(_) => panic!("no worker recovers in its process (IP-4)"),
            GroupOutput::Abandon { workers } => panic!("{workers:?} were killed"),
        }
    }

    fn exit(&mut self, local_rank: LocalRank, exit: Exit) -> WorkerExit {
        self.alive.remove(&local_rank);
        let exit = WorkerExit {
            local_rank,
            pid: 100 + local_rank.0,
            exit,
            at: Wall::default(),
            stopped_by_agent: self.signalled.contains(&local_rank),
        };
        self.beyond_help |= exit.exit == Exit::Code(FINAL) && !exit.stopped_by_agent;
        if !exit.exit.is_success() && self.signalled.is_empty() {
            self.first_failure.get_or_insert(exit);
        }
        exit
    }

    /// Lets an event happen that `fate` selects.
    fn happen(&mut self, fate: u8) {
        if self.ending.is_some() {
            return;
        }
        self.clock += Duration::from_millis(u64::from(fate) * 10);
        let dynamic = self.dynamic && fate >= 128;
        match fate % 16 {
            0..3 if dynamic => {
                // Of this round, or a late notice of the previous one.
                let round = (self.rounds - 1).saturating_sub(u64::from(fate / 16 % 2));
                let reason = "a node came".to_owned();
                let cause = match fate % 16 {
                    0 => MembershipCause::Lost,
                    1 => MembershipCause::Restarted,
                    _ => MembershipCause::Waiting,
                };
                self.restarts_elsewhere += u32::from(cause == MembershipCause::Restarted);
                self.tell(GroupInput::MembershipChanged {
                    round,
                    cause,
                    reason,
                });
            }
            3 if dynamic => {
                self.ended_by_others = true;
                self.tell(match fate / 16 % 3 {
                    0 => GroupInput::RunClosed,
                    1 => GroupInput::RendezvousLost,
                    _ => GroupInput::PeerFailed {
                        node: "b".to_owned(),
                        reason: "code 7".to_owned(),
                    },
                });
            }
            0 => self.tell(GroupInput::Signal(15)),
            1 if fate < 128 => self.tell(GroupInput::Preempted(10)),
            1 => self.tell(GroupInput::Signal(2)),
            2 => self.tell(GroupInput::KeeperLost),
            3 => self.tell(GroupInput::BarrierPassed),
            12 => {
                let workers: Vec<_> = self.alive.iter().copied().skip(1).collect();
                let restartable = fate < 128;
                let restarting = self.group.state() != GroupState::Healthy || workers.is_empty();
                self.forfeited |= !restartable && !restarting;
                self.tell(GroupInput::Unhealthy {
                    workers,
                    is_final: (!restartable).then_some(Finality::WorkersHeld),
                });
            }
            4..6 => self.pass_time(),
            6..8 => self.clear(),
            _ => {
                let Some(rank) = self.alive.iter().nth(usize::from(fate / 64)).copied() else {
                    return;
                };
                let code = match fate % 16 {
                    15 => FINAL,
                    code => i32::from(code > 12),
                };
                let exit = self.exit(rank, Exit::Code(code));
                self.tell(GroupInput::Exited(vec![exit]));
            }
        }
    }

    fn pass_time(&mut self) {
        if let Some(deadline) = self.group.deadline() {
            self.clock = deadline.since(Mono::ZERO).max(self.clock);
            self.tell(GroupInput::TimePassed);
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.clearing) {
            self.tell(GroupInput::Cleared);
        }
    }

    /// Ends the run without further unusual events.
    /// All workers that are alive succeed.
    fn come_to_an_end(&mut self) {
        for _ in 0..20 {
            self.clear();
            if let Some(rank) = self.alive.first().copied() {
                let exit = self.exit(rank, Exit::Code(0));
                self.tell(GroupInput::Exited(vec![exit]));
            }
            if self.ending.is_none() {
                self.tell(GroupInput::BarrierPassed);
            }
            if self.ending.is_none() {
                self.pass_time();
            }
            if self.ending.is_some() {
                return;
            }
        }
        panic!("no end: {:?}", self.group);
    }
}

proptest! {
    #[test]
    fn every_run_ends_well_or_with_its_first_failure(
        max_restarts in 0_u32..3,
        dynamic in any::<bool>(),
        rests in any::<bool>(),
        fates in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut world = World::new(max_restarts, dynamic, SETTLE_DELAY * u32::from(rests));
        world.answers.clear();
        world.tell(GroupInput::Begin);
        for fate in fates {
            world.happen(fate);
        }
        if world.ending.is_none() {
            world.come_to_an_end();
        }
        prop_assert!(world.restarts <= max_restarts, "INV-G1");
        prop_assert_eq!(world.group.deadline(), None);
        if let Some(GroupEnding::Failed { exits, unhealthy, finality }) = &world.ending {
            prop_assert_eq!(unhealthy, &world.unhealthy, "INV-G3");
            if unhealthy.is_empty() {
                let first = exits.iter().find(|exit| !exit.exit.is_success());
                prop_assert_eq!(first, world.first_failure.as_ref(), "INV-G3");
            }
            prop_assert!(
                match finality {
                    Finality::BudgetUsed { max_restarts: most } => {
                        *most == max_restarts
                            && world.restarts + world.restarts_elsewhere >= max_restarts
                    }
                    Finality::RunEnded => world.ended_by_others,
                    Finality::WorkersHeld | Finality::HangAction => world.forfeited,
                    Finality::NotRetryable { .. } => world.beyond_help,
                },
                "no restart was lost: {finality:?}"
            );
        }
    }
}
