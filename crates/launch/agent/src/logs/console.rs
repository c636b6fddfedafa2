//! Standard output and standard error of this process, for all its writers.
//!
//! Writers write whole lines if possible, and end another writer's unfinished line first. Only this
//! module knows whether the cursor is in a line that a worker has not finished. Other processes may
//! write to the same pipe: workers whose streams are not redirected, or other commands of a shell's
//! pipeline. They cannot split a write that the kernel takes in one piece.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use memchr::{memchr, memrchr};
use rdzv_console::live::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, write};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

use super::line_assembler::Piece;

/// Output stream of this process: standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Stdout,
    Stderr,
}

impl Target {
    /// Returns the name of the stream for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// Returns the file name of a worker's log.
    pub(super) fn file_name(self) -> String {
        format!("{}.log", self.name())
    }

    /// Returns the log's file name for a worker hidden by `--local-ranks-filter`.
    pub(super) fn retained_name(self) -> String {
        format!("kept_{}", self.file_name())
    }
}

/// Size up to which a write to a pipe is atomic (`PIPE_BUF`).
const ONE_PIECE: usize = 4096;

/// Capacity of a pipe under a flood of output, in bytes.
/// With a larger pipe, writer and reader wait for each other less often. This size needs no
/// privilege.
pub(super) const FLOODED_PIPE: usize = 1 << 20;

/// Size at which a batch is written.
const FULL: usize = 64 << 10;

/// Lines of one source that will be written.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Text of the batch after a newline.
    /// The newline is written only if the cursor is in the line of another stream.
    bytes: Vec<u8>,
    /// Number of bytes to leave out if the cursor is in the stream's own line.
    /// These bytes, the prefix and the beginning of the line, are there already.
    repeated: Option<usize>,
    /// `true` if the first line is only the end of a line that was begun before.
    only_ends: bool,
    /// `true` if the batch ends inside a line.
    open: bool,
}

impl Batch {
    /// Adds a line or a piece of one.
    ///
    /// Only the first piece of a batch has a beginning that was written before. This beginning is
    /// repeated if the cursor has left the line, unless this piece only ends the line.
    pub(super) fn add(&mut self, prefix: &[u8], piece: Piece<'_>) {
        if self.bytes.is_empty() {
            self.bytes.push(b'\n');
            self.repeated = piece.begun.map(|begun| prefix.len() + begun.len());
            self.only_ends = piece.begun.is_some() && piece.ended && piece.text.is_empty();
        }
        self.bytes.extend_from_slice(prefix);
        self.bytes
            .extend_from_slice(piece.begun.unwrap_or_default());
        self.bytes.extend_from_slice(piece.text);
        if piece.ended {
            self.bytes.push(b'\n');
        }
        self.open = !piece.ended;
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= FULL
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(4 * FULL);
    }
}

#[derive(Debug)]
pub(super) struct Console {
    stdout: Mutex<Cursor>,
    /// `None` if stderr is the same file as stdout.
    stderr: Option<Mutex<Cursor>>,
    are_rows_suspended: AtomicBool,
}

#[derive(Debug, Default)]
struct Cursor {
    /// Stream whose line is unfinished here.
    inside: Option<u64>,
    /// `true` if the reader has closed the stream; then nothing more is written.
    broken: bool,
    /// Maximum size of one write in bytes, unless one line is longer.
    piece: usize,
    /// `true` once this module has tried to raise the capacity of the pipe.
    widened: bool,
    /// Rows of the live view below all lines.
    region: Region,
}

impl Cursor {
    fn of(fd: BorrowedFd<'_>) -> Self {
        let kind = fstat(fd).map(|metadata| FileType::from_raw_mode(metadata.st_mode));
        Self {
            // Files and terminals take any write in one piece.
            piece: match kind {
                Ok(FileType::Fifo | FileType::Socket) => ONE_PIECE,
                _ => usize::MAX,
            },
            ..Self::default()
        }
    }
}

