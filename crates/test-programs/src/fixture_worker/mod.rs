//! A worker for end-to-end tests, whose arguments are the steps that it runs.
//!
//! ```text
//! rdzv run --no-python target/debug/programs/fixture_worker out:hello rank=1?exit:7 hang
//! ```
//!
//! | step | action | file |
//! |---|---|---|
//! | `out:TEXT`, `err:TEXT` | writes a line to stdout or stderr | `output` |
//! | `out-part:TEXT` | writes to stdout, without a newline | |
//! | `env:NAME` | prints `NAME=value`, or `NAME` alone if it is not set | |
//! | `pid` | prints `pid=…` | |
//! | `flood:BYTES` | writes BYTES bytes to stdout, in lines of 100 bytes | |
//! | `flood-err:BYTES` | the same to stderr | |
//! | `close-stdio` | closes stdin, stdout and stderr, and continues | |
//! | `write:PATH:TEXT` | appends a line to a file or named pipe | |
//! | `note-pid:PATH` | appends its process id as a line | |
//! | `pause:MS` | sleeps for MS milliseconds | `passing` |
//! | `hang` | sleeps until a signal ends it | |
//! | `compute:MS` | uses MS milliseconds of processor time without output | |
//! | `await:PATH` | reads PATH to its end; a named pipe makes this wait for a writer | |
//! | `hello:SOCKET:NAME` | connects, sends NAME and its ranks, and waits for a byte | |
//! | `eat:BYTES` | allocates this much memory in whole MiB, touches it and keeps it | |
//! | `exit:CODE` | ends | `ending` |
//! | `signal:N` | sends itself signal number N | |
//! | `stop` | stops itself (SIGSTOP) | |
//! | `panic:TEXT` | panics | |
//! | `kill-parent:N` | sends signal N to its parent | |
//! | `kill-noted:PATH:N` | sends signal N to the process whose id is in the file | |
//! | `ignore:N,N` | ignores these signals from here on, also in children started later | |
//! | `trap:N:CODE` | from here on, signal N ends it with this code | |
//! | `limit:NAME:VALUE` | limits `memory`, `file-size` (bytes), `cpu` (seconds) or `files` | |
//! | `child:STEP;STEP` | starts a child with these steps, in its process group | `family` |
//! | `child-in-session:STEP;STEP` | the same in a new session | |
//! | `orphan:STEP;STEP` | the same, forked twice: its parent has ended when this step is over | |
//! | `as-session-leader` | starts a new session (for a child; a worker already has one) | |
//! | `error-file:TEXT` | writes TEXT unchanged to `$TORCHELASTIC_ERROR_FILE` | `error_file` |
//! | `error-folder` | creates a folder at that path | |
//! | `error:MESSAGE` | writes a structured error file, as torchelastic's recorder does | |
//!
//! `rank=N?STEP`, `local=N?STEP`, `node=N?STEP`, `round=N?STEP` and `attempt=N?STEP` run the step
//! under a condition. The condition is the value of `RANK`, `LOCAL_RANK`, `GROUP_RANK`,
//! `RDZV_ROUND` or `TORCHELASTIC_RESTART_COUNT`; conditions nest. A worker whose steps end without
//! an `exit` exits with 0. A step that is unknown or fails makes it exit with 64.

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

/// Splits `rank=1?exit:7` into the value of the condition and the step.
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
