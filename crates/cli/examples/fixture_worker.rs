//! A worker that does what its arguments say, one step after the other, for end-to-end tests.
//!
//! ```text
//! rdzv run --no-python target/debug/examples/fixture_worker out:hello rank=1?exit:7 hang
//! ```
//!
//! | step | what it does |
//! |---|---|
//! | `out:TEXT`, `err:TEXT` | writes a line to stdout or stderr |
//! | `out-part:TEXT`, `err-part:TEXT` | the same without the newline; `\n`, `\r`, `\t`, `\xHH` are understood |
//! | `env:NAME` | prints `NAME=value`, or `NAME` alone if it is not set |
//! | `argv` | prints all arguments, one per line, as `argv[i]=…` |
//! | `pid` | prints `pid=…` |
//! | `pause:MS` | does nothing for so many milliseconds |
//! | `hang` | does nothing until a signal ends it |
//! | `await:PATH` | reads PATH to its end; a named pipe makes this wait for a writer |
//! | `write:PATH:TEXT` | appends a line to a file or named pipe |
//! | `note-pid:PATH` | appends its process id as a line |
//! | `exit:CODE` | ends |
//! | `signal:N` | sends itself signal number N |
//! | `ignore:N,N` | ignores these signals from here on, also in children started later |
//! | `trap:N:CODE` | from here on, signal N ends it with this code |
//! | `child:STEP;STEP` | starts a child that does these steps, in the same process group |
//! | `child-in-session:STEP;STEP` | the same in a session of its own |
//! | `orphan:STEP;STEP` | the same, doubly forked: its parent has ended when this step is over |
//! | `as-session-leader` | makes a session of its own (a started child may; a worker has one) |
//! | `flood:BYTES` | writes lines of 100 bytes to stdout, so many bytes in all |
//! | `flood-err:BYTES` | the same to stderr |
//! | `error-file:TEXT` | writes TEXT, as it is, to `$TORCHELASTIC_ERROR_FILE` |
//! | `error:MESSAGE` | writes a structured error file, as the reference's recorder does |
//!
//! `rank=N?STEP`, `local=N?STEP` and `attempt=N?STEP` do the step only for the worker with that
//! `RANK` or `LOCAL_RANK`, or in the attempt with that `TORCHELASTIC_RESTART_COUNT`; they nest.
//! Steps that come to an end without an `exit` end it with 0. An unknown step ends it with 64.

use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Signal, getpid, kill_process, setsid};

fn main() {
    let steps: Vec<String> = env::args().skip(1).collect();
    for (index, step) in steps.iter().enumerate() {
        if let Err(error) = carry_out(step, &steps[index + 1..]) {
            eprintln!("fixture_worker: step {step:?}: {error}");
            exit(64);
        }
    }
}