impl Console {
    pub(super) fn get() -> &'static Self {
        static CONSOLE: OnceLock<Console> = OnceLock::new();
        CONSOLE.get_or_init(|| {
            let (stdout, stderr) = (io::stdout(), io::stderr());
            let identity = |fd: BorrowedFd<'_>| {
                fstat(fd)
                    .ok()
                    .map(|metadata| (metadata.st_dev, metadata.st_ino))
            };
            let first = identity(stdout.as_fd());
            let same = first.is_some() && first == identity(stderr.as_fd());
            Self {
                stdout: Mutex::new(Cursor::of(stdout.as_fd())),
                stderr: (!same).then(|| Mutex::new(Cursor::of(stderr.as_fd()))),
                are_rows_suspended: AtomicBool::new(false),
            }
        })
    }

    pub(super) fn is_one_file(&self) -> bool {
        self.stderr.is_none()
    }

    /// Writes the batch of a stream, and empties it.
    ///
    /// # Errors
    ///
    /// Returns the system's error, for example if the reader has closed the stream.
    pub(super) fn write(
        &self,
        target: Target,
        stream: u64,
        batch: &mut Batch,
    ) -> Result<(), Errno> {
        let mut written = Ok(());
        if !batch.bytes.is_empty() {
            self.with(target, |fd, cursor| {
                if batch.is_full() && !cursor.widened && cursor.piece == ONE_PIECE {
                    cursor.widened = true;
                    if fcntl_getpipe_size(fd).is_ok_and(|size| size < FLOODED_PIPE) {
                        // A failure only makes the output slower.
                        let _ = fcntl_setpipe_size(fd, FLOODED_PIPE);
                    }
                }
                let from = cursor.enter(stream, batch);
                written = cursor.write(fd, &batch.bytes[from..]);
                if !cursor.region.is_empty() {
                    // The rows are where the unfinished line would continue.
                    cursor.inside = None;
                }
            });
        }
        batch.clear();
        written
    }

    /// Writes lines of this program.
    fn write_own(&self, target: Target, lines: &[u8]) {
        self.with(target, |fd, cursor| {
            // After the reader has exited, lines are lost, as for any program.
            let _ = if cursor.inside.take().is_some() {
                cursor.write(fd, &[b"\n", lines].concat())
            } else {
                cursor.write(fd, lines)
            };
        });
    }

    /// Writes lines of workers, each with its end, above these rows.
    /// The rows stay below everything that is written from now on.
    pub(super) fn draw(&self, lines: &[u8], mut rows: Vec<String>, width: usize) {
        self.with(Target::Stdout, |fd, cursor| {
            if self.are_rows_suspended.load(Ordering::Relaxed) {
                rows.clear();
            }
            // A closed terminal shows nothing.
            if cursor.inside.take().is_some() {
                let _ = cursor.write(fd, b"\n");
            }
            cursor.region.resize(width);
            if rows.is_empty() && cursor.region.is_empty() {
                let _ = cursor.write(fd, lines);
            } else if !lines.is_empty() || !cursor.region.shows(&rows) {
                let bytes = cursor.region.draw(lines, rows);
                let _ = cursor.write_bytes(fd, &bytes);
            }
        });
    }

    /// Stops or resumes the drawing of rows.
    /// Existing rows stay where they are while another program writes to the terminal.
    pub(super) fn suspend_rows(&self, are_suspended: bool) {
        self.are_rows_suspended
            .store(are_suspended, Ordering::Relaxed);
    }

    fn with(&self, target: Target, act: impl FnOnce(BorrowedFd<'_>, &mut Cursor)) {
        let cursor = match (target, &self.stderr) {
            (Target::Stderr, Some(stderr)) => stderr,
            _ => &self.stdout,
        };
        // A panic under the lock leaves no half-done change.
        let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
        if self.are_rows_suspended.load(Ordering::Relaxed) {
            cursor.region.abandon();
        }
        match target {
            Target::Stdout => act(io::stdout().as_fd(), &mut cursor),
            Target::Stderr => act(io::stderr().as_fd(), &mut cursor),
        }
    }
}

impl Cursor {
    /// Prepares for a batch of a stream; returns the offset at which to begin.
    fn enter(&mut self, stream: u64, batch: &Batch) -> usize {
        let length = batch.bytes.len();
        let from = match (self.inside, batch.repeated) {
            (Some(inside), Some(there)) if inside == stream => 1 + there,
            // The line was already ended for another stream, so there is nothing to write.
            (_, Some(there)) if batch.only_ends && length == there + 2 => return length,
            (Some(_), Some(there)) if batch.only_ends => 1 + there,
            (None, Some(there)) if batch.only_ends => 2 + there,
            (Some(_), _) => 0,
            (None, _) => 1,
        };
        self.inside = batch.open.then_some(stream);
        from
    }

    /// Writes all bytes, above the rows if there are any.
    fn write(&mut self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.region.is_empty() {
            self.write_bytes(fd, bytes)
        } else {
            let bytes = self.region.write(bytes);
            self.write_bytes(fd, &bytes)
        }
    }

