//! Progress of workers, as seen from outside.
//!
//! A worker makes progress between two checks if one of these is true:
//!
//! * The worker or its children used at least [`CPU_SHARE`] percent of one core and at least
//!   [`CPU_LEAST`]. For the worker itself, the use since its last progress is also compared with
//!   these limits.
//! * The worker wrote anything (such as a log line), or its children wrote at least [`MOVED_LEAST`]
//!   bytes.
//! * The worker or its children read at least [`MOVED_LEAST`] bytes.
//!
//! The share is not zero because libraries keep threads that wake up without work. The loop of a
//! waiting gloo process group (100 times a second) was measured at 0.2 to 0.4 % of a core. It
//! neither wrote nor read anything. Wake-ups are no evidence of progress, so the watch does not
//! count them. A process that computes uses a whole core. On a badly overloaded machine, at least
//! one check among many shows more than the share.
//!
//! A worker that waits may spin, and then uses a whole core. If some workers, here or on another
//! node, make no progress, and all others here use only processor time, the watch names those
//! others as [`ProgressWatch::may_spin`]. The driver samples their stacks. If the stacks stay in
//! one collective, [`ProgressWatch::spin`] records that the processor time of these workers is no
//! progress.
//!
//! The group hangs if *no* worker made progress for the whole limit. A worker that waits in a
//! collective for a slow worker looks the same as a worker that hangs. Therefore only the group as
//! a whole can hang.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

/// Smallest share of one core that counts, in percent.
pub const CPU_SHARE: u32 = 5;

/// Smallest processor time that counts: the kernel counts in steps of 10 ms.
pub const CPU_LEAST: Duration = Duration::from_millis(30);

/// Smallest number of bytes that count as reading, or as a child's writing.
pub const MOVED_LEAST: u64 = 64 * 1024;

/// Bounds of the time between two checks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// Resources that processes have used since they began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Bytes read, from any source.
    pub read: u64,
    /// Bytes written, to any destination.
    pub written: u64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(more.cpu),
            read: self.read.saturating_add(more.read),
            written: self.written.saturating_add(more.written),
        }
    }
}

/// A change in the progress of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressChange {
    /// No worker of the group has made progress for the limit or longer.
    Hangs {
        /// Time without progress.
        silent: Duration,
    },
    /// A worker has made progress again, after the hang was reported.
    Resumed {
        /// Time without progress before that.
        silent: Duration,
    },
}

#[derive(Debug)]
struct WorkerProgress {
    checked: Mono,
    own: Option<Usage>,
    /// Time and usage of the worker at its last progress, or at its first check.
    base: Option<(Mono, Usage)>,
    children: Option<Usage>,
    progress: Mono,
    /// Time of the last progress other than processor time of the worker.
    moved: Mono,
    spins: bool,
}

/// Watches the progress of the workers of one node.
#[derive(Debug)]
pub struct ProgressWatch {
    limit: Duration,
    workers: BTreeMap<LocalRank, WorkerProgress>,
    next_check: Mono,
    /// Start of the reported time without progress; `None` if none is reported.
    hangs_since: Option<Mono>,
}

