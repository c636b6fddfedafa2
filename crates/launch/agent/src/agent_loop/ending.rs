//! End of a run: output, outcome, verdict, and the message to other nodes.

use std::time::Duration;

use rdzv_agent_proto::group::{GroupEnding, WorkerExit};
use rdzv_core::reminder::{self, Reminder};
use rdzv_core::time::Mono;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::AgentLoop;
use crate::config::RendezvousPlan;
use crate::failure::{FailureAnalysis, hang_sentence};
use crate::outcome::Verdict;
use crate::rendezvous::{Answer, LeaveReason};
use crate::requests::Request;
use crate::supervisor::Supervisor;
use crate::{AgentError, AgentEvent, Outcome};
use rdzv_agent_proto::group::Failure;

/// Signal for ending workers that are no longer needed: SIGTERM.
const CLOSING_SIGNAL: i32 = 15;

/// Limit on leaving a rendezvous that continues for the other nodes.
const LEAVING: Duration = Duration::from_secs(5);

/// Limit on agreeing with the other nodes on the end of the run.
const CLOSING: Duration = Duration::from_secs(60);

/// Time for the console to accept the remaining output after a signal.
/// Log files contain all teed output.
const CONSOLE_AFTER_SIGNAL: Duration = Duration::from_millis(300);

