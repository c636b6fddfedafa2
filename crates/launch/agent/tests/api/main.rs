//! Tests of the agent's library interface: processes, functions, threads.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod alone;
mod elastic;
mod examples;
mod functions;
mod local;
mod nodes;
mod spec;
#[path = "../../examples/own_agent/threads.rs"]
mod threads;
mod threads_alone;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdzv_agent::AgentEvent;
use rdzv_agent::api::{WorkerEntrypoint, WorkerSpec, WorkerSpecBuilder};
use rdzv_agent::config::{LogBase, LogPlan, RankSelection, StreamSelection};
use tempfile::TempDir;

/// Locks out other tests, and returns the guard and the directory of a test.
/// A process can have only one agent with processes at a time.
fn in_turn() -> (MutexGuard<'static, ()>, TempDir) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (turn, tempfile::tempdir().unwrap())
}

/// Sends the results of `note` for the events of a run.
fn noted<T: Send + 'static>(
    builder: WorkerSpecBuilder,
    note: impl Fn(&AgentEvent) -> Option<T> + Send + 'static,
) -> (WorkerSpecBuilder, Receiver<T>) {
    let (sender, noted) = channel();
    let builder = builder.event_handler(move |event: &AgentEvent| {
        if let Some(note) = note(event) {
            let _ = sender.send(note);
        }
    });
    (builder, noted)
}

/// Creates threads that fail once, then return the number of restarts.
fn second_attempt() -> threads::ThreadWorkers {
    threads::ThreadWorkers::new(|request, _| match request.restart_count {
        0 => Err("the first attempt".to_owned()),
        count => Ok(count.into()),
    })
}

/// Waits until the workers are stopped.
fn wait_for_stop(stop: &threads::Stop) -> Result<(), String> {
    let (stopped, wait) = channel();
    stop.on_stop(move || {
        let _ = stopped.send(());
    });
    wait.recv().map_err(|error| error.to_string())
}

/// Specifies workers that run a shell script, with all output in files.
fn shell(script: &str, directory: &TempDir) -> WorkerSpecBuilder {
    // In arguments, `$$` means `$`.
    let script = script.replace("$$", "$$$$");
    let entrypoint = WorkerEntrypoint::command("/bin/sh").args(["-c", &script]);
    quiet(entrypoint, directory)
}

fn quiet(entrypoint: WorkerEntrypoint, directory: &TempDir) -> WorkerSpecBuilder {
    let mut environment: std::collections::BTreeMap<_, _> = std::env::vars_os().collect();
    environment.insert("DIR".into(), directory.path().into());
    WorkerSpec::builder(entrypoint)
        .signals(Vec::new())
        .environment(environment)
        .logs(to_files(directory))
}

fn to_files(directory: &TempDir) -> LogPlan {
    let both = StreamSelection {
        stdout: true,
        stderr: true,
    };
    LogPlan {
        redirects: RankSelection::All(both),
        ..LogPlan::new(LogBase::Directory(directory.path().join("logs")))
    }
}

/// Returns the sorted lines that workers appended to a file of the test.
fn lines(directory: &TempDir, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}
