//! The end of a run: what is collected, said and left behind.

use rdzv_core::group::exit::{FailureTrace, root_cause};
use rdzv_core::group::{Ending, WorkerExit};
use rdzv_core::time::Wall;
use tracing::warn;

use crate::agent::Agent;
use crate::{AgentError, AgentEvent, Outcome, WorkerFailure, error_file};

impl Agent<'_> {
    /// Ends the run. The workers are gone already.
    pub(crate) async fn end(mut self, ending: Ending) -> Outcome {
        let outcome = self.outcome(&ending);
        if let Ending::Succeeded { exits } | Ending::Failed { exits } = &ending {
            self.emit_finals(exits, &outcome);
        }
        self.drain_logs(matches!(outcome, Outcome::Succeeded)).await;
        self.leave(matches!(outcome, Outcome::Succeeded)).await;
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

    async fn leave(&mut self, succeeded: bool) {
        let Some(left) = self.meeting.leave(succeeded) else {
            return;
        };
        tokio::select! {
            _ = left => {}
            _ = self.signals.next() => {}
            () = self.keeper.lost() => {}
        }
    }

    fn outcome(&mut self, ending: &Ending) -> Outcome {
        match ending {
            Ending::Succeeded { .. } => Outcome::Succeeded,
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
