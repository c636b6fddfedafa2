//! Checks of the workers' state letters in `/proc`, if enabled.
//!
//! The kernel sends no notification when a process enters the uninterruptible sleep. While
//! the group is healthy, this module therefore polls at an interval of a quarter of the limit, but
//! at least 20 ms and at most 1 s.
//! [`rdzv_agent_proto::hang::uninterruptible`] interprets the letters.

use std::future::pending;
use std::path::PathBuf;

use rdzv_agent_proto::group::Cause;
use rdzv_agent_proto::hang::stacks::KernelState;
use rdzv_agent_proto::hang::uninterruptible::{Sighting, UninterruptibleWatch, limit};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;
use rustix::process::Pid;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::hang::kernel_state_in;

/// Watch for workers in an uninterruptible sleep.
#[derive(Debug)]
pub(crate) struct KernelHolds {
    watch: Option<UninterruptibleWatch>,
    next_check: Option<Instant>,
    proc: PathBuf,
}

impl KernelHolds {
    /// Creates a watch with a limit from the environment.
    /// `setting` is the value of `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`.
    pub(crate) fn new(setting: Option<&str>) -> Self {
        Self {
            watch: setting.and_then(limit).map(UninterruptibleWatch::new),
            next_check: None,
            proc: "/proc".into(),
        }
    }

    /// Waits until the next check is due; never returns without a limit.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn due(&mut self, healthy: bool) {
        let Some(watch) = &mut self.watch else {
            return pending().await;
        };
        if !healthy {
            watch.forget();
            self.next_check = None;
            return pending().await;
        }
        let interval = watch.interval();
        let next = self
            .next_check
            .get_or_insert_with(|| Instant::now() + interval);
        sleep_until(*next).await;
        self.next_check = None;
    }

    /// Checks these running workers and returns those that are stuck.
    /// Each comes with the cause, an uninterruptible sleep for at least the limit.
    pub(crate) fn check(
        &mut self,
        now: Mono,
        workers: &[(LocalRank, Pid)],
    ) -> Vec<(LocalRank, Cause)> {
        let mut stuck = Vec::new();
        for sighting in self.read_states(now, workers) {
            let (Sighting::First(worker) | Sighting::Stuck(worker, _)) = sighting;
            let Some((_, pid)) = workers.iter().find(|(known, _)| *known == worker) else {
                continue;
            };
            let wait_channel = self.seen(*pid).wait_channel;
            match sighting {
                Sighting::First(_) => warn!(
                    "worker with local rank {worker} (pid {}) is in an uninterruptible wait in the \
                     kernel (state D{}); the agent reports a failure if this lasts",
                    pid.as_raw_nonzero(),
                    wait_channel.map_or_else(String::new, |channel| format!(", in {channel}"))
                ),
                Sighting::Stuck(_, held) => {
                    stuck.push((worker, Cause::Uninterruptible { held, wait_channel }));
                }
            }
        }
        stuck
    }

    fn read_states(&mut self, now: Mono, workers: &[(LocalRank, Pid)]) -> Vec<Sighting> {
        let letters: Vec<(LocalRank, char)> = workers
            .iter()
            .filter_map(|(local_rank, pid)| Some((*local_rank, self.seen(*pid).state?)))
            .collect();
        self.watch
            .as_mut()
            .map_or_else(Vec::new, |watch| watch.check(now, &letters))
    }

    fn seen(&self, pid: Pid) -> KernelState {
        kernel_state_in(&self.proc.join(pid.as_raw_nonzero().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn letters_and_wait_channels_come_from_proc() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: i32, stat: &str, wchan: &str| {
            let directory = proc.path().join(pid.to_string());
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("stat"), stat).unwrap();
            fs::write(directory.join("wchan"), wchan).unwrap();
            Pid::from_raw(pid).unwrap()
        };
        let held = process(41, "41 (py) D 1 41", "rpc_wait_bit_killable");
        let well = process(42, "42 (a) D) S 1 42", "0");
        let gone = Pid::from_raw(43).unwrap();
        let mut holds = KernelHolds::new(Some("2"));
        holds.proc = proc.path().to_owned();
        assert_eq!(
            holds.seen(held).wait_channel.as_deref(),
            Some("rpc_wait_bit_killable")
        );
        assert_eq!(holds.seen(well).wait_channel, None);
        assert_eq!(holds.seen(gone).wait_channel, None);

        let workers = [
            (LocalRank(0), well),
            (LocalRank(1), held),
            (LocalRank(2), gone),
        ];
        let at = |millis| Mono::from_origin(Duration::from_millis(millis));
        let first = holds.read_states(at(0), &workers);
        assert_eq!(first, [Sighting::First(LocalRank(1))]);
        assert_eq!(holds.read_states(at(1000), &workers), []);
        let stuck = holds.read_states(at(2000), &workers);
        let two = Duration::from_secs(2);
        assert_eq!(stuck, [Sighting::Stuck(LocalRank(1), two)]);
    }
}
