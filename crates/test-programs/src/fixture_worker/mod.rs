//! A worker that does what its arguments say, one step after the other, for end-to-end tests.
//!
//! ```text
//! rdzv run --no-python target/debug/programs/fixture_worker out:hello rank=1?exit:7 hang
//! ```
//!
//! | step | what it does | in |
//! |---|---|---|
//! | `out:TEXT`, `err:TEXT` | writes a line to stdout or stderr | `output` |
//! | `out-part:TEXT` | writes to stdout, without a newline | |
//! | `env:NAME` | prints `NAME=value`, or `NAME` alone if it is not set | |
//! | `pid` | prints `pid=…` | |
//! | `flood:BYTES` | writes lines of 100 bytes to stdout, so many bytes in all | |
//! | `flood-err:BYTES` | the same to stderr | |
//! | `close-stdio` | goes on without stdin, stdout and stderr | |
//! | `write:PATH:TEXT` | appends a line to a file or named pipe | |
//! | `note-pid:PATH` | appends its process id as a line | |
//! | `pause:MS` | does nothing for so many milliseconds | `passing` |
//! | `hang` | does nothing until a signal ends it | |
//! | `compute:MS` | uses so many milliseconds of processor time, and is silent | |
//! | `await:PATH` | reads PATH to its end; a named pipe makes this wait for a writer | |
//! | `hello:SOCKET:NAME` | connects to a listening socket, tells NAME and its ranks, waits for a byte | |
//! | `eat:BYTES` | takes so much memory, touches and keeps it | |
//! | `exit:CODE` | ends | `ending` |
//! | `signal:N` | sends itself signal number N | |
//! | `stop` | stops itself (SIGSTOP) | |
//! | `panic:TEXT` | panics | |
//! | `kill-parent:N` | sends signal N to its parent | |
//! | `kill-noted:PATH:N` | sends signal N to the process whose id is in the file | |
//! | `ignore:N,N` | ignores these signals from here on, also in children started later | |
//! | `trap:N:CODE` | from here on, signal N ends it with this code | |
//! | `limit:NAME:VALUE` | limits its own `memory` (bytes), `cpu` (seconds), `files` or `file-size` (bytes) | |
//! | `child:STEP;STEP` | starts a child that does these steps, in the same process group | `family` |
//! | `child-in-session:STEP;STEP` | the same in a session of its own | |
//! | `orphan:STEP;STEP` | the same, doubly forked: its parent has ended when this step is over | |
//! | `as-session-leader` | makes a session of its own (a started child may; a worker has one) | |
//! | `error-file:TEXT` | writes TEXT, as it is, to `$TORCHELASTIC_ERROR_FILE` | `error_file` |
//! | `error-folder` | makes a folder of that name | |
//! | `error:MESSAGE` | writes a structured error file, as torchelastic's recorder does | |
//!
//! `rank=N?STEP`, `local=N?STEP`, `node=N?STEP`, `round=N?STEP` and `attempt=N?STEP` do the step
//! only for the worker with that `RANK`, `LOCAL_RANK` or `GROUP_RANK`, or in the round with that
//! `RDZV_ROUND`, or in the attempt with that `TORCHELASTIC_RESTART_COUNT`; they nest. Steps that
//! come to an end without an `exit` end it with 0. An unknown step ends it with 64.

mod ending;
mod error_file;
mod family;
mod output;
mod passing;

use std::env;
use std::io;
use std::process::exit;

pub(crate) fn main() {
    let steps: Vec<String> = env::args().skip(1).collect();
    for (index, step) in steps.iter().enumerate() {
        if let Err(error) = run_step(step, &steps[index + 1..]) {
            eprintln!("fixture_worker: step {step:?}: {error}");
            exit(64);
        }
    }
}

fn run_step(step: &str, rest: &[String]) -> io::Result<()> {
    if let Some((condition, then)) = condition(step) {
        return if condition {
            run_step(then, rest)
        } else {
            Ok(())
        };
    }
    let (name, value) = step.split_once(':').unwrap_or((step, ""));
    let families = [
        output::step,
        passing::step,
        ending::step,
        family::step,
        error_file::step,
    ];
    families
        .iter()
        .find_map(|family| family(name, value, rest))
        .unwrap_or_else(|| Err(io::Error::other("no such step")))
}

/// `rank=1?exit:7`: whether the condition holds, and the step behind it.
fn condition(step: &str) -> Option<(bool, &str)> {
    let (condition, then) = step.split_once('?')?;
    let (name, wanted) = condition.split_once('=')?;
    let variable = match name {
        "rank" => "RANK",
        "local" => "LOCAL_RANK",
        "node" => "GROUP_RANK",
        "round" => "RDZV_ROUND",
        "attempt" => "TORCHELASTIC_RESTART_COUNT",
        _ => return None,
    };
    Some((env::var(variable).is_ok_and(|held| held == wanted), then))
}

fn number(text: &str) -> io::Result<u64> {
    text.parse()
        .map_err(|_| io::Error::other("not a whole number"))
}