impl ProgressWatch {
    /// Creates a watch that reports a group without progress for `limit`.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            workers: BTreeMap::new(),
            next_check: Mono::ZERO,
            hangs_since: None,
        }
    }

    /// Returns the time between two checks.
    /// The interval is a tenth of the limit, at least 0.2 s and at most 5 s.
    pub fn interval(&self) -> Duration {
        (self.limit / 10).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)
    }

    /// Adds a started worker; the start counts as progress.
    pub fn started(&mut self, now: Mono, local_rank: LocalRank) {
        if self.workers.is_empty() {
            self.next_check = now + self.interval();
            self.hangs_since = None;
        }
        let known = WorkerProgress {
            checked: now,
            own: None,
            base: None,
            children: None,
            progress: now,
            moved: now,
            spins: false,
        };
        self.workers.insert(local_rank, known);
    }

    /// Removes a worker that has exited.
    /// The exit counts as progress of the other workers, which may have waited for it.
    pub fn ended(&mut self, now: Mono, local_rank: LocalRank) {
        self.workers.remove(&local_rank);
        for known in self.workers.values_mut() {
            known.progress = known.progress.max(now);
            known.moved = known.moved.max(now);
        }
    }

    /// Returns the workers that may spin while others make no progress.
    ///
    /// `others_hang` is `true` if workers of another node make no progress. The result is empty if
    /// any worker made progress other than its own processor time within the limit.
    pub fn may_spin(&self, now: Mono, others_hang: bool) -> Vec<LocalRank> {
        let has_moved = |known: &WorkerProgress| now.since(known.moved) < self.limit;
        if self.workers.values().any(has_moved) {
            return Vec::new();
        }
        let computes = |known: &WorkerProgress| now.since(known.progress) < self.limit;
        let busy = self.workers.iter().filter(|(_, known)| computes(known));
        let busy: Vec<LocalRank> = busy.map(|(rank, _)| *rank).collect();
        if others_hang || busy.len() < self.workers.len() {
            busy
        } else {
            Vec::new()
        }
    }

    /// Records that these workers spin in a collective.
    /// Their processor time is then no progress, until a worker of the group makes progress.
    pub fn spin(&mut self, workers: &[LocalRank]) {
        for (rank, known) in &mut self.workers {
            if workers.contains(rank) {
                (known.spins, known.progress) = (true, known.moved);
            }
        }
    }

    /// Removes all workers.
    pub fn clear(&mut self) {
        self.workers.clear();
        self.hangs_since = None;
    }

    /// Returns the time of the next check.
    pub fn deadline(&self) -> Option<Mono> {
        (!self.workers.is_empty()).then_some(self.next_check)
    }

    /// Records the usage of a worker without its running children.
    /// Returns `false` if the usage shows no progress. The caller must then record the usage of the
    /// worker's children.
    pub fn own(&mut self, now: Mono, local_rank: LocalRank, usage: Usage) -> bool {
        let Some(known) = self.workers.get_mut(&local_rank) else {
            return true;
        };
        let elapsed = now.since(known.checked);
        let moved = known
            .own
            .is_some_and(|before| read(before, usage) || usage.written > before.written);
        let computed_now = |before| computed(before, usage, elapsed);
        let progress = moved || !known.spins && known.own.is_some_and(computed_now);
        // On a busy machine with frequent checks, a worker may get too little processor time in one
        // interval to count.
        let adds_up = |(since, before)| computed(before, usage, now.since(since));
        let progress = progress || !known.spins && known.base.is_some_and(adds_up);
        known.own = Some(usage);
        known.checked = now;
        if progress || known.base.is_none() {
            known.base = Some((now, usage));
        }
        if progress {
            known.progress = now;
            known.children = None;
        }
        if moved {
            known.moved = now;
        }
        progress
    }

    /// Records the usage of a worker's children.
    /// Call it if [`ProgressWatch::own`] returned `false`.
    pub fn children(&mut self, now: Mono, local_rank: LocalRank, usage: Usage) {
        let interval = self.interval();
        let Some(known) = self.workers.get_mut(&local_rank) else {
            return;
        };
        let progress = known.children.is_some_and(|before| {
            computed(before, usage, interval)
                || read(before, usage)
                || usage.written.saturating_sub(before.written) >= MOVED_LEAST
        });
        known.children = Some(usage);
        if progress {
            (known.progress, known.moved) = (now, now);
        }
    }

    /// Ends a check and returns the change, if there is one.
    pub fn check(&mut self, now: Mono) -> Option<ProgressChange> {
        self.next_check = now + self.interval();
        let last = self.workers.values().map(|known| known.progress).max()?;
        let silent = now.since(last);
        if silent < self.limit {
            self.workers
                .values_mut()
                .for_each(|known| known.spins = false);
        }
        match self.hangs_since {
            None if silent >= self.limit => {
                self.hangs_since = Some(last);
                Some(ProgressChange::Hangs { silent })
            }
            Some(since) if silent < self.limit => {
                self.hangs_since = None;
                Some(ProgressChange::Resumed {
                    silent: last.since(since),
                })
            }
            _ => None,
        }
    }
}

