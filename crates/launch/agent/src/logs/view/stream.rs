//! One stream of one worker: its bytes, the lines that they make, and the row at its end.

use std::time::{Duration, Instant};

use rdzv_agent_proto::group::WorkerRanks;
use rdzv_console::live::{Blocks, Row, Screen};
use rdzv_core::time::Mono;

use crate::logs::collapse::WINDOW;
use crate::logs::console::Target;

/// Time after which a row that is not redrawn (a prompt, say) is shown although it has no end.
const UNFINISHED: Duration = Duration::from_millis(150);

/// Time after which the rows of a bar that has ended become lines.
const ENDED_BAR: Duration = Duration::from_millis(500);

/// The same where there are no rows: it then becomes a line.
const UNFINISHED_LINE: Duration = Duration::from_secs(1);

/// Bytes in the time in which lines wait for equal ones that are more than anybody reads.
const FLOOD: usize = 256 << 10;

pub(super) struct Stream {
    pub(super) ranks: WorkerRanks,
    pub(super) target: Target,
    pub(super) screen: Screen,
    pub(super) blocks: Blocks,
    /// Time at which something came last.
    pub(super) changed: Instant,
    /// Bytes since the beginning of a window, and whether those of the window before were a flood.
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

    /// Whether so much comes, with these bytes, that lines are not compared with those of other workers.
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

    /// Takes bytes; emits the blocks of lines that are complete with them.
    pub(super) fn take(&mut self, bytes: &[u8], at: Mono, emit: &mut dyn FnMut(&[u8])) {
        let blocks = &mut self.blocks;
        self.screen
            .take(bytes, &mut |line| blocks.push(line, at, emit));
    }

    /// Emits what has waited long enough; `rows`: whether there are rows where it can be seen meanwhile.
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

    /// Emits everything: nobody writes to it any more.
    pub(super) fn finish(&mut self, at: Mono, emit: &mut dyn FnMut(&[u8])) {
        let blocks = &mut self.blocks;
        self.screen.finish(&mut |line| blocks.push(line, at, emit));
        blocks.finish(emit);
    }

    /// The row to be seen of what is not finished.
    pub(super) fn row(&self, now: Instant) -> Option<&Row> {
        let (row, is_redrawn) = self.screen.row()?;
        (is_redrawn || now >= self.changed + UNFINISHED).then_some(row)
    }

    /// Time at which something of it is due although nothing more comes; `rows`: whether there are rows.
    pub(super) fn due(&self, rows: bool) -> Option<Instant> {
        let is_prompt = self.screen.row().is_some_and(|(_, is_redrawn)| !is_redrawn);
        let prompt = is_prompt.then_some(if rows { UNFINISHED } else { UNFINISHED_LINE });
        let ended = self.screen.has_left_rows().then_some(ENDED_BAR);
        let first = [prompt, ended].into_iter().flatten().min()?;
        Some(self.changed + first)
    }
}
