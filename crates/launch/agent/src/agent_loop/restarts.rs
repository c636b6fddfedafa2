//! Moments of a restart among the events of a run.

use rdzv_agent_proto::group::{Cause, GroupState};
use rdzv_agent_proto::restart::{RestartCause, RestartMoment};

use crate::AgentEvent;

/// Returns the moments of a restart that an event shows.
pub(super) fn moments(event: &AgentEvent) -> [Option<RestartMoment>; 2] {
    let detected = |cause| Some(RestartMoment::Detected(cause));
    match event {
        AgentEvent::WorkerExited {
            exit,
            stopped_by_agent,
            ..
        } => {
            let is_bad = !exit.is_success() && !stopped_by_agent;
            let failed = is_bad.then_some(RestartMoment::Detected(RestartCause::Failure));
            [failed, Some(RestartMoment::WorkerTerminated)]
        }
        AgentEvent::WorkerSignalled { .. } => [detected(RestartCause::Failure), None],
        AgentEvent::Restarting { failure, .. } => {
            let silent = match failure.as_ref().map(|failure| &failure.cause) {
                Some(Cause::Hang { silent, .. } | Cause::Heartbeat { silent, .. }) => {
                    Some(RestartMoment::Silent(*silent))
                }
                _ => None,
            };
            [detected(RestartCause::Failure), silent]
        }
        AgentEvent::Regrouping { .. } => [detected(RestartCause::Membership), None],
        AgentEvent::AgentRestarted { .. } => [detected(RestartCause::Agent), None],
        AgentEvent::RendezvousBegan { .. } => [Some(RestartMoment::RendezvousStarted), None],
        AgentEvent::Rendezvous { result: Ok(_), .. } => {
            [Some(RestartMoment::RendezvousCompleted), None]
        }
        AgentEvent::RanksAssigned { .. } => [Some(RestartMoment::WorkerStartStarted), None],
        AgentEvent::StateChanged {
            state: GroupState::Healthy,
            ..
        } => [Some(RestartMoment::WorkerStartCompleted), None],
        _ => [None, None],
    }
}
