//! Guard: the process between keeper and agent.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Command, ExitStatus};
use std::time::{Duration, Instant};

use rdzv_core::env::{RDZV_GUARD, RDZV_KEEPER, RDZV_KEPT};
use rdzv_core::time::Wall;
use rdzv_rendezvous::{Death, Kept};
use rustix::process::{Pid, Signal, getpid, kill_process, set_parent_process_death_signal, setsid};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::LAST_RESORT_AFTER;
use super::child::{Attendant, adopt_orphans, block_signals, event_loop};
use super::restarts::Lives;
use crate::AgentError;
use crate::clock::wall;
use crate::control_group::ControlGroup;
use crate::error::system;
use crate::exits::awaitable;
use crate::signals::unblock;
use crate::spawn::{detach_agent, name_this_process};

/// Name of the guard's process.
/// This name shares no word with the program or its arguments, so that a kill by name does not
/// reach all three processes.
const NAME: &CStr = c"launch-guard";

/// Report of the guard to the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// Process id of the agent from now on.
    Started(i32),
    /// The agent has exited, and the guard has killed what it left behind.
    Ended {
        /// Wait status of the agent.
        status: i32,
        /// Process id of the agent.
        pid: u32,
    },
    /// The agent could not be started or waited for.
    Failed(String),
}

impl Report {
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts are always JSON")
    }

    /// Returns the last started agent and the last report about an end.
    /// That report is `None` if the guard was killed first.
    pub(super) fn decode(bytes: &[u8]) -> (Option<Pid>, Option<Self>) {
        let (mut agent, mut end) = (None, None);
        let reports = serde_json::Deserializer::from_slice(bytes).into_iter::<Self>();
        for report in reports.map_while(Result::ok) {
            match report {
                Self::Started(pid) => agent = Pid::from_raw(pid),
                ended => end = Some(ended),
            }
        }
        (agent, end)
    }
}

/// Runs the guard in this process; `keeper` has the keeper's descriptor.
pub(super) fn run(agent: Command, keeper: &Keeper, report: OwnedFd) -> ! {
    let mut report = File::from(report);
    let outcome = match guard(agent, keeper, &mut report) {
        Ok((status, pid)) => Report::Ended {
            status: status.into_raw(),
            pid,
        },
        Err(error) => Report::Failed(error.to_string()),
    };
    // Fails if the keeper has exited; then nothing needs the report.
    let _ = report.write_all(&outcome.encode());
    process::exit(0)
}

#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
}

fn guard(
    mut command: Command,
    keeper: &Keeper,
    report: &mut File,
) -> Result<(ExitStatus, u32), AgentError> {
    setsid().map_err(system("create a session for the guard"))?;
    // SIGCONT resumes a stopped guard when the keeper dies, so that the guard clears everything.
    set_parent_process_death_signal(Some(Signal::CONT)).map_err(system("watch the keeper"))?;
    let leftovers = adopt_orphans()?;
    let kept = Kept::new();
    let kept = kept.inspect_err(|error| {
        tracing::warn!("the agent will not be restarted if it is killed: {error}");
    });
    let kept = kept.ok();
    let pid = |pid: Pid| pid.as_raw_nonzero().to_string();
    command
        .env(RDZV_KEEPER, pid(keeper.pid))
        .env(RDZV_GUARD, pid(getpid()));
    if let Some(kept) = &kept {
        let numbers = kept.numbers().map(|number| number.to_string());
        command.env(RDZV_KEPT, numbers.join(","));
    }
    detach_agent(&mut command);
    let mut start = || {
        let child = command.spawn().map_err(system("start the agent"))?;
        let agent = Pid::from_child(&child);
        let started = Report::Started(agent.as_raw_nonzero().get());
        let _ = report.write_all(&started.encode());
        Ok::<_, AgentError>((agent, Instant::now()))
    };
    // As early as possible: the code below runs while the agent's program is loaded.
    let (mut agent, mut began) = start()?;
    name_this_process(NAME);
    event_loop()?.block_on(async {
        let mut attendant = Attendant::new(leftovers, false, kept.clone())?;
        let mut lives = Lives::default();
        let keeper_ended = awaitable(keeper.pidfd.as_fd()).map_err(system("watch the keeper"))?;
        loop {
            let last_resort = async {
                let _ = keeper_ended.readable().await;
                sleep(LAST_RESORT_AFTER).await;
            };
            let status = tokio::select! {
                status = attendant.ended(agent) => Some(status?),
                () = last_resort => None,
            };
            let status = match status {
                Some(status) => status,
                None => {
                    let _ = kill_process(agent, Signal::KILL);
                    attendant.ended(agent).await?
                }
            };
            let (lived, died) = (began.elapsed(), wall());
            let is_clear = attendant.clear(ControlGroup::of_launcher(keeper.pid)).await;
            let ended = (
                status,
                u32::try_from(agent.as_raw_nonzero().get()).unwrap_or(0),
            );
            // If a process does not exit, no other agent may assume that this one has exited.
            let next = if is_clear && !attendant.has_ended_it(status) {
                next_life(&mut lives, kept.as_ref(), ended, lived, died)
            } else {
                None
            };
            let Some(pause) = next else {
                return Ok(ended);
            };
            let may_go_on = tokio::select! {
                biased;
                _ = keeper_ended.readable() => false,
                ends = attendant.ends_within(pause) => !ends,
            };
            if !may_go_on {
                return Ok(ended);
            }
            // Signals that arrive before the new agent handles them stay pending for it.
            block_signals()?;
            let started = start();
            unblock().map_err(system("unblock signals"))?;
            (agent, began) = started?;
        }
    })
}

/// Returns the pause before the restart of an agent, or `None` for no restart.
fn next_life(
    lives: &mut Lives,
    kept: Option<&Kept>,
    (status, pid): (ExitStatus, u32),
    lived: Duration,
    died: Wall,
) -> Option<Duration> {
    let kept = kept?;
    let note = kept.read_note().ok()?;
    // An agent that ends in order records this first. An agent that exits without the record was
    // killed or has panicked.
    if note.restarts == 0 || note.has_ended {
        return None;
    }
    let (restart, pause) = lives.ended(status, lived, note.restarts)?;
    kept.update_note(|note| {
        note.deaths = note.deaths.saturating_add(1);
        note.last_death = Some(Death {
            status: status.into_raw(),
            short: restart.short,
            pid,
            at: died,
        });
    });
    Some(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_the_agent_arrives() {
        let started = |pid| Report::Started(pid).encode();
        for status in [0, 9, 15, 256, 0x8b] {
            let ended = Report::Ended { status, pid: 41 }.encode();
            let report = [started(40), started(41), ended].concat();
            let (agent, end) = Report::decode(&report);
            assert_eq!(agent, Pid::from_raw(41));
            assert!(matches!(end, Some(Report::Ended { status: held, pid: 41 }) if held == status));
            let (agent, end) = Report::decode(&report[..report.len() - 1]);
            assert!(agent == Pid::from_raw(41) && end.is_none());
        }
        let report = Report::Failed("start the agent: no".to_owned()).encode();
        assert!(
            matches!(Report::decode(&report), (None, Some(Report::Failed(text))) if text == "start the agent: no")
        );
        assert!(matches!(Report::decode(b""), (None, None)));
    }
}
