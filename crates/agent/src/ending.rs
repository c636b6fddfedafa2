//! The end of a run: what is collected, said and left behind.

use std::time::Duration;

use rdzv_agent_proto::group::{Ending, WorkerExit};
use tokio::time::sleep;
use tracing::warn;

use crate::agent::Agent;
use crate::meeting::Parting;
use crate::{AgentError, AgentEvent, Failure, Outcome, Verdict, WatchdogAction};

/// How long a node that leaves the others waits until they know. They notice anyhow, if later.
const LEAVING: Duration = Duration::from_secs(5);

/// How long the end of the run may take to be settled with the others; backends end sooner.
const CLOSING: Duration = Duration::from_secs(60);

/// How long the console has to take what is left for it once a signal has told the run to end. All of it
/// is in the log files.
const CONSOLE_AFTER_SIGNAL: Duration = Duration::from_secs(1);

impl Agent<'_> {
    /// Ends the run. The workers are gone already.
    pub(crate) async fn end(mut self, ending: Ending) -> Outcome {
        self.hear_last_words().await;
        let outcome = self.outcome(&ending);
        let verdict = Box::new(self.verdict(&outcome));
        let parting = self.parting(&ending, &outcome, &verdict);
        if let Ending::SucceededAlone { reason, .. } = &ending {
            warn!(
                "[{}] {reason}; the workers here have succeeded, so this node leaves the others",
                self.plan.role
            );
        }
        if let Ending::Succeeded { exits }
        | Ending::SucceededAlone { exits, .. }
        | Ending::Failed { exits, .. } = &ending
        {
            self.emit_finals(exits, &outcome);
        }
        self.drain_logs(&outcome).await;
        if let Some(group) = self.control_group() {
            group.remove();
        }
        self.leave(parting).await;
        self.tell_of_watchdog(WatchdogAction::Stopped, None);
        let now = self.clock.now();
        self.emit(AgentEvent::Verdict {
            at: now.wall,
            verdict,
        });
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

    /// Waits until what workers have written to our stderr is there, and known. As long as for the
    /// other output.
    async fn hear_last_words(&mut self) {
        let told_to_stop = self.told_to_stop;
        let (signals, keeper, listener) = (&mut self.signals, &mut self.keeper, &mut self.listener);
        tokio::select! {
            () = listener.drained() => {}
            _ = signals.next() => self.told_to_stop = true,
            () = keeper.lost() => {}
            () = sleep(CONSOLE_AFTER_SIGNAL), if told_to_stop => {}
        }
    }

    /// Waits until all output is on the console, and tidies up. A signal, or the loss of the keeper,
    /// ends the waiting: whoever does not read the console any more must not hold the agent. Nor may
    /// it for long if a signal has told it to stop before, even if the run had failed already.
    async fn drain_logs(&mut self, outcome: &Outcome) {
        let told_to_stop = self.told_to_stop;
        let (signals, keeper, logs) = (&mut self.signals, &mut self.keeper, &mut self.logs);
        tokio::select! {
            () = logs.drained() => {}
            _ = signals.next() => {}
            () = keeper.lost() => {}
            () = sleep(CONSOLE_AFTER_SIGNAL), if told_to_stop => {}
        }
        self.logs.tidy_up(matches!(outcome, Outcome::Succeeded));
    }

    /// What the other nodes are left with.
    fn parting(&self, ending: &Ending, outcome: &Outcome, verdict: &Verdict) -> Parting {
        let failed = |text: Option<String>| Parting::Failed {
            reason: (!self.others_told).then(|| self.told_at_the_end(outcome, verdict, text)),
        };
        match (ending, outcome) {
            (Ending::Succeeded { .. }, _) => Parting::Succeeded,
            (Ending::Failed { unhealthy, .. }, _) if !unhealthy.is_empty() => {
                failed(Some(self.hang_in_words(unhealthy)))
            }
            (Ending::Failed { .. }, _) => failed(None),
            (Ending::PeerFailed { .. } | Ending::RunClosed, _) => Parting::Failed { reason: None },
            (Ending::Devices(text), _) => failed(Some(text.clone())),
            // Who could not join, or has lost what the others meet at, does not speak for them.
            (Ending::Broken, Outcome::Error(AgentError::Rendezvous(_))) => Parting::Left,
            (Ending::Broken, Outcome::Error(error)) => failed(Some(error.to_string())),
            (
                Ending::Broken
                | Ending::SucceededAlone { .. }
                | Ending::Signalled { .. }
                | Ending::NotNeeded
                | Ending::KeeperLost,
                _,
            ) => Parting::Left,
        }
    }

    async fn leave(&mut self, parting: Parting) {
        let limit = match parting {
            Parting::Left => LEAVING,
            Parting::Succeeded | Parting::Failed { .. } => CLOSING,
        };
        self.tell_leaving();
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
            Ending::Failed { exits, unhealthy } => self.failed(exits, unhealthy),
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

    /// One event per worker: how the run ended for it.
    fn emit_finals(&mut self, exits: &[WorkerExit], outcome: &Outcome) {
        let at = self.clock.now().wall;
        let failures: &[Failure] = match outcome {
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
                    .find(|failure| failure.evidence.local_rank == Some(local_rank));
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
                    cause: failure.map(|failure| failure.cause.clone()),
                    raw_error: failure
                        .and_then(|failure| failure.evidence.error_file.as_ref())
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
