//! Steps that end or stop a process, or that determine how it ends.

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, kill_process, setrlimit};

use crate::fixture_worker::number;

/// Executes a step of this family; `None` if the name belongs to another one.
pub(crate) fn step(name: &str, value: &str, rest: &[String]) -> Option<io::Result<()>> {
    Some(match name {
        "exit" => number(value).map(|code| exit(i32::try_from(code).unwrap_or(1))),
        // The runtime handles the first SIGSEGV or SIGBUS as a possible stack overflow: it only
        // restores the default action.
        "signal" => signal(value).and_then(|signal| {
            kill_process(getpid(), signal)?;
            Ok(kill_process(getpid(), signal)?)
        }),
        "stop" => kill_process(getpid(), Signal::STOP).map_err(io::Error::from),
        "panic" => panic!("{value}"),
        "kill-parent" => signal(value).and_then(|signal| match getppid() {
            Some(parent) => Ok(kill_process(parent, signal)?),
            None => Err(io::Error::other("no parent to be seen")),
        }),
        "kill-noted" => {
            let (path, number) = value.split_once(':').unwrap_or((value, "9"));
            signal(number).and_then(|signal| Ok(kill_process(noted(path)?, signal)?))
        }
        // Only the shell can change a disposition without `unsafe`; an ignored signal stays
        // ignored over exec, and the process keeps its id.
        "ignore" => {
            let names = value.replace(',', " ");
            Err(become_shell(&format!("trap '' {names}; exec \"$@\""), rest))
        }
        "trap" => {
            let (signal, code) = value.split_once(':').unwrap_or((value, "0"));
            // `wait` returns immediately when a trapped signal arrives; a foreground child would
            // not.
            let script = format!("trap 'exit {code}' {signal}; \"$@\" & wait $!");
            Err(become_shell(&script, rest))
        }
        "limit" => {
            let (name, most) = value.split_once(':').unwrap_or((value, "0"));
            limit(name, most)
        }
        _ => return None,
    })
}

/// Replaces this process by a shell that runs a script.
/// In the script, `"$@"` is this program with the remaining steps.
pub(crate) fn become_shell(script: &str, rest: &[String]) -> io::Error {
    let this = match env::current_exe() {
        Ok(path) => path,
        Err(error) => return error,
    };
    Command::new("/bin/sh")
        .args(["-c", script, "sh"])
        .arg(this)
        .args(rest)
        .exec()
}

fn signal(text: &str) -> io::Result<Signal> {
    i32::try_from(number(text)?)
        .ok()
        .and_then(Signal::from_named_raw)
        .ok_or_else(|| io::Error::other("no such signal"))
}

fn noted(path: &str) -> io::Result<Pid> {
    let text = fs::read_to_string(path)?;
    text.lines()
        .next()
        .and_then(|line| line.parse().ok())
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no process id in the file"))
}

fn limit(name: &str, most: &str) -> io::Result<()> {
    let resource = match name {
        "memory" => Resource::As,
        "cpu" => Resource::Cpu,
        "files" => Resource::Nofile,
        "file-size" => Resource::Fsize,
        _ => return Err(io::Error::other("no such limit")),
    };
    let most = number(most)?;
    let limit = Rlimit {
        current: Some(most),
        // The hard limit of processor time ends a process with SIGKILL, the soft one with SIGXCPU.
        maximum: Some(most + 2),
    };
    Ok(setrlimit(resource, limit)?)
}
