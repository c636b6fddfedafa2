//! The lines about what is watched: workers that hang, who watches the run, and what is left of it.

use std::path::Path;

use rdzv_core::env;

use super::draft::{Because, Draft};
use crate::resolve::{Environment, Launch};

pub(super) fn hangs(draft: &mut Draft, launch: &Launch, environment: &Environment) {
    let hang = &launch.plan.hang;
    draft.section("Workers that hang");
    let progress = hang.progress.map_or_else(
        || "not watched".to_owned(),
        |limit| format!("after {} s without progress", limit.as_secs_f64()),
    );
    draft.setting("group without progress", "hang_timeout", progress, "");
    let heartbeat = match &hang.heartbeat {
        Some(_) => "limits as given",
        None => "not expected",
    };
    draft.setting("heartbeats", "heartbeat_timeout", heartbeat, "");
    let switch = env::TORCHELASTIC_ENABLE_FILE_TIMER;
    match &hang.watchdog {
        Some(pipe) => draft.line(
            "watchdog",
            shown(pipe),
            Because::variable(switch).and("its pipe"),
        ),
        None => draft.line(
            "watchdog",
            "off",
            Because::decided(format!("{switch} is not 1")),
        ),
    }
    let held = env::TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT;
    if let Some(limit) = environment.filled(held) {
        let limit = format!("after {limit} s");
        draft.line("held by the kernel", limit, Because::variable(held));
    }
    draft.flag("then", "hang_action");
    if hang.progress.is_some() || hang.heartbeat.is_some() || hang.watchdog.is_some() {
        let (tool, how) = match &hang.stack_tool {
            Some(tool) => (shown(tool), "found in PATH, or beside the interpreter"),
            None => (
                "what the kernel tells".to_owned(),
                "no py-spy in PATH or beside the interpreter",
            ),
        };
        draft.line("where a worker hangs", tool, Because::detected(how));
    }
}

pub(super) fn observers(draft: &mut Draft, launch: &Launch) {
    let observers = &launch.observers;
    draft.section("Watching");
    draft.flag("events", "event_log_handler");
    if let Some(file) = &observers.events_file {
        draft.setting("events file", "events_file", shown(file), "");
    }
    if let Some(address) = &observers.status {
        let port = if address.port == 0 {
            "a free port, told in the log"
        } else {
            ""
        };
        draft.setting("status page", "status_addr", address.to_string(), port);
    }
    if let Some(port) = observers.health_port {
        let because = Because::variable(env::TORCHELASTIC_HEALTH_CHECK_PORT);
        draft.line(
            "health check",
            format!("port {port}, all addresses"),
            because,
        );
    }
    draft.flag("sockets of workers", "worker_server");
    draft.flag("report file", "report");
    draft.flag("exit code of", "exit_code");
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
