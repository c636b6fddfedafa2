//! Tests of an agent in a separate process, without a keeper.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rdzv_agent::AgentEvent;
use rdzv_agent::api::{ElasticAgent as _, LocalElasticAgent, RunError};
use rdzv_testing::{Marker, Process, pids};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::shell;

/// Environment variable with the worker's script, for the process below.
const SCRIPT: &str = "RDZV_TEST_SCRIPT";

/// Runs an agent in a separate process, to which other tests send signals.
#[test]
#[ignore = "other tests run it in a separate process"]
fn an_agent_that_handles_signals() {
    let directory = tempfile::tempdir().unwrap();
    // Without the variable, this is a normal run of all tests.
    let Ok(script) = std::env::var(SCRIPT) else {
        return;
    };
    let spec = shell(&script, &directory)
        .signals(vec![15])
        .shutdown_timeout(Duration::from_millis(100))
        .event_handler(|event: &AgentEvent| {
            if let AgentEvent::WorkerStarted { worker, .. } = event {
                println!("started {}", worker.pid);
            }
        });
    let result = LocalElasticAgent::new(spec.build().unwrap()).run("default");
    let signal = match result {
        Ok(_) => None,
        Err(RunError::Signalled { signal, .. }) => Some(signal),
        Err(error) => panic!("{error}"),
    };
    println!("ended {signal:?}");
}

/// Starts the process, whose script finds the named pipe `go` in `$TEST`.
/// Returns the process, the worker's process id, and the directory with the pipe.
fn start(marker: &Marker, script: &str) -> (Process, i32, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let made = Command::new("mkfifo").arg(go).status();
    assert!(made.unwrap().success());
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "alone::an_agent_that_handles_signals";
    command
        .args(["--ignored", "--exact", "--nocapture", name])
        .env("TEST", directory.path())
        .env(SCRIPT, script)
        .stdout(Stdio::piped());
    marker.mark(&mut command);
    let process = Process::start(&mut command);
    let worker = process.stdout.await_line("started ").parse().unwrap();
    (process, worker, directory)
}

#[test]
fn the_agent_alone_clears_its_workers_too() {
    let marker = Marker::new();
    let script = "trap '' TERM; sleep 1000 & setsid sleep 1000 &
        (setsid sh -c 'echo > $TEST/go; exec sleep 1000' &); while :; do sleep 1000; done";
    let (mut process, _, directory) = start(&marker, script);
    std::fs::read(directory.path().join("go")).unwrap();
    process.signal(Signal::TERM);
    assert!(process.wait().success());
    assert_eq!(marker.processes(), []);
    process.stdout.await_line("ended Some(15)");
}

#[test]
fn without_a_keeper_the_agent_stops_itself() {
    let script = "(read go < $TEST/go) & wait";
    let (mut process, worker, directory) = start(&Marker::new(), script);
    process.signal(Signal::TSTP);
    pids::wait_for_state(worker, 'T');
    pids::wait_for_state(process.pid(), 'T');
    let go = directory.path().join("go");
    let go = thread::spawn(move || std::fs::write(go, "go\n").unwrap());
    process.signal(Signal::CONT);
    go.join().unwrap();
    assert!(process.wait().success());
    process.stdout.await_line("ended None");
}
