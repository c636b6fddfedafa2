//! The end of a run: what is collected, said and left behind.

use std::time::Duration;

use rdzv_core::group::exit::{FailureTrace, root_cause};
use rdzv_core::group::{Ending, WorkerExit};
use rdzv_core::time::Wall;
use tokio::time::sleep;
use tracing::warn;

use crate::agent::Agent;
use crate::meeting::Parting;
use crate::{AgentError, AgentEvent, Outcome, WorkerFailure, error_file};

/// How long a node that leaves the others waits until they know. They notice anyhow, if later.
const LEAVING: Duration = Duration::from_secs(5);

/// How long the end of the run may take to be settled with the others; backends end sooner.
const CLOSING: Duration = Duration::from_secs(60);

impl Agent<'_> {
    /// Ends the run. The workers are gone already.
    pub(crate) async fn end(mut self, ending: Ending) -> Outcome {
        let parting = self.parting(&ending);
        let outcome = self.outcome(&ending);
        if let Ending::SucceededAlone { reason, .. } = &ending {
            warn!(
                "[{}] {reason}; the workers here have succeeded, so this node leaves the others",
                self.plan.role
            );
        }
        if let Ending::Succeeded { exits }
        | Ending::SucceededAlone { exits, .. }
        | Ending::Failed { exits } = &ending
        {
            self.emit_finals(exits, &outcome);
        }
        self.drain_logs(matches!(outcome, Outcome::Succeeded)).await;
        self.leave(parting).await;
        let now = self.clock.now();
        let returned = matches!(outcome, Outcome::Succeeded | Outcome::Failed { .. });
        self.emit(AgentEvent::AgentFinal {
            at: now.wall,
            state: if returned { "SUCCEEDED" } else { "FAILED" },
            took: now.mono.since(rdzv_core::time::Mono::ZERO),
            workers_succeeded: matches!(outcome, Outcome::Succeeded),
            raw_error: match &outcome {
                Outcome::Error(error) => Some(error.to_string()),
                Outcome::Signalled { signal, .. } => Some(format!(
                    "SignalException: Process {} got signal: {signal}",
                    std::process::id()
                )),
                _ => None,
            },
        });
        outcome
    }

    /// Waits until all output is on the console, and tidies up. A signal, or the loss of the keeper,
    /// ends the waiting: whoever does not read the console any more must not hold the agent.
    async fn drain_logs(&mut self, succeeded: bool) {
        let (signals, keeper, logs) = (&mut self.signals, &mut self.keeper, &mut self.logs);
        tokio::select! {
            () = logs.drained() => {}
            _ = signals.next() => {}
            () = keeper.lost() => {}
        }
        if !succeeded {
            for path in self.logs.hidden_output() {
                warn!(
                    "output that --local-ranks-filter kept off the console is in {}",
                    path.display()
                );
            }
        }
        self.logs.tidy_up();
    }

    /// What the other nodes are left with.
    fn parting(&self, ending: &Ending) -> Parting {
        let failed = |reason: &str| Parting::Failed {
            reason: (!self.others_told).then(|| reason.to_owned()),
        };
        match ending {
            Ending::Succeeded { .. } => Parting::Succeeded,
            Ending::Failed { exits } => {
                let first = exits.iter().find(|exit| !exit.exit.is_success());
                failed(&first.map_or_else(String::new, |exit| self.failure_in_words(exit)))
            }
            Ending::PeerFailed { .. } | Ending::RunClosed => Parting::Failed { reason: None },
            Ending::Devices(text) => failed(text),
            // Who could not join, or has lost what the others meet at, does not speak for them.
            Ending::Broken => match &self.error {
                Some(AgentError::Rendezvous(_)) | None => Parting::Left,
                Some(error) => failed(&error.to_string()),
            },
            Ending::SucceededAlone { .. }
            | Ending::Signalled { .. }
            | Ending::NotNeeded
            | Ending::KeeperLost => Parting::Left,
        }
    }

    async fn leave(&mut self, parting: Parting) {
        let limit = match parting {
            Parting::Left => LEAVING,
            Parting::Succeeded | Parting::Failed { .. } => CLOSING,
        };
        let Some(left) = self.meeting.leave(parting) else {
            return;
        };
        tokio::select! {
            _ = left => {}
            _ = self.signals.next() => {}
            () = self.keeper.lost() => {}
            () = sleep(limit) => warn!(
                "the rendezvous did not let go of this node within {} s",
                limit.as_secs()
            ),
        }
    }

    fn outcome(&mut self, ending: &Ending) -> Outcome {
        match ending {
            Ending::Succeeded { .. } | Ending::SucceededAlone { .. } | Ending::NotNeeded => {
                Outcome::Succeeded
            }
            Ending::PeerFailed { node, reason } => Outcome::Error(AgentError::PeerFailed {
                node: node.clone(),
                reason: reason.clone(),
            }),
            Ending::RunClosed => Outcome::Error(AgentError::RunClosed {
                run_id: self.plan.run_id.as_str().to_owned(),
            }),
            Ending::Failed { exits } => self.failed(exits),
            Ending::Signalled {
                signal,
                workers_started,
            } => Outcome::Signalled {
                signal: *signal,
                workers_started: *workers_started,
            },
            Ending::KeeperLost => Outcome::Error(AgentError::KeeperLost),
            Ending::Devices(text) => Outcome::Error(AgentError::Plan(text.clone())),
            Ending::Broken => Outcome::Error(
                self.error
                    .take()
                    .expect("`broken` keeps the error before it tells the machine"),
            ),
        }
    }

    fn failed(&self, exits: &[WorkerExit]) -> Outcome {
        let (failures, traces): (Vec<_>, Vec<_>) = exits
            .iter()
            .filter(|exit| !exit.exit.is_success())
            .filter_map(|exit| self.failure(exit))
            .unzip();
        Outcome::Failed {
            root_cause: root_cause(&traces),
            failures,
        }
    }

    fn failure(&self, exit: &WorkerExit) -> Option<(WorkerFailure, FailureTrace)> {
        let worker = self.workers.get(&exit.local_rank)?;
        let file = worker.error_file.as_deref().and_then(error_file::read);
        let recorded_seconds = file
            .as_ref()
            .and_then(|file| file.content.as_ref().ok())
            .and_then(error_file::recorded_seconds);
        let trace = FailureTrace {
            started: worker.started,
            exited: exit.at,
            stopped_by_agent: exit.stopped_by_agent,
            recorded_seconds,
        };
        let failure = WorkerFailure {
            local_rank: exit.local_rank,
            rank: worker.identity.rank,
            pid: exit.pid,
            exit: exit.exit,
            time: recorded_seconds.map_or(exit.at, |seconds| {
                Wall::from_unix_micros(seconds.saturating_mul(1_000_000))
            }),
            stopped_by_agent: exit.stopped_by_agent,
            error_file: file,
        };
        Some((failure, trace))
    }

    /// One event per worker: how the run ended for it.
    fn emit_finals(&mut self, exits: &[WorkerExit], outcome: &Outcome) {
        let at = self.clock.now().wall;
        let failures: &[WorkerFailure] = match outcome {
            Outcome::Failed { failures, .. } => failures,
            _ => &[],
        };
        let events: Vec<AgentEvent> = self
            .workers
            .values()
            .map(|worker| {
                let local_rank = worker.identity.local_rank;
                let failure = failures
                    .iter()
                    .find(|failure| failure.local_rank == local_rank);
                let state = match (outcome, failure) {
                    (Outcome::Succeeded, _) => "SUCCEEDED",
                    (_, Some(_)) => "FAILED",
                    // It has ended well, or at our word: nothing failed here.
                    (_, None) => "TERMINATED",
                };
                AgentEvent::WorkerFinal {
                    at,
                    worker: worker.identity.clone(),
                    state,
                    exit: exits
                        .iter()
                        .find(|exit| exit.local_rank == local_rank)
                        .map(|exit| exit.exit),
                    raw_error: failure
                        .and_then(|failure| failure.error_file.as_ref())
                        .and_then(|file| file.content.as_ref().ok())
                        .map(ToString::to_string),
                }
            })
            .collect();
        for event in events {
            self.emit(event);
        }
    }
}