    /// Writes all bytes, in pieces that end with lines.
    fn write_bytes(&mut self, fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            if self.broken {
                return Err(Errno::PIPE);
            }
            let (piece, rest) = bytes.split_at(piece_length(bytes, self.piece));
            let written = write_all(fd, piece);
            // If the reader closes the stream, workers that write to files continue.
            self.broken = written == Err(Errno::PIPE);
            written?;
            bytes = rest;
        }
        Ok(())
    }
}

/// Returns the length of the whole lines at the beginning that fit into `most`.
/// If not even the first line fits, returns the length of that line.
fn piece_length(bytes: &[u8], most: usize) -> usize {
    if bytes.len() <= most {
        return bytes.len();
    }
    match memrchr(b'\n', &bytes[..most]) {
        Some(end) => end + 1,
        None => memchr(b'\n', &bytes[most..]).map_or(bytes.len(), |end| most + end + 1),
    }
}

/// Writes all bytes; blocks until the reader accepts them.
pub(super) fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another process that shares the stream may have made it non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes whole lines of this program to stderr, between the workers' lines.
/// The lines are log lines, events and the failure report. The call blocks if the reader of stderr
/// is slow, as for any write.
pub fn write_own_lines(lines: &[u8]) {
    // Lines that the program has printed to stdout come first.
    let _ = io::stdout().flush();
    Console::get().write_own(Target::Stderr, lines);
}

/// Writes whole lines of this program to stdout, between the workers' lines.
pub fn write_own_output(lines: &[u8]) {
    let _ = io::stdout().flush();
    Console::get().write_own(Target::Stdout, lines);
}

/// Returns `true` if stdout and stderr are one terminal.
pub(crate) fn is_on_terminal() -> bool {
    Console::get().stderr.is_none() && io::stdout().is_terminal()
}

/// Returns `true` if stderr would accept a short line immediately.
pub(crate) fn stderr_takes_lines() -> bool {
    let stderr = io::stderr();
    let mut writable = [PollFd::new(&stderr, PollFlags::OUT)];
    poll(&mut writable, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_lines() {
        assert_eq!(piece_length(b"a\nb\n", 4), 4);
        assert_eq!(piece_length(b"a\nbb\n", 4), 2);
        assert_eq!(piece_length(b"long line\nb\n", 4), 10);
        assert_eq!(piece_length(b"no end", 4), 6);
    }

    fn piece<'a>(begun: Option<&'a str>, text: &'a str, ended: bool) -> Piece<'a> {
        Piece {
            text: text.as_bytes(),
            begun: begun.map(str::as_bytes),
            ended,
        }
    }

    fn written(cursor: &mut Cursor, stream: u64, batch: &Batch) -> String {
        let from = cursor.enter(stream, batch);
        String::from_utf8(batch.bytes[from..].to_vec()).unwrap()
    }

    #[test]
    fn nobody_writes_into_the_line_of_another() {
        let mut cursor = Cursor::default();
        let mut say = |stream, begun: Option<&str>, text: &str, ended| {
            let mut batch = Batch::default();
            batch.add(b"[0]:", piece(begun, text, ended));
            written(&mut cursor, stream, &batch)
        };
        assert_eq!(say(1, None, "name?", false), "[0]:name?");
        assert_eq!(say(1, Some("name?"), " yes", true), " yes\n");
        assert_eq!(say(1, None, "name?", false), "[0]:name?");
        assert_eq!(say(2, None, "other", true), "\n[0]:other\n");
        assert_eq!(say(1, Some("name?"), " yes", true), "[0]:name? yes\n");
    }

    #[test]
    fn a_line_that_was_ended_for_another_is_not_ended_again() {
        let mut ending = Batch::default();
        ending.add(b"[0]:", piece(Some("x"), "", true));
        let mut more = Batch::default();
        more.add(b"[0]:", piece(Some("x"), "", true));
        more.add(b"[0]:", piece(None, "next", true));
        for (inside, only, with_more) in [
            (None, "", "[0]:next\n"),
            (Some(1), "\n", "\n[0]:next\n"),
            (Some(2), "", "\n[0]:next\n"),
        ] {
            let cursor = || Cursor {
                inside,
                ..Cursor::default()
            };
            assert_eq!(written(&mut cursor(), 1, &ending), only);
            assert_eq!(written(&mut cursor(), 1, &more), with_more);
        }
    }
}
