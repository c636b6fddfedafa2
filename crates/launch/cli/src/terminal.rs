//! Output to stdout and stderr that neither panics nor blocks a running agent.
//!
//! A reader that exits must not make the program panic. A reader that pauses (`| less`, Ctrl-S)
//! lets its pipe fill up, and then the next write blocks. The agent must not block, because it
//! supervises workers. `rdzv store` must not block either, because it serves clients. After
//! [`start_lines`], [`complain`] and [`print_line`] only queue lines, and a separate thread writes
//! them to stderr and stdout. `rdzv_agent` writes these lines and those that it copies from
//! workers, so that they never mix.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rdzv_agent::launcher::{write_own_lines, write_own_output};
use rdzv_console::Line;
use rdzv_console::line::LABEL;
use rdzv_core::env::{NO_COLOR, TERM};
use rustix::termios::tcgetwinsize;

use crate::exit::Exit;

/// Number of queued bytes above which further lines are lost, and counted.
const MOST_WAITING: usize = 4 << 20;

/// Name of this node, if its lines contain the name.
static NODE: OnceLock<String> = OnceLock::new();

static QUEUE: OnceLock<Sender<Command>> = OnceLock::new();
static WAITING: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Function that writes whole lines to one of the two streams.
type Write = fn(&[u8]);

enum Command {
    Write(Write, Vec<u8>),
    /// Answer once everything before this command has been written.
    Finish(Sender<()>),
}

/// Writer to stderr: each call writes its text in one piece.
///
/// After [`start_lines`], the text goes through the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineWriter;

