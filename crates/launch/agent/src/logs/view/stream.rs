//! One stream of one worker: its bytes, lines and last row.

use std::time::{Duration, Instant};

use rdzv_agent_proto::group::WorkerRanks;
use rdzv_console::live::{Blocks, Row, Screen};
use rdzv_core::time::{Mono, earliest};

use crate::logs::collapse::WINDOW;
use crate::logs::console::Target;

/// Time after which an unfinished row (a prompt, for example) is shown.
/// A row that is redrawn is shown immediately.
const UNFINISHED: Duration = Duration::from_millis(150);

/// Time after which the rows of a finished progress bar become lines.
const ENDED_BAR: Duration = Duration::from_millis(500);

/// Time after which an unfinished row becomes a line if there are no rows.
const UNFINISHED_LINE: Duration = Duration::from_secs(1);

/// Number of bytes per window that counts as a flood: too much to read.
/// The window is the time in which lines wait for equal ones.
const FLOOD: usize = 256 << 10;

pub(super) struct Stream {
    pub(super) ranks: WorkerRanks,
    pub(super) target: Target,
    pub(super) screen: Screen,
    pub(super) blocks: Blocks,
    pub(super) changed: Instant,
    /// Start of the window, its bytes, and `true` if the previous one was a flood.
    window: (Instant, usize, bool),
}

impl Stream {
    pub(super) fn new(ranks: WorkerRanks, target: Target) -> Self {
        let now = Instant::now();
        Self {
            ranks,
            target,
            screen: Screen::default(),
            blocks: Blocks::default(),
            changed: now,
            window: (now, 0, false),
        }
    }

    /// Returns `true` if the stream is flooding, including these bytes.
    /// Its lines are then not compared with those of other workers.
    pub(super) fn is_flooding(&mut self, bytes: usize, now: Instant) -> bool {
        let (begun, so_far, was_flood) = &mut self.window;
        let age = now.saturating_duration_since(*begun);
        if age >= WINDOW {
            *was_flood = *so_far > FLOOD && age < 2 * WINDOW;
            (*begun, *so_far) = (now, 0);
        }
        *so_far += bytes;
        *was_flood || *so_far > FLOOD
    }

    /// Adds bytes, and emits the blocks of lines that they complete.
    pub(super) fn take(&mut self, bytes: &[u8], at: Mono, emit: &mut dyn FnMut(&[u8])) {
        let blocks = &mut self.blocks;
        self.screen
            .take(bytes, &mut |line| blocks.push(line, at, emit));
    }

    /// Emits the blocks that have waited long enough.
    /// `rows` is `true` if unfinished output is visible in rows in the meantime.
    pub(super) fn pass(&mut self, at: Mono, now: Instant, rows: bool, emit: &mut dyn FnMut(&[u8])) {
        let quiet = now.saturating_duration_since(self.changed);
        let blocks = &mut self.blocks;
        let mut line = |line: &[u8]| blocks.push(line, at, emit);
        if quiet >= ENDED_BAR {
            self.screen.finish_left_rows(&mut line);
        }
        let is_prompt = self.screen.row().is_some_and(|(_, is_redrawn)| !is_redrawn);
        if !rows && is_prompt && quiet >= UNFINISHED_LINE {
            self.screen.finish(&mut line);
        }
        blocks.pass(at, emit);
    }

    /// Emits everything; no process writes to the stream any more.
    pub(super) fn finish(&mut self, at: Mono, emit: &mut dyn FnMut(&[u8])) {
        let blocks = &mut self.blocks;
        self.screen.finish(&mut |line| blocks.push(line, at, emit));
        blocks.finish(emit);
    }

    /// Returns the row that shows the unfinished output.
    pub(super) fn row(&self, now: Instant) -> Option<&Row> {
        let (row, is_redrawn) = self.screen.row()?;
        (is_redrawn || now >= self.changed + UNFINISHED).then_some(row)
    }

    /// Returns the time at which output is due without new bytes.
    /// `rows` is `true` if rows are shown.
    pub(super) fn due(&self, rows: bool) -> Option<Instant> {
        let is_prompt = self.screen.row().is_some_and(|(_, is_redrawn)| !is_redrawn);
        let prompt = is_prompt.then_some(if rows { UNFINISHED } else { UNFINISHED_LINE });
        let ended = self.screen.has_left_rows().then_some(ENDED_BAR);
        let first = earliest([prompt, ended])?;
        Some(self.changed + first)
    }
}
