//! Plan of a seed.

use std::time::Duration;

use fastrand::Rng;
use rdzv_rpc_proto::rref::Settings;

/// Action that affects a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The process ends without a notice.
    Kill,
    /// The worker shuts down, waits for a time, and ends.
    Leave,
    /// The worker restarts as another member, unless it runs.
    Restart,
    /// Nothing passes between the worker and this other worker for a time.
    Cut(usize, Duration),
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All workers drop everything.
    Drop,
    /// All workers shut down.
    Shutdown,
    /// All workers keep their references and wait for the others.
    ///
    /// A static group ends this way.
    Rest,
}

/// Plan of a seed. Chances are in percent.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of workers.
    pub workers: usize,
    /// Timeouts of the workers.
    pub settings: Settings,
    /// Number of operations.
    pub operations: u64,
    /// Average pause before the next operation.
    pub pause: Duration,
    /// Minimum and maximum time of batches and calls on their way.
    pub latency: (Duration, Duration),
    /// Chance that a batch is lost.
    pub lost: u32,
    /// Chance that a batch arrives twice.
    pub doubled: u32,
    /// Chance that a batch or call takes up to 3 s.
    pub late: u32,
    /// Chance that a call fails: it is lost, given up, or discarded.
    pub bad_calls: u32,
    /// Acts with their time and worker, in no order.
    pub acts: Vec<(Duration, usize, Act)>,
    /// End of the run.
    pub end: End,
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        // The plan draws from another random sequence than the run.
        let mut random = Rng::with_seed(!seed);
        let workers = random.usize(2..=6);
        let operations = random.u64(20..400);
        let pause = Duration::from_millis([1, 10, 60][random.usize(0..3)]);
        let mut any = |chances: &[u32]| chances[random.usize(0..chances.len())];
        let mut plan = Self {
            workers,
            settings: Settings {
                ask_after: Duration::from_secs(20),
                renew_after: Duration::from_secs(20),
                ..Settings::default()
            },
            operations,
            pause,
            latency: (Duration::from_micros(20), Duration::from_millis(3)),
            lost: any(&[0, 0, 5, 30]),
            doubled: any(&[0, 10, 50]),
            late: any(&[0, 2, 30]),
            bad_calls: any(&[0, 5, 30]),
            acts: Vec::new(),
            end: [End::Drop, End::Shutdown, End::Rest][random.usize(0..3)],
        };
        if random.u32(0..3) > 0 {
            plan.draw_acts(&mut random);
        }
        plan
    }

    fn draw_acts(&mut self, random: &mut Rng) {
        let length = self.pause * u32::try_from(self.operations).unwrap_or(u32::MAX);
        let any_time = |random: &mut Rng, most: Duration| {
            Duration::from_micros(random.u64(0..=most.as_micros() as u64))
        };
        for _ in 0..random.usize(1..=2 * self.workers) {
            let worker = random.usize(0..self.workers);
            let at = any_time(random, length);
            let act = match random.u32(0..10) {
                0..4 => Act::Kill,
                4..6 => Act::Leave,
                6..8 => Act::Restart,
                _ => {
                    let other = random.usize(0..self.workers);
                    Act::Cut(other, any_time(random, Duration::from_secs(15)))
                }
            };
            self.acts.push((at, worker, act));
            if matches!(act, Act::Kill | Act::Leave) && random.u32(0..3) > 0 {
                let later = any_time(random, length / 2);
                self.acts.push((at + later, worker, Act::Restart));
            }
        }
    }
}