impl<S: Supervisor> AgentLoop<'_, S> {
    /// Ends the run after all known workers have exited.
    pub(super) async fn end(mut self, ending: GroupEnding) -> Outcome {
        // From this line on, the run has ended for this process, even if the process is killed.
        self.note(|note| note.has_ended = true);
        self.supervisor.shutdown(match ending {
            GroupEnding::Signalled { signal, .. } => signal,
            _ => CLOSING_SIGNAL,
        });
        let console_until = Instant::now() + CONSOLE_AFTER_SIGNAL;
        self.capture_output(console_until).await;
        let mut outcome = self.outcome(&ending);
        let restart_count = self.group.restart_count();
        let now = self.clock.now().wall;
        let verdict = Box::new(self.failures.verdict(now, restart_count, &outcome));
        let reason_to_leave = self.reason_to_leave(&ending, &outcome, &verdict);
        if let GroupEnding::SucceededAlone { reason, .. } = &ending {
            warn!(
                "[{}] {reason}; the workers on this node have succeeded, so this node leaves the \
                 job",
                self.config.identity.role
            );
        }
        if let GroupEnding::Succeeded { exits }
        | GroupEnding::SucceededAlone { exits, .. }
        | GroupEnding::Failed { exits, .. }
        | GroupEnding::Preempted { exits, .. } = &ending
        {
            self.emit_finals(exits, &outcome);
        }
        verdict.decide(&mut outcome);
        self.drain_output(console_until).await;
        self.supervisor
            .remove_files(matches!(outcome, Outcome::Succeeded));
        self.leave(reason_to_leave).await;
        let events = self.supervisor.end(self.clock);
        self.take(events);
        let now = self.clock.now();
        self.emit(AgentEvent::Verdict {
            at: now.wall,
            verdict,
        });
        let returned = matches!(outcome, Outcome::Succeeded | Outcome::Failed { .. });
        self.emit(AgentEvent::AgentFinal {
            at: now.wall,
            state: if returned { "SUCCEEDED" } else { "FAILED" },
            took: now.mono.since(Mono::ZERO),
            workers_succeeded: matches!(outcome, Outcome::Succeeded),
            raw_error: match &outcome {
                Outcome::Error(error) => Some(error.to_string()),
                Outcome::Signalled { signal, .. } | Outcome::Preempted { signal, .. } => {
                    Some(format!(
                        "SignalException: Process {} got signal: {signal}",
                        std::process::id()
                    ))
                }
                _ => None,
            },
        });
        outcome
    }

    /// Waits until the workers' output to the agent's stderr is captured.
    /// A signal to stop, or the loss of the keeper, ends the wait. After an earlier request,
    /// `console_deadline` ends it.
    async fn capture_output(&mut self, console_deadline: Instant) {
        let stop_requested = self.stop_requested;
        let request = tokio::select! {
            () = self.supervisor.captured() => None,
            request = self.requests.stop() => Some(request),
            () = sleep_until(console_deadline), if stop_requested => None,
        };
        self.stopped_at_the_end(request);
    }

    /// Waits until all output is on the console.
    /// A signal to stop, or the loss of the keeper, ends the wait: a console without a reader must
    /// not block the agent. After an earlier request to stop, `console_deadline` ends the wait.
    async fn drain_output(&mut self, console_deadline: Instant) {
        let request = tokio::select! {
            () = self.supervisor.drained() => return,
            request = self.requests.stop() => Some(request),
            () = sleep_until(console_deadline), if self.stop_requested => None,
        };
        self.stopped_at_the_end(request);
        let bytes = self.supervisor.unshown();
        if bytes > 0 {
            warn!("{bytes} bytes of output were dropped, because the console was not read");
            let at = self.clock.now().wall;
            self.emit(AgentEvent::OutputDropped { at, bytes });
        }
    }

    /// Records a request to stop that arrived after the workers had exited.
    fn stopped_at_the_end(&mut self, request: Option<Request>) {
        if let Some(Request::Stop(signal)) = request {
            self.stop_requested = true;
            let at = self.clock.now().wall;
            self.emit(AgentEvent::SignalReceived { at, signal });
        }
    }

    async fn leave(&mut self, reason_to_leave: LeaveReason) {
        let limit = match reason_to_leave {
            LeaveReason::Left | LeaveReason::Killed => LEAVING,
            LeaveReason::Succeeded | LeaveReason::Failed { .. } => CLOSING,
        };
        let Some(mut left) = self.rendezvous.leave(reason_to_leave) else {
            return;
        };
        let (began, mut reminder) = (Instant::now(), Reminder::default());
        loop {
            tokio::select! {
                _ = &mut left => break,
                _ = self.requests.stop() => break,
                () = sleep_until(began + limit) => {
                    let limit = limit.as_secs();
                    warn!("this node could not leave the rendezvous within {limit} s");
                    break;
                }
                () = sleep_until(began + reminder.next()) => {
                    reminder.is_due(began.elapsed());
                    let left = limit.saturating_sub(began.elapsed()).as_secs();
                    warn!(
                        target: reminder::TARGET,
                        left,
                        "waiting to leave the rendezvous; {left} s left"
                    );
                }
            }
        }
        while let Ok(answer) = self.answers.try_recv() {
            if let Answer::Recorded(event) = answer {
                self.emit_recorded(event);
            }
        }
    }

    fn reason_to_leave(
        &self,
        ending: &GroupEnding,
        outcome: &Outcome,
        verdict: &Verdict,
    ) -> LeaveReason {
        let failed = |text: Option<String>| {
            let now = self.clock.now().wall;
            let workers = &self.supervisor;
            let reason = (!self.announced)
                .then(|| FailureAnalysis::final_announcement(now, outcome, verdict, text, workers));
            LeaveReason::Failed { reason }
        };
        match (ending, outcome) {
            (GroupEnding::Succeeded { .. }, _) => LeaveReason::Succeeded,
            (GroupEnding::Failed { unhealthy, .. }, _) if !unhealthy.is_empty() => {
                failed(Some(hang_sentence(unhealthy, &self.supervisor)))
            }
            (GroupEnding::Failed { .. }, _) => failed(None),
            (GroupEnding::PeerFailed { .. } | GroupEnding::RunClosed, _) => {
                LeaveReason::Failed { reason: None }
            }
            (GroupEnding::Devices(text), _) => failed(Some(text.clone())),
            // A node that failed its check, could not join, or has lost the rendezvous does not end
            // the run of the other nodes.
            (
                GroupEnding::Broken,
                Outcome::Error(AgentError::Rendezvous(_) | AgentError::NodeCheck { .. }),
            ) => LeaveReason::Left,
            (
                GroupEnding::Broken,
                Outcome::Error(AgentError::ProgramNotFound { .. } | AgentError::Spawn { .. }),
            ) if self.others_suffice() => LeaveReason::Left,
            (GroupEnding::Broken, Outcome::Error(error)) => failed(Some(error.to_string())),
            (
                GroupEnding::Broken
                | GroupEnding::SucceededAlone { .. }
                | GroupEnding::Signalled { .. }
                | GroupEnding::Preempted { .. }
                | GroupEnding::NotNeeded,
                _,
            ) => LeaveReason::Left,
            (GroupEnding::KeeperLost, _) => LeaveReason::Killed,
        }
    }

    /// `true` if the other nodes of the round are enough for the next one.
    fn others_suffice(&self) -> bool {
        match &self.config.rendezvous.plan {
            RendezvousPlan::Dynamic { parameters } => {
                self.rendezvous.group_world_size() > parameters.min_nodes
            }
            _ => false,
        }
    }

    fn outcome(&mut self, ending: &GroupEnding) -> Outcome {
        Outcome::Error(match ending {
            GroupEnding::Succeeded { .. }
            | GroupEnding::SucceededAlone { .. }
            | GroupEnding::NotNeeded => {
                return Outcome::Succeeded;
            }
            GroupEnding::Failed {
                exits,
                unhealthy,
                finality,
            } => {
                let now = self.clock.now().wall;
                return self
                    .failures
                    .outcome(now, exits, unhealthy, *finality, &self.supervisor);
            }
            GroupEnding::Signalled {
                signal,
                workers_started,
            } => {
                return Outcome::Signalled {
                    signal: *signal,
                    workers_started: *workers_started,
                };
            }
            GroupEnding::Preempted { signal, exits } => {
                return self
                    .preemption
                    .outcome(*signal, exits, self.clock.now().mono);
            }
            GroupEnding::PeerFailed { node, reason } => AgentError::PeerFailed {
                node: node.clone(),
                reason: reason.clone(),
            },
            GroupEnding::RunClosed => AgentError::RunClosed {
                run_id: self.config.identity.run_id.as_str().to_owned(),
            },
            GroupEnding::KeeperLost => AgentError::KeeperLost,
            GroupEnding::Devices(text) => AgentError::Plan(text.clone()),
            GroupEnding::Broken => self
                .error
                .take()
                .expect("`broken` keeps the error before the machine knows of it"),
        })
    }

    /// Emits one event per worker with its final state.
    fn emit_finals(&mut self, exits: &[WorkerExit], outcome: &Outcome) {
        let at = self.clock.now().wall;
        let failures: &[Failure] = match outcome {
            Outcome::Failed { failures, .. } => failures,
            _ => &[],
        };
        for worker in self.supervisor.workers() {
            let local_rank = worker.local_rank;
            let failure = failures
                .iter()
                .find(|failure| failure.evidence.local_rank == Some(local_rank));
            let exit = exits.iter().find(|exit| exit.local_rank == local_rank);
            self.emit(AgentEvent::WorkerFinal {
                at,
                worker,
                state: match (outcome, failure) {
                    (Outcome::Succeeded, _) => "SUCCEEDED",
                    (_, Some(_)) => "FAILED",
                    // The worker exited with 0, as the agent requested, or after a notice of
                    // preemption.
                    (_, None) => "TERMINATED",
                },
                exit: exit.map(|exit| exit.exit),
                cause: failure.map(|failure| failure.cause.clone()),
                raw_error: failure
                    .and_then(|failure| failure.evidence.error_file.as_ref())
                    .and_then(|file| file.content.as_ref().ok())
                    .map(ToString::to_string),
            });
        }
    }
}
