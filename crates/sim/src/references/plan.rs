//! What a seed lets happen.

use std::time::Duration;

use fastrand::Rng;
use rdzv_rpc_proto::rref::Settings;

/// Something that is done to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Its process ends without a word.
    Kill,
    /// It shuts down, waits a while, and ends.
    Leave,
    /// It starts again, as another member, if it does not run.
    Restart,
    /// Nothing passes between it and this other worker for a while.
    Cut(usize, Duration),
}

/// How all of it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Everybody drops everything.
    Drop,
    /// Everybody shuts down.
    Shutdown,
    /// Everybody keeps what it holds and waits for all others, as in a static group.
    Rest,
}

/// What a seed lets happen. Chances are in percent.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many workers.
    pub workers: usize,
    /// How patient they are.
    pub settings: Settings,
    /// How many things they do.
    pub operations: u64,
    /// How long one waits for the next of them.
    pub pause: Duration,
    /// How long batches and calls are on their way.
    pub latency: (Duration, Duration),
    /// A batch is lost.
    pub lost: u32,
    /// A batch arrives twice.
    pub doubled: u32,
    /// A batch or call takes up to 3 s.
    pub late: u32,
    /// A call goes wrong: lost, given up, thrown away.
    pub bad_calls: u32,
    /// What happens, in no order: when, to whom.
    pub acts: Vec<(Duration, usize, Act)>,
    /// How it ends.
    pub end: End,
}

impl Plan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64) -> Self {
        // Another stream of numbers than the one that the run itself draws from.
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
