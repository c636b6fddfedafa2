//! Every event as one JSON object, in rdzv's stable form.
//!
//! ```text
//! {"name": "worker_exited", "time": "2026-11-21T06:09:09.123456Z", "run_id": "job",
//!  "node": "host", "fields": {"local_rank": 0, …}}
//! ```
//!
//! Names and keys never change; new ones may be added. `docs/events.md` lists them. Times are UTC,
//! durations are seconds, and an exit code below 0 is the negative number of a signal.

use std::path::Path;

use rdzv_agent_proto::group::rfc3339;
use serde_json::{Map, Value, json};

use super::sink::RunFacts;
use crate::AgentEvent;
use crate::event::{Lateness, StragglerChange};
use crate::worker::WorkerIdentity;
use rdzv_agent_proto::group::Exit;
use rdzv_agent_proto::restart::RestartTimes;
use rdzv_rendezvous::GroupEvent;

/// Returns the JSON of one event, without a newline.
pub fn record(facts: &RunFacts, event: &AgentEvent) -> String {
    // Formatted by hand, so that the keys have a readable order.
    format!(
        r#"{{"name":{},"time":{},"run_id":{},"node":{},"fields":{}}}"#,
        json!(event_name(event)),
        json!(rfc3339(event.at())),
        json!(facts.run_id),
        json!(facts.host),
        fields(event),
    )
}

/// Returns the name of an event in this form, such as `worker_exited`.
pub fn event_name(event: &AgentEvent) -> &'static str {
    match event {
        AgentEvent::RendezvousBegan { .. } => "rendezvous_began",
        AgentEvent::RendezvousNotice { .. } => "rendezvous_news",
        AgentEvent::Rendezvous { .. } => "rendezvous",
        AgentEvent::RanksAssigned { .. } => "ranks_assigned",
        AgentEvent::WorkerStarted { .. } => "worker_started",
        AgentEvent::WorkerExited { .. } => "worker_exited",
        AgentEvent::WorkerSignalled { .. } => "worker_signalled",
        AgentEvent::Hang { .. } => "hang",
        AgentEvent::HangOver { .. } => "hang_over",
        AgentEvent::Straggler { change, .. } => match change {
            StragglerChange::Slow { .. } => "straggler",
            StragglerChange::Over { .. } => "straggler_over",
        },
        AgentEvent::Suspended { .. } => "suspended",
        AgentEvent::Continued { .. } => "continued",
        AgentEvent::Step { .. } => "step",
        AgentEvent::Restarted { .. } => "restarted",
        AgentEvent::Watchdog { .. } => "watchdog",
        AgentEvent::Restarting { .. } => "restarting",
        AgentEvent::AgentRestarted { .. } => "agent_restarted",
        AgentEvent::Group { event, .. } => event.name(),
        AgentEvent::Regrouping { .. } => "regrouping",
        AgentEvent::StateChanged { .. } => "state_changed",
        AgentEvent::Verdict { .. } => "verdict",
        AgentEvent::SignalReceived { .. } => "signal_received",
        AgentEvent::Preempted { .. } => "preempted",
        AgentEvent::OutputDropped { .. } => "output_dropped",
        AgentEvent::WorkerFinal { .. } => "worker_final",
        AgentEvent::AgentFinal { .. } => "agent_final",
    }
}

