//! One file that is copied to the console.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rdzv_agent_proto::group::WorkerRanks;

use super::console::Target;
use super::filter::{Copies, Filter};
use super::lines::Lines;
use super::output::{Output, Voice};

/// How long the beginning of a line is held back.
const HOLD: Duration = Duration::from_millis(150);

/// How long the others wait at most for the end of a line that is too long to be held back.
const LONG_LINE: Duration = Duration::from_millis(500);

/// A file that is to be copied.
#[derive(Debug)]
pub(super) struct TailedFile {
    /// For the watch on it.
    pub(super) path: PathBuf,
    /// Open for reading, at its beginning.
    pub(super) file: File,
    pub(super) target: Target,
    pub(super) place: WorkerRanks,
    /// Before each line.
    pub(super) prefix: String,
    /// Lines with one of these also go to `filtered`.
    pub(super) needles: Vec<String>,
    pub(super) filtered: Option<Copies>,
}

/// A file that is being copied.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    offset: u64,
    voice: Voice,
    lines: Lines,
    filter: Filter,
    /// When what is held back has to be given out.
    give_out_at: Option<Instant>,
    /// Since when a line is on the console that was too long to be held back.
    long_since: Option<Instant>,
    last_read: Instant,
    /// Nobody writes any more: its end is the end.
    pub(super) last_round: bool,
    /// There may be something to read.
    pub(super) ready: bool,
}

impl Source {
    pub(super) fn new(number: u64, tailed: TailedFile, output: &mut Output) -> Self {
        let voice = Voice {
            number,
            target: tailed.target,
            place: tailed.place,
            prefix: tailed.prefix.into_bytes(),
        };
        output.add(&voice);
        Self {
            file: tailed.file,
            offset: 0,
            voice,
            lines: Lines::default(),
            filter: Filter::new(&tailed.needles, tailed.filtered),
            give_out_at: None,
            long_since: None,
            last_read: Instant::now(),
            last_round: false,
            ready: true,
        }
    }

    /// Copies at most one buffer full; false if there was nothing.
    pub(super) fn copy(&mut self, buffer: &mut [u8], output: &mut Output) -> bool {
        let read = match self.read(buffer) {
            Ok(0) | Err(_) => {
                self.ready = false;
                return false;
            }
            Ok(read) => read,
        };
        let now = Instant::now();
        let mut spoke = false;
        let Self {
            lines,
            voice,
            filter,
            ..
        } = self;
        lines.take(&buffer[..read], |piece| {
            spoke = true;
            filter.see(&voice.prefix, piece);
            output.take(voice, piece, now);
        });
        output.flush(voice);
        filter.write();
        self.last_read = now;
        self.long_since = match self.lines.has_begun() {
            true if spoke => self.long_since.or(Some(now)),
            true => self.long_since,
            false => None,
        };
        self.give_out_at = match self.give_out_at {
            _ if !self.lines.holds_back() => None,
            Some(at) if !spoke => Some(at),
            _ => Some(now + HOLD),
        };
        true
    }

    /// Until when the others leave the console to a long line, if one of this source is there: its
    /// worker is about to write the rest.
    pub(super) fn has_console_until(&self) -> Option<Instant> {
        let since = self.long_since?;
        Some((self.last_read + HOLD).min(since + LONG_LINE))
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
    pub(super) fn give_out_if_due(&mut self, now: Instant, output: &mut Output) {
        if self.give_out_at.is_some_and(|at| at <= now) {
            self.give_out_at = None;
            let (voice, filter) = (&self.voice, &mut self.filter);
            self.lines.give_out(|piece| {
                filter.see(&voice.prefix, piece);
                output.take(voice, piece, now);
            });
            output.flush(voice);
        }
    }

    /// Ends the last line.
    pub(super) fn finish(&mut self, output: &mut Output) {
        let (voice, filter) = (&self.voice, &mut self.filter);
        self.lines.finish(|piece| {
            filter.see(&voice.prefix, piece);
            output.take(voice, piece, Instant::now());
        });
        output.flush(voice);
        output.end(voice);
        filter.write();
    }
}
