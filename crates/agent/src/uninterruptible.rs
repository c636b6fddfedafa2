//! Looks at the workers' state letters in `/proc`, if the environment asks for that.
//!
//! The kernel tells nobody when a process falls into the uninterruptible sleep, so this is the one
//! thing here that is looked at at intervals: between 20 ms and 1 s, a quarter of the limit, and
//! only while the group is healthy. What the letters mean is decided in
//! [`rdzv_agent_proto::hang::uninterruptible`].

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_agent_proto::group::{Cause, GroupInput};
use rdzv_agent_proto::hang::uninterruptible::{
    Sighting, UninterruptibleWatch, limit, state_letter,
};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;
use rustix::process::Pid;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::agent::Agent;

/// The agent's eye on workers that the kernel holds.
#[derive(Debug)]
pub(crate) struct KernelHolds {
    watch: Option<UninterruptibleWatch>,
    next_look: Option<Instant>,
    proc: PathBuf,
}

impl KernelHolds {
    /// `setting` is the value of `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`.
    pub(crate) fn new(setting: Option<&str>) -> Self {
        Self {
            watch: setting.and_then(limit).map(UninterruptibleWatch::new),
            next_look: None,
            proc: "/proc".into(),
        }
    }

    /// Waits until it is time for a look; for ever if nobody asked for it. May be dropped while
    /// waiting.
    pub(crate) async fn due(&mut self, healthy: bool) {
        let Some(watch) = &mut self.watch else {
            return pending().await;
        };
        if !healthy {
            watch.forget();
            self.next_look = None;
            return pending().await;
        }
        let interval = watch.interval();
        let next = self
            .next_look
            .get_or_insert_with(|| Instant::now() + interval);
        sleep_until(*next).await;
        self.next_look = None;
    }

    fn look(&mut self, now: Mono, workers: &[(LocalRank, Pid)]) -> Vec<Sighting> {
        let letters: Vec<(LocalRank, char)> = workers
            .iter()
            .filter_map(|(local_rank, pid)| {
                let stat = self.read(*pid, "stat")?;
                Some((*local_rank, state_letter(&stat)?))
            })
            .collect();
        self.watch
            .as_mut()
            .map_or_else(Vec::new, |watch| watch.check(now, &letters))
    }

    /// The kernel function that a process waits in; none if the kernel does not tell us.
    fn wait_channel(&self, pid: Pid) -> Option<String> {
        let channel = self.read(pid, "wchan")?;
        let channel = channel.trim();
        (!channel.is_empty() && channel != "0").then(|| channel.to_owned())
    }

    fn read(&self, pid: Pid, file: &str) -> Option<String> {
        let process = self.proc.join(pid.as_raw_nonzero().to_string());
        let bytes = std::fs::read(process.join(file)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Agent<'_> {
    /// Looks at all running workers, and condemns those that have been held for too long.
    pub(crate) fn look_for_held_workers(&mut self) -> Option<GroupInput> {
        let running: Vec<(LocalRank, Pid)> = self
            .workers
            .iter()
            .filter(|(local_rank, _)| self.exits.is_running(**local_rank))
            .map(|(local_rank, worker)| (*local_rank, worker.pid))
            .collect();
        let now = self.clock.now().mono;
        let mut stuck = Vec::new();
        for sighting in self.kernel_holds.look(now, &running) {
            match sighting {
                Sighting::First(local_rank) => self.warn_of(local_rank),
                Sighting::Stuck(local_rank, held) => {
                    self.condemn_held(local_rank, held);
                    stuck.push(local_rank);
                }
            }
        }
        (!stuck.is_empty()).then_some(GroupInput::Unhealthy {
            workers: stuck,
            restartable: false,
        })
    }

    fn warn_of(&self, local_rank: LocalRank) {
        if let Some(worker) = self.workers.get(&local_rank) {
            let channel = self.kernel_holds.wait_channel(worker.pid);
            warn!(
                "worker with local rank {local_rank} (pid {}) is in an uninterruptible wait of the \
                 kernel (state D{}); it is given up if that lasts",
                worker.identity.pid,
                channel.map_or_else(String::new, |channel| format!(", in {channel}"))
            );
        }
    }

    fn condemn_held(&mut self, local_rank: LocalRank, held: Duration) {
        if let Some(worker) = self.workers.get_mut(&local_rank) {
            let wait_channel = self.kernel_holds.wait_channel(worker.pid);
            worker
                .condemned
                .get_or_insert(Cause::Uninterruptible { held, wait_channel });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
            holds.wait_channel(held).as_deref(),
            Some("rpc_wait_bit_killable")
        );
        assert_eq!(holds.wait_channel(well), None);
        assert_eq!(holds.wait_channel(gone), None);

        let workers = [
            (LocalRank(0), well),
            (LocalRank(1), held),
            (LocalRank(2), gone),
        ];
        let at = |millis| Mono::from_origin(Duration::from_millis(millis));
        let first = holds.look(at(0), &workers);
        assert_eq!(first, [Sighting::First(LocalRank(1))]);
        assert_eq!(holds.look(at(1000), &workers), []);
        let stuck = holds.look(at(2000), &workers);
        let two = Duration::from_secs(2);
        assert_eq!(stuck, [Sighting::Stuck(LocalRank(1), two)]);
    }
}