fn computed(before: Usage, after: Usage, elapsed: Duration) -> bool {
    let least = (elapsed * CPU_SHARE / 100).max(CPU_LEAST);
    after.cpu.saturating_sub(before.cpu) >= least
}

fn read(before: Usage, after: Usage) -> bool {
    after.read.saturating_sub(before.read) >= MOVED_LEAST
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A group that is checked every 5 s.
    struct World {
        watch: ProgressWatch,
        now: Mono,
        usages: Vec<(Usage, Usage)>,
    }

    impl World {
        fn new(workers: u32) -> Self {
            let mut watch = ProgressWatch::new(LIMIT);
            for rank in 0..workers {
                watch.started(Mono::ZERO, LocalRank(rank));
            }
            Self {
                watch,
                now: Mono::ZERO,
                usages: vec![Default::default(); workers as usize],
            }
        }

        /// Passes the time of one check, during which each worker acts.
        fn look(&mut self, act: impl Fn(usize, &mut Usage, &mut Usage)) -> Option<ProgressChange> {
            self.now = self.now + self.watch.interval();
            for (rank, (own, children)) in self.usages.iter_mut().enumerate() {
                act(rank, own, children);
                let local_rank = LocalRank(u32::try_from(rank).unwrap());
                if !self.watch.own(self.now, local_rank, *own) {
                    self.watch.children(self.now, local_rank, *children);
                }
            }
            self.watch.check(self.now)
        }

        fn looks(
            &mut self,
            count: u32,
            act: impl Fn(usize, &mut Usage, &mut Usage),
        ) -> Vec<ProgressChange> {
            (0..count).filter_map(|_| self.look(&act)).collect()
        }
    }

    /// Adds the usage of a waiting gloo process group in 5 s.
    fn waits(_: usize, own: &mut Usage, _: &mut Usage) {
        own.cpu += Duration::from_millis(20);
    }

    #[test]
    fn a_group_of_which_nobody_gets_on_hangs_within_a_look_of_the_limit() {
        let mut world = World::new(3);
        assert_eq!(
            world.looks(12, waits)[..],
            [ProgressChange::Hangs { silent: LIMIT }]
        );
        assert_eq!(world.looks(100, waits), []);
        let resumed = world.look(|_, own, _| own.cpu += Duration::from_secs(1));
        let silent = LIMIT + world.watch.interval() * 101;
        assert_eq!(resumed, Some(ProgressChange::Resumed { silent }));
        assert_eq!(world.looks(12, waits).len(), 1);
    }

    #[test]
    fn one_worker_that_computes_speaks_for_all_who_wait_for_it() {
        let mut world = World::new(3);
        let found = world.looks(1000, |rank, own, children| {
            waits(rank, own, children);
            if rank == 1 {
                own.cpu += Duration::from_secs(5);
            }
        });
        assert_eq!(found, []);
    }

    #[test]
    fn output_and_reading_are_progress_and_small_reads_are_not() {
        let mut writes = World::new(1);
        assert_eq!(writes.looks(100, |_, own, _| own.written += 7), []);
        let mut reads = World::new(1);
        assert_eq!(reads.looks(100, |_, own, _| own.read += MOVED_LEAST), []);
        let mut peeks = World::new(1);
        assert_eq!(peeks.looks(100, |_, own, _| own.read += 100).len(), 1);
    }

    #[test]
    fn children_that_compute_are_progress_and_children_that_chat_are_not() {
        let mut computes = World::new(1);
        let found = computes.looks(100, |_, _, children| {
            children.cpu += Duration::from_secs(2);
        });
        assert_eq!(found, []);
        let mut chats = World::new(1);
        assert_eq!(
            chats
                .looks(100, |_, _, children| children.written += 500)
                .len(),
            1
        );
    }

    #[test]
    fn a_worker_that_gets_little_of_a_busy_machine_is_not_taken_for_stuck() {
        let mut world = World::new(2);
        let found = world.looks(100, |_, own, _| own.cpu += Duration::from_millis(250));
        assert_eq!(found, []);
    }

    #[test]
    fn what_a_worker_gets_of_a_busy_machine_adds_up_between_frequent_looks() {
        let hangs_with = |each_look: u64| {
            let mut world = World::new(2);
            world.watch.limit = Duration::from_secs(1);
            let found = world.looks(100, |rank, own, _| {
                if rank == 0 {
                    own.cpu += Duration::from_millis(each_look);
                }
            });
            !found.is_empty()
        };
        // Checks are 200 ms apart: a tenth of a core, and less than the share that counts.
        assert!(!hangs_with(20));
        assert!(hangs_with(9));
    }

    #[test]
    fn the_end_of_one_worker_gives_the_others_time() {
        let mut world = World::new(2);
        assert_eq!(world.looks(11, waits), []);
        world.watch.ended(world.now, LocalRank(1));
        world.usages.pop();
        assert_eq!(world.looks(11, waits), []);
        assert_eq!(world.looks(1, waits).len(), 1);
    }

    #[test]
    fn workers_that_spin_while_another_one_sleeps_hang_once_that_is_known() {
        let mut world = World::new(3);
        let act = |rank: usize, own: &mut Usage, children: &mut Usage| {
            waits(rank, own, children);
            if rank != 1 {
                own.cpu += Duration::from_secs(5);
            }
        };
        assert_eq!(world.looks(11, act), []);
        assert_eq!(world.watch.may_spin(world.now, false), []);
        assert_eq!(world.looks(100, act), []);
        let busy = world.watch.may_spin(world.now, false);
        assert_eq!(busy, [LocalRank(0), LocalRank(2)]);
        world.watch.spin(&busy);
        assert!(matches!(
            world.looks(100, act)[..],
            [ProgressChange::Hangs { .. }]
        ));
        // The sleeping worker continues, so the others no longer wait.
        let resumed = world.look(|rank, own, _| own.cpu += Duration::from_secs(rank as u64));
        assert!(matches!(resumed, Some(ProgressChange::Resumed { .. })));
        assert_eq!(world.looks(100, act), []);
    }

    #[test]
    fn processor_time_counts_again_if_a_worker_moves_before_the_hang_is_reported() {
        let mut world = World::new(2);
        let computes = |rank: usize, own: &mut Usage, _: &mut Usage| {
            own.cpu += Duration::from_secs(5 * rank as u64);
        };
        world.looks(100, computes);
        world.watch.spin(&world.watch.may_spin(world.now, false));
        assert_eq!(
            world.look(|rank, own, _| own.written += 1 - rank as u64),
            None
        );
        assert_eq!(world.looks(100, computes), []);
    }

    #[test]
    fn workers_that_all_compute_or_write_do_not_spin_unless_another_node_hangs() {
        let mut world = World::new(2);
        world.looks(100, |_, own, _| own.cpu += Duration::from_secs(5));
        assert_eq!(world.watch.may_spin(world.now, false), []);
        assert_eq!(world.watch.may_spin(world.now, true).len(), 2);
        world.look(|rank, own, _| own.written += rank as u64);
        assert_eq!(world.watch.may_spin(world.now, true), []);
    }

    #[test]
    fn looks_are_rare_for_long_limits_and_frequent_enough_for_short_ones() {
        let interval = |seconds| ProgressWatch::new(Duration::from_secs(seconds)).interval();
        assert_eq!(interval(1), Duration::from_millis(200));
        assert_eq!(interval(30), Duration::from_secs(3));
        assert_eq!(interval(3600), Duration::from_secs(5));
    }
}
