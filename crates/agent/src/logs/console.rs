//! The agent's own stdout and stderr, as the copies of workers' lines see them.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, write};

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The agent's stdout.
    Stdout,
    /// The agent's stderr.
    Stderr,
}

impl Target {
    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout.log",
            Self::Stderr => "stderr.log",
        }
    }

    pub(super) fn filtered_name(self) -> &'static str {
        match self {
            Self::Stdout => "filtered_stdout.log",
            Self::Stderr => "filtered_stderr.log",
        }
    }
}

/// Writes batches of whole lines, and remembers whose unfinished line the cursor stands in.
#[derive(Debug)]
pub(super) struct Console {
    /// Where stdout's and stderr's cursors are; the same one if both are the same file.
    cursors: [Cursor; 2],
    same: bool,
}

#[derive(Debug, Default)]
struct Cursor {
    /// The number of the source whose line is unfinished there.
    inside: Option<u64>,
    /// Nobody reads any more: there is no sense in going on.
    broken: bool,
}

impl Console {
    pub(super) fn new() -> Self {
        let identity = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|held| (held.st_dev, held.st_ino));
        let stdout = identity(io::stdout().as_fd());
        Self {
            cursors: <[Cursor; 2]>::default(),
            same: stdout.is_some() && stdout == identity(io::stderr().as_fd()),
        }
    }

    fn cursor(&mut self, target: Target) -> &mut Cursor {
        match target {
            Target::Stderr if !self.same => &mut self.cursors[1],
            _ => &mut self.cursors[0],
        }
    }

    /// Whether the cursor stands in an unfinished line of this source.
    pub(super) fn is_inside(&mut self, target: Target, source: u64) -> bool {
        self.cursor(target).inside == Some(source)
    }

    /// Prepares for output of a source: whether its own unfinished line is where the cursor stands.
    /// If that is another source's, `out` gets a newline first.
    pub(super) fn approach(&mut self, target: Target, source: u64, out: &mut Vec<u8>) -> bool {
        let cursor = self.cursor(target);
        match cursor.inside {
            Some(inside) if inside == source => true,
            Some(_) => {
                out.push(b'\n');
                cursor.inside = None;
                false
            }
            None => false,
        }
    }

    /// Writes what a source has to say; `open` if it ends inside a line.
    pub(super) fn write(&mut self, target: Target, source: u64, open: bool, out: &[u8]) {
        let cursor = self.cursor(target);
        cursor.inside = open.then_some(source);
        if cursor.broken || out.is_empty() {
            return;
        }
        let written = match target {
            Target::Stdout => write_all(io::stdout().as_fd(), out),
            Target::Stderr => write_all(io::stderr().as_fd(), out),
        };
        // A reader that has gone away is no reason to stop the workers.
        cursor.broken = written.is_err();
    }
}

/// One call where the other side takes it all: then nobody else's output can get in between.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    io::stdout().flush()?;
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None)?;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