pub(super) fn fields(event: &AgentEvent) -> Value {
    match event {
        AgentEvent::RendezvousBegan {
            restart_count,
            job_restarts,
            ..
        } => json!({ "restart_count": restart_count, "job_restarts": job_restarts }),
        AgentEvent::RendezvousNotice {
            state,
            message,
            endpoint,
            rank,
            error,
            ..
        } => json!({
            "state": state.name(),
            "message": message,
            "endpoint": endpoint,
            "group_rank": rank.map(|rank| rank.0),
            "error": error,
        }),
        AgentEvent::Rendezvous {
            took,
            result,
            restart_count,
            ..
        } => {
            let assigned = result.as_ref().ok();
            json!({
                "seconds": took.as_secs_f64(),
                "group_rank": assigned.map(|(rank, _)| rank.0),
                "group_world_size": assigned.map(|(_, size)| size),
                "restart_count": restart_count,
                "error": result.as_ref().err(),
            })
        }
        AgentEvent::RanksAssigned {
            took,
            round,
            group_rank,
            group_world_size,
            workers,
            master_addr,
            master_port,
            restart_count,
            ..
        } => json!({
            "seconds": took.as_secs_f64(),
            "round": round,
            "group_rank": group_rank.0,
            "group_world_size": group_world_size,
            "ranks": workers.iter().map(|worker| worker.rank.0).collect::<Vec<_>>(),
            "world_size": workers.first().map(|worker| worker.world_size),
            "master_addr": master_addr,
            "master_port": master_port,
            "restart_count": restart_count,
        }),
        AgentEvent::WorkerStarted {
            worker,
            files,
            restart_count,
            ..
        } => about(
            worker,
            json!({
                "stdout": path(files.stdout.as_deref()),
                "stderr": path(files.stderr.as_deref()),
                "error_file": path(files.error_file.as_deref()),
                "restart_count": restart_count,
            }),
        ),
        AgentEvent::WorkerExited {
            worker,
            exit,
            stopped_by_agent,
            ..
        } => about(
            worker,
            json!({
                "exit_code": exit.as_number(),
                "stopped_by_agent": stopped_by_agent,
            }),
        ),
        AgentEvent::WorkerSignalled {
            pid,
            signal,
            forced,
            ..
        } => json!({ "pid": pid, "signal": signal, "forced": forced }),
        AgentEvent::Hang { report, .. } => report.record(),
        AgentEvent::HangOver { .. }
        | AgentEvent::Suspended { .. }
        | AgentEvent::Continued { .. } => json!({}),
        AgentEvent::Straggler { change, .. } => straggler(change),
        AgentEvent::Step {
            worker,
            change,
            age,
            ..
        } => about(
            worker,
            json!({
                "step": change.step,
                "new_from": change.new_from,
                "age_seconds": age.as_secs_f64(),
            }),
        ),
        AgentEvent::Restarted { restart, .. } => restarted(restart),
        AgentEvent::Watchdog { action, timer, .. } => json!({
            "action": action.name(),
            "pid": timer.as_ref().map(|timer| timer.pid),
            "scope": timer.as_ref().map(|timer| &timer.scope),
            "expiration": timer.as_ref().map(|timer| timer.expiration),
            "signal": timer.as_ref().map(|timer| timer.signal),
        }),
        AgentEvent::Restarting {
            state,
            remaining,
            most,
            ..
        } => json!({ "state": state.name(), "remaining": remaining, "max_restarts": most }),
        AgentEvent::AgentRestarted {
            restarts, reason, ..
        } => json!({ "restarts": restarts, "reason": reason }),
        AgentEvent::Group { message, event, .. } => group(message, event),
        AgentEvent::Regrouping { reason, .. } => json!({ "reason": reason }),
        AgentEvent::StateChanged {
            state,
            restart_count,
            ..
        } => json!({ "state": state.name(), "restart_count": restart_count }),
        AgentEvent::Verdict { verdict, .. } => json!({
            "first_failure": verdict.first(),
            "on_this_node": verdict.here,
            "restart_count": verdict.restart_count,
            "finality": verdict.finality,
        }),
        AgentEvent::SignalReceived { signal, .. } => json!({ "signal": signal }),
        AgentEvent::Preempted {
            signal,
            by,
            shutdown_timeout,
            ..
        } => json!({
            "signal": signal,
            "by": by.map(|by| by.0),
            // style: allow grace, the published key
            "grace": shutdown_timeout.as_secs_f64(),
        }),
        AgentEvent::OutputDropped { bytes, .. } => json!({ "bytes": bytes }),
        AgentEvent::WorkerFinal {
            worker,
            state,
            exit,
            cause,
            raw_error,
            ..
        } => {
            let cause = cause
                .as_ref()
                .map(|cause| json!({ "kind": cause.kind(), "text": cause.to_string() }));
            about(
                worker,
                json!({
                    "state": state,
                    "exit_code": exit.map(Exit::as_number),
                    "cause": cause,
                    "error": raw_error,
                }),
            )
        }
        AgentEvent::AgentFinal {
            state,
            took,
            workers_succeeded,
            raw_error,
            ..
        } => json!({
            "state": state,
            "outcome": if *workers_succeeded { "SUCCEEDED" } else { "FAILED" },
            "seconds": took.as_secs_f64(),
            "error": raw_error,
        }),
    }
}

fn straggler(change: &StragglerChange) -> Value {
    let text = change.to_string();
    match change {
        StragglerChange::Over { rank, node } => {
            json!({ "rank": rank, "host": node, "text": text })
        }
        StragglerChange::Slow {
            rank,
            node,
            slow_for,
            by,
        } => {
            let (late, behind, is_guess) = match by {
                Lateness::PerStep { late, .. } => (Some(late), None, false),
                Lateness::Behind(steps) => (None, Some(steps), false),
                Lateness::Guess { .. } => (None, None, true),
            };
            json!({
                "rank": rank, "host": node, "slow_for": slow_for.as_secs_f64(),
                "late_seconds": late, "steps_behind": behind, "is_guess": is_guess, "text": text,
            })
        }
    }
}

fn restarted(restart: &RestartTimes) -> Value {
    let times = restart.times();
    let mut fields =
        Map::from_iter(times.map(|(name, at)| (name.to_owned(), json!(at.map(rfc3339)))));
    let spans = restart.spans();
    let spans = spans.map(|(name, took)| (name.to_owned(), took.as_secs_f64().into()));
    fields.insert("reason".to_owned(), restart.reason.name().into());
    fields.insert("seconds".to_owned(), Map::from_iter(spans).into());
    fields.into()
}

fn group(message: &str, event: &GroupEvent) -> Value {
    match event {
        GroupEvent::CoordinatorChanged {
            coordinator,
            before,
            epoch,
        } => json!({
            "message": message, "coordinator": coordinator, "before": before, "epoch": epoch,
        }),
        GroupEvent::VotersChanged { voters } => json!({ "message": message, "voters": voters }),
        GroupEvent::Reattached { coordinator, took } => json!({
            "message": message, "coordinator": coordinator, "seconds": took.as_secs_f64(),
        }),
        GroupEvent::Recovered {
            run,
            round,
            nodes,
            took,
        } => json!({
            "message": message, "run": run, "round": round, "nodes": nodes,
            "seconds": took.as_secs_f64(),
        }),
        GroupEvent::Unfenced { stood, killed } => json!({
            "message": message, "seconds": stood.as_secs_f64(), "killed": killed,
        }),
        _ => json!({ "message": message }),
    }
}

/// Merges the worker's ranks and process id into `more`.
fn about(worker: &WorkerIdentity, more: Value) -> Value {
    let mut fields = Map::new();
    fields.insert("local_rank".to_owned(), worker.local_rank.0.into());
    fields.insert("rank".to_owned(), worker.rank.0.into());
    fields.insert("role_rank".to_owned(), worker.role_rank.0.into());
    fields.insert("pid".to_owned(), worker.pid.into());
    if let Value::Object(more) = more {
        fields.extend(more);
    }
    Value::Object(fields)
}

fn path(path: Option<&Path>) -> Value {
    path.map_or(Value::Null, |path| path.to_string_lossy().into())
}