fn carry_out(step: &str, rest: &[String]) -> io::Result<()> {
    if let Some((condition, then)) = condition(step) {
        return if condition {
            carry_out(then, rest)
        } else {
            Ok(())
        };
    }
    let (name, value) = step.split_once(':').unwrap_or((step, ""));
    match name {
        "out" => writeln!(io::stdout(), "{value}"),
        "err" => writeln!(io::stderr(), "{value}"),
        "out-part" => {
            let mut stdout = io::stdout();
            stdout.write_all(&unescaped(value))?;
            stdout.flush()
        }
        "err-part" => io::stderr().write_all(&unescaped(value)),
        "env" => match env::var(value) {
            Ok(held) => writeln!(io::stdout(), "{value}={held}"),
            Err(_) => writeln!(io::stdout(), "{value}"),
        },
        "argv" => env::args()
            .enumerate()
            .try_for_each(|(index, text)| writeln!(io::stdout(), "argv[{index}]={text}")),
        "pid" => writeln!(io::stdout(), "pid={}", std::process::id()),
        "pause" => {
            thread::sleep(Duration::from_millis(number(value)?));
            Ok(())
        }
        "hang" => loop {
            thread::park();
        },
        "await" => fs::read(value).map(drop),
        "write" => {
            let (path, text) = value.split_once(':').unwrap_or((value, ""));
            append(path, text)
        }
        "note-pid" => append(value, &std::process::id().to_string()),
        "exit" => exit(i32::try_from(number(value)?).unwrap_or(1)),
        "signal" => {
            let signal = i32::try_from(number(value)?)
                .ok()
                .and_then(Signal::from_named_raw)
                .ok_or_else(|| io::Error::other("no such signal"))?;
            // The runtime's own handler of SIGSEGV and SIGBUS takes the first one for a stack
            // overflow that will happen again, and only restores the default.
            kill_process(getpid(), signal)?;
            Ok(kill_process(getpid(), signal)?)
        }
        // Only the shell can change a disposition without `unsafe`; an ignored signal stays
        // ignored over exec, and the process keeps its id.
        "ignore" => {
            let names = value.replace(',', " ");
            Err(become_shell(&format!("trap '' {names}; exec \"$@\""), rest))
        }
        "trap" => {
            let (signal, code) = value.split_once(':').unwrap_or((value, "0"));
            // `wait` returns at once when a trapped signal comes; a foreground child would not.
            let script = format!("trap 'exit {code}' {signal}; \"$@\" & wait $!");
            Err(become_shell(&script, rest))
        }
        "child" => start(value, false).map(drop),
        "child-in-session" => start(value, true).map(drop),
        "orphan" => {
            let mut between = Command::new(env::current_exe()?);
            let status = between.arg(format!("child-in-session:{value}")).status()?;
            if status.success() {
                Ok(())
            } else {
                Err(io::Error::other("the process in between failed"))
            }
        }
        "as-session-leader" => Ok(setsid().map(drop)?),
        "flood" => flood(&mut io::stdout().lock(), number(value)?),
        "flood-err" => flood(&mut io::stderr().lock(), number(value)?),
        "error-file" => fs::write(error_file()?, value),
        "error" => {
            let seconds = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            fs::write(
                error_file()?,
                format!(
                    "{{\"message\": {{\"message\": \"{quoted}\", \"extraInfo\": {{\"py_callstack\": \
                     \"Traceback (most recent call last):\\n  {quoted}\\n\", \
                     \"timestamp\": \"{seconds}\"}}}}}}"
                ),
            )
        }
        _ => Err(io::Error::other("no such step")),
    }
}

/// `rank=1?exit:7`: whether the condition holds, and the step behind it.
fn condition(step: &str) -> Option<(bool, &str)> {
    let (condition, then) = step.split_once('?')?;
    let (name, wanted) = condition.split_once('=')?;
    let variable = match name {
        "rank" => "RANK",
        "local" => "LOCAL_RANK",
        "attempt" => "TORCHELASTIC_RESTART_COUNT",
        _ => return None,
    };
    Some((env::var(variable).is_ok_and(|held| held == wanted), then))
}

fn number(text: &str) -> io::Result<u64> {
    text.parse()
        .map_err(|_| io::Error::other("not a whole number"))
}

fn error_file() -> io::Result<OsString> {
    env::var_os("TORCHELASTIC_ERROR_FILE")
        .filter(|path| !path.is_empty())
        .ok_or_else(|| io::Error::other("TORCHELASTIC_ERROR_FILE names no file"))
}

fn append(path: &str, text: &str) -> io::Result<()> {
    // One write per line, so that several workers may share the file.
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{text}\n").as_bytes())
}

fn become_shell(script: &str, rest: &[String]) -> io::Error {
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

fn start(steps: &str, own_session: bool) -> io::Result<std::process::Child> {
    let mut command = Command::new(env::current_exe()?);
    if own_session {
        command.arg("as-session-leader");
    }
    command.args(steps.split(';')).spawn()
}

fn flood(stream: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let line: Vec<u8> = (0..99_u8).map(|at| b'a' + at % 26).chain(*b"\n").collect();
    let block = line.repeat(640);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len() as u64);
        let length = usize::try_from(now).unwrap_or(block.len());
        stream.write_all(&block[..length])?;
        left -= now;
    }
    stream.flush()
}

fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after.first()) {
            (b'\\', Some(b'n')) => bytes.push(b'\n'),
            (b'\\', Some(b'r')) => bytes.push(b'\r'),
            (b'\\', Some(b't')) => bytes.push(b'\t'),
            (b'\\', Some(b'x')) => {
                let digits = after.get(1..3).and_then(|pair| str::from_utf8(pair).ok());
                match digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
                    Some(byte) => {
                        bytes.push(byte);
                        rest = &after[3..];
                        continue;
                    }
                    None => {
                        bytes.push(b'\\');
                        continue;
                    }
                }
            }
            _ => {
                bytes.push(first);
                continue;
            }
        }
        rest = &after[1..];
    }
    bytes
}