impl io::Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match NODE.get() {
            Some(node) => queue(write_own_lines, &with_node(bytes, node)),
            None => queue(write_own_lines, bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds the name of this node to all later lines of rdzv: `rdzv n2: …`.
///
/// This is for jobs whose nodes all print to the same output.
pub(crate) fn name_node(node: &str) {
    let _ = NODE.set(node.to_owned());
}

/// Returns the lines with the name of the node after the label of rdzv.
fn with_node(bytes: &[u8], node: &str) -> Vec<u8> {
    let label = LABEL.as_bytes();
    let mut named = Vec::with_capacity(bytes.len() + node.len() + 1);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_prefix(label) {
            Some(text) => {
                named.extend_from_slice(format!("rdzv {node}: ").as_bytes());
                named.extend_from_slice(text);
            }
            None => named.extend_from_slice(line),
        }
    }
    named
}

fn queue(write: Write, bytes: &[u8]) {
    let Some(queue) = QUEUE.get() else {
        return write(bytes);
    };
    if WAITING.fetch_add(bytes.len(), Ordering::Relaxed) > MOST_WAITING {
        WAITING.fetch_sub(bytes.len(), Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
    } else {
        // The thread runs until the program ends, so the queue is never closed.
        let _ = queue.send(Command::Write(write, bytes.to_vec()));
    }
}

/// Starts the thread that writes the lines; later lines are queued.
///
/// A process that supervises workers, serves clients or reports a killed agent calls this function
/// once. If the thread cannot be started, the callers keep writing the lines themselves.
pub(crate) fn start_lines() {
    let (queue, commands) = channel();
    let thread = thread::Builder::new()
        .name("stderr".to_owned())
        .stack_size(128 << 10);
    if thread.spawn(move || write_out(&commands)).is_ok() {
        let _ = QUEUE.set(queue);
    }
}

/// Time limit for the last lines if the reader may have stopped reading.
pub(crate) const FINAL_FLUSH: Duration = Duration::from_millis(200);

/// Waits until all queued lines have been written, at most for the timeout.
pub(crate) fn finish_lines(timeout: Option<Duration>) {
    let finished = finish();
    let _ = match timeout {
        Some(timeout) => finished.recv_timeout(timeout).ok(),
        None => finished.recv().ok(),
    };
}

/// Waits until all queued lines are written, or one of the signals arrives.
///
/// Returns `false` if lines may be left: a signal arrived, or a thread cannot be started.
pub(crate) fn finish_lines_unless_signalled(signals: &[i32]) -> bool {
    let finished = finish();
    // In most cases the lines are written in this time, and no thread is needed.
    if finished.recv_timeout(FINAL_FLUSH).is_ok() {
        return true;
    }
    let (signalled, either) = channel();
    let written = signalled.clone();
    let watched = rdzv_agent::launcher::when_signalled(signals.to_vec(), move |_| {
        let _ = signalled.send(false);
    });
    let waits = thread::Builder::new().stack_size(128 << 10).spawn(move || {
        let _ = finished.recv();
        let _ = written.send(true);
    });
    // Without these threads, it is better to exit than to wait without a limit.
    watched.is_ok() && waits.is_ok() && either.recv() == Ok(true)
}

/// Returns a channel that is ready once all lines queued until now are written.
///
/// Then it receives a value, or it is closed.
fn finish() -> Receiver<()> {
    let (done, finished) = channel();
    if let Some(queue) = QUEUE.get() {
        let _ = queue.send(Command::Finish(done));
    }
    finished
}

fn write_out(commands: &Receiver<Command>) {
    for command in commands {
        match command {
            Command::Write(write, bytes) => {
                write(&bytes);
                WAITING.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
            Command::Finish(done) => {
                let _ = done.send(());
            }
        }
        let lost = LOST.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let note = format!("rdzv: lines lost here, because the reader was too slow: {lost}\n");
            write_own_lines(note.as_bytes());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    /// Columns of the terminal.
    ///
    /// `None` for a file or pipe, where lines are neither wrapped nor shortened.
    pub(crate) width: Option<usize>,
    /// `true` if lines of rdzv have colours.
    pub(crate) is_coloured: bool,
}

impl Form {
    /// Returns the current form for stderr.
    pub(crate) fn of_stderr() -> Self {
        Self::of(&io::stderr())
    }

    /// Returns the current form for stdout.
    pub(crate) fn of_stdout() -> Self {
        Self::of(&io::stdout())
    }

    fn of(stream: &(impl IsTerminal + AsFd)) -> Self {
        if !stream.is_terminal() {
            return Self {
                width: None,
                is_coloured: false,
            };
        }
        let width = tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
        Self {
            // If the width is unknown or too small, 80 columns are assumed.
            width: Some(if width < LEAST_WIDTH { 80 } else { width }),
            is_coloured: may_be_coloured(std::env::var_os(NO_COLOR), std::env::var_os(TERM)),
        }
    }
}

/// Minimum width in columns; a narrower terminal wraps lines automatically.
const LEAST_WIDTH: usize = 30;

fn may_be_coloured(no_colour: Option<OsString>, terminal: Option<OsString>) -> bool {
    no_colour.is_none_or(|value| value.is_empty()) && terminal.is_none_or(|name| name != "dumb")
}

/// Writes lines of the run to stderr, in one piece.
pub(crate) fn say(lines: &[Line], form: Form) {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| line.painted(form.is_coloured))
        .collect();
    if !lines.is_empty() {
        complain(&lines.join("\n"));
    }
}

/// Writes a text and a newline to stderr, in one piece.
///
/// A failure is ignored, because there is no other output for an error.
pub(crate) fn complain(text: &str) {
    let _ = LineWriter.write_all(format!("{text}\n").as_bytes());
}

/// Writes a line of a running job to stdout, as [`complain`] does to stderr.
pub(crate) fn print_line(line: &str) {
    queue(write_own_output, format!("{line}\n").as_bytes());
}

/// Writes a requested text to stdout.
///
/// It is not a failure if the reader exits early (`| head`).
pub(crate) fn show(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("rdzv: cannot write to stdout: {error}"));
            Exit::Failure.into()
        }
        _ => Exit::Success.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ours_name_the_node_and_others_stay() {
        let lines = b"rdzv: first\n    rdzv: quoted\nrdzv: last";
        let named = with_node(lines, "n2");
        assert_eq!(named, b"rdzv n2: first\n    rdzv: quoted\nrdzv n2: last");
    }

    #[test]
    fn colours_are_for_terminals_that_have_them_and_people_who_want_them() {
        let coloured = |no_colour: Option<&str>, terminal: Option<&str>| {
            may_be_coloured(no_colour.map(Into::into), terminal.map(Into::into))
        };
        assert!(coloured(None, Some("xterm-256color")));
        assert!(coloured(Some(""), None));
        assert!(!coloured(Some("1"), Some("xterm")));
        assert!(!coloured(None, Some("dumb")));
    }
}
