//! A program on a separate terminal, and the screen of that terminal.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::ops::Deref;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::{DEADLINE, Process};

/// Number of lines that are kept above the screen.
const HISTORY: usize = 100_000;

/// A program that runs in the foreground of its controlling terminal.
pub struct Terminal {
    process: Process,
    keys: File,
    shared: Arc<(Mutex<Shown>, Condvar)>,
}

/// Everything that was written to the terminal.
struct Shown {
    parser: vt100::Parser,
    raw: Vec<u8>,
    is_closed: bool,
}

impl Terminal {
    /// Creates a command for [`Terminal::start`] that runs this program.
    pub fn command(program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program);
        command
    }

    /// Starts a program on a terminal of this size.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        set_size(&ours, columns, rows);
        command
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs);
        let process = Process::start(&mut command);
        // The output ends when no process, including this one, has the other side open.
        drop(command);
        let shown = Shown {
            parser: vt100::Parser::new(positive(rows), positive(columns), HISTORY),
            raw: Vec::new(),
            is_closed: false,
        };
        let shared = Arc::new((Mutex::new(shown), Condvar::new()));
        let (mut output, writes) = (File::from(ours.try_clone().unwrap()), Arc::clone(&shared));
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                let read = output.read(&mut buffer).unwrap_or(0);
                let (shown, changed) = &*writes;
                let mut shown = shown.lock().unwrap();
                shown.raw.extend_from_slice(&buffer[..read]);
                shown.parser.process(&buffer[..read]);
                shown.is_closed = read == 0;
                changed.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        Self {
            process,
            keys: File::from(ours),
            shared,
        }
    }

    /// Sends key presses to the program.
    pub fn press(&self, keys: &[u8]) {
        (&self.keys).write_all(keys).unwrap();
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, columns: u16, rows: u16) {
        let mut shown = self.shared.0.lock().unwrap();
        let screen = shown.parser.screen_mut();
        screen.set_size(positive(rows), positive(columns));
        set_size(&self.keys, columns, rows);
    }

    /// Returns the rows of the screen, without empty rows at its end.
    pub fn screen(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().screen()
    }

    /// Returns all lines, including those that have left the screen.
    pub fn lines(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().lines()
    }

    /// Returns all bytes that were written to the terminal.
    pub fn raw(&self) -> Vec<u8> {
        self.shared.0.lock().unwrap().raw.clone()
    }

    /// Waits until the screen meets a condition, and returns the screen.
    #[track_caller]
    pub fn wait_for(&self, what: &str, is_like_that: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = Instant::now() + DEADLINE;
        let (shown, changed) = &*self.shared;
        let mut shown = shown.lock().unwrap();
        loop {
            let screen = shown.screen();
            if is_like_that(&screen) {
                return screen;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let screen = screen.join("\n");
            assert!(!shown.is_closed, "it ended without {what}:\n{screen}");
            assert!(!left.is_zero(), "no {what} within {DEADLINE:?}:\n{screen}");
            shown = changed.wait_timeout(shown, left).unwrap().0;
        }
    }

    /// Waits until one of the rows of the screen contains this text.
    #[track_caller]
    pub fn wait_for_text(&self, text: &str) -> Vec<String> {
        self.wait_for(text, |rows| rows.iter().any(|row| row.contains(text)))
    }

    /// Waits for the exit of the program and the end of its output.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let Some(status) = self.process.wait_within(DEADLINE) else {
            panic!("still running:\n{}", self.screen().join("\n"));
        };
        let (shown, changed) = &*self.shared;
        let shown = shown.lock().unwrap();
        let closed = changed.wait_timeout_while(shown, DEADLINE, |shown| !shown.is_closed);
        assert!(
            !closed.unwrap().1.timed_out(),
            "a process still has the terminal open"
        );
        status
    }
}

impl Deref for Terminal {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Shown {
    fn screen(&self) -> Vec<String> {
        let screen = self.parser.screen();
        let mut rows: Vec<String> = screen.rows(0, screen.size().1.get()).collect();
        while rows.last().is_some_and(|row| row.trim().is_empty()) {
            rows.pop();
        }
        rows
    }

    fn lines(&mut self) -> Vec<String> {
        let screen = self.parser.screen_mut();
        let width = screen.size().1.get();
        screen.set_scrollback(usize::MAX);
        let mut lines = Vec::new();
        for above in (1..=screen.scrollback()).rev() {
            screen.set_scrollback(above);
            lines.extend(screen.rows(0, width).next());
        }
        screen.set_scrollback(0);
        lines.extend(self.screen());
        lines
    }
}

fn set_size(terminal: impl std::os::fd::AsFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

fn positive(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_in_the_foreground_of_its_terminal() {
        let mut command = Terminal::command("/bin/sh");
        // The program that gets the Ctrl-C has answered before it. A shell that forks another
        // program at that moment would swallow the Ctrl-C.
        command.args(["-c", "stty size; exec sed -u 's/^/hello /'"]);
        let mut terminal = Terminal::start(command, 40, 10);
        terminal.wait_for_text("10 40");
        terminal.press(b"you\r");
        terminal.wait_for_text("hello you");
        terminal.press(b"\x03");
        assert!(!terminal.wait().success());
        assert_eq!(terminal.lines()[..3], ["10 40", "you", "hello you"]);
    }
}
