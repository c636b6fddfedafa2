//! Reader for one log file that is copied to the console.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::filter::Filter;
use super::line_assembler::LineAssembler;
use super::output::{LogStream, Output};

/// Time for which an incomplete line is buffered.
pub(super) const HOLD: Duration = Duration::from_millis(150);

/// Maximum time that other streams wait for the end of a long line.
/// A long line is one that does not fit in the buffer.
pub(super) const LONG_LINE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct LogReader {
    pub(super) path: PathBuf,
    /// The log file, open for reading from its beginning.
    pub(super) file: File,
    offset: u64,
    pub(super) stream: LogStream,
    lines: LineAssembler,
    filter: Filter,
    /// Time at which the buffered part of an incomplete line is shown.
    pub(super) flush_at: Option<Instant>,
    /// Time at which a line that was too long to be buffered began on the console.
    long_since: Option<Instant>,
    last_read: Instant,
    /// `true` if all writers have exited or are abandoned.
    /// The end of the file is then final.
    pub(super) last_round: bool,
    /// `true` if there may be something to read.
    pub(super) ready: bool,
}

impl LogReader {
    /// Opens the file at this path. Nothing is copied yet.
    pub(super) fn open(path: &Path, stream: LogStream, filter: Filter) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: File::open(path)?,
            offset: 0,
            stream,
            lines: LineAssembler::default(),
            filter,
            flush_at: None,
            long_since: None,
            last_read: Instant::now(),
            last_round: false,
            ready: true,
        })
    }

    /// Copies up to one buffer; returns the number of bytes.
    pub(super) fn copy(&mut self, buffer: &mut [u8], output: &mut Output) -> usize {
        let read = match self.read(buffer) {
            Ok(0) | Err(_) => {
                self.ready = false;
                return 0;
            }
            Ok(read) => read,
        };
        let now = Instant::now();
        let mut emitted = false;
        let Self {
            lines,
            stream,
            filter,
            ..
        } = self;
        lines.take(&buffer[..read], |piece| {
            emitted = true;
            filter.feed(&stream.prefix, piece);
            output.take(stream, piece, now);
        });
        output.flush(stream);
        filter.write();
        self.last_read = now;
        self.long_since = match self.lines.has_begun() {
            true if emitted => self.long_since.or(Some(now)),
            true => self.long_since,
            false => None,
        };
        self.flush_at = match self.flush_at {
            _ if !self.lines.has_pending() => None,
            Some(at) if !emitted => Some(at),
            _ => Some(now + HOLD),
        };
        read
    }

    /// Returns the time until which a long line of this file has the console.
    /// Other streams wait until then, because the worker is about to write the end of the line.
    pub(super) fn console_release(&self) -> Option<Instant> {
        let since = self.long_since?;
        Some((self.last_read + HOLD).min(since + LONG_LINE))
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.offset += read as u64;
        if read == 0 && self.file.metadata()?.len() < self.offset {
            // The worker emptied its log and writes from the beginning.
            self.offset = self.file.seek(SeekFrom::Start(0))?;
            return self.read(buffer);
        }
        Ok(read)
    }

    /// Moves all deadlines by a time that does not count.
    /// The thread that reads did not run during that time, so its worker perhaps did not run
    /// either.
    pub(super) fn postpone(&mut self, by: Duration) {
        self.last_read += by;
        for at in [&mut self.flush_at, &mut self.long_since]
            .into_iter()
            .flatten()
        {
            *at += by;
        }
    }

    /// Shows the beginning of a line whose buffering time has expired.
    pub(super) fn flush_if_due(&mut self, now: Instant, output: &mut Output) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            let (stream, filter) = (&self.stream, &mut self.filter);
            self.lines.flush(|piece| {
                filter.feed(&stream.prefix, piece);
                output.take(stream, piece, now);
            });
            output.flush(stream);
        }
    }

    pub(super) fn finish(&mut self, output: &mut Output) {
        let (stream, filter) = (&self.stream, &mut self.filter);
        self.lines.finish(|piece| {
            filter.feed(&stream.prefix, piece);
            output.take(stream, piece, Instant::now());
        });
        output.flush(stream);
        output.end(stream);
        filter.write();
    }
}
