//! One file that is copied to the console.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memchr::{memchr2, memmem};

use super::console::{Console, Target};
use super::lines::{LONGEST_LINE, LineReader, Lines};

/// How long the beginning of a line is held back.
const HOLD: Duration = Duration::from_millis(150);

/// A file that is to be copied.
#[derive(Debug)]
pub(super) struct TailedFile {
    /// For the watch on it.
    pub(super) path: PathBuf,
    /// Open for reading, at its beginning.
    pub(super) file: File,
    pub(super) target: Target,
    /// Before each line.
    pub(super) prefix: String,
    /// Lines with one of these also go to `filtered`.
    pub(super) needles: Vec<String>,
    pub(super) filtered: Option<File>,
}

/// A file that is being copied.
#[derive(Debug)]
pub(super) struct Source {
    number: u64,
    file: File,
    offset: u64,
    target: Target,
    lines: Lines,
    filter: Filter,
    /// When what is held back has to be given out.
    give_out_at: Option<Instant>,
    /// Nobody writes any more: its end is the end.
    pub(super) last_round: bool,
    /// There may be something to read.
    pub(super) ready: bool,
}

/// Copies of certain lines.
#[derive(Debug)]
struct Filter {
    needles: Vec<memmem::Finder<'static>>,
    file: Option<File>,
    batch: Vec<u8>,
}

impl LineReader for Filter {
    fn line(&mut self, line: &[u8]) {
        if self
            .needles
            .iter()
            .any(|needle| needle.find(line).is_some())
        {
            self.batch.extend_from_slice(line);
        }
    }
}

impl Source {
    pub(super) fn new(number: u64, tailed: TailedFile) -> Self {
        Self {
            number,
            file: tailed.file,
            offset: 0,
            target: tailed.target,
            lines: Lines::new(tailed.prefix),
            filter: Filter {
                needles: tailed
                    .needles
                    .iter()
                    .map(|needle| memmem::Finder::new(needle).into_owned())
                    .collect(),
                file: tailed.filtered,
                batch: Vec::new(),
            },
            give_out_at: None,
            last_round: false,
            ready: true,
        }
    }

    /// Copies at most one buffer full; false if there was nothing.
    pub(super) fn copy(
        &mut self,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        console: &mut Console,
    ) -> bool {
        let read = match self.read(buffer) {
            Ok(0) | Err(_) => {
                self.ready = false;
                return false;
            }
            Ok(read) => read,
        };
        out.clear();
        let bytes = &buffer[..read];
        let speaks =
            memchr2(b'\n', b'\r', bytes).is_some() || self.lines.held_with(read) > LONGEST_LINE;
        let mut open = if speaks {
            console.approach(self.target, self.number, out)
        } else {
            console.is_inside(self.target, self.number)
        };
        self.lines.take(bytes, &mut open, out, &mut self.filter);
        if self.lines.held_with(0) > LONGEST_LINE {
            self.lines.give_out(&mut open, out);
        }
        if !out.is_empty() {
            console.write(self.target, self.number, open, out);
        }
        self.give_out_at = match self.give_out_at {
            _ if !self.lines.holds_back() => None,
            Some(at) if out.is_empty() => Some(at),
            _ => Some(Instant::now() + HOLD),
        };
        self.write_filtered();
        true
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.offset += read as u64;
        if read == 0 && self.file.metadata()?.len() < self.offset {
            // The worker emptied its log and began anew.
            self.offset = self.file.seek(SeekFrom::Start(0))?;
            return self.read(buffer);
        }
        Ok(read)
    }

    /// When [`Source::give_out_if_due`] is due.
    pub(super) fn give_out_at(&self) -> Option<Instant> {
        self.give_out_at
    }

    /// Gives out the beginning of a line that has been held back long enough.
    pub(super) fn give_out_if_due(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        console: &mut Console,
    ) {
        if self.give_out_at.is_some_and(|at| at <= now) {
            self.give_out_at = None;
            out.clear();
            let mut open = console.approach(self.target, self.number, out);
            self.lines.give_out(&mut open, out);
            console.write(self.target, self.number, open, out);
        }
    }

    /// Ends the last line.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>, console: &mut Console) {
        out.clear();
        let inside = console.is_inside(self.target, self.number);
        if self.lines.holds_back() || inside {
            let mut open = console.approach(self.target, self.number, out);
            self.lines.finish(&mut open, out, &mut self.filter);
            console.write(self.target, self.number, open, out);
        }
        self.write_filtered();
    }

    fn write_filtered(&mut self) {
        if let Some(file) = &mut self.filter.file
            && !self.filter.batch.is_empty()
        {
            // Without the copy the run goes on; the line itself is in the worker's own file.
            let _ = file.write_all(&self.filter.batch);
        }
        self.filter.batch.clear();
    }
}
