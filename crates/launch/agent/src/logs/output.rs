//! Path of lines from the log readers to the console.
//!
//! This path adds prefixes, and folds equal lines if requested.

use std::collections::BTreeMap;
use std::time::Instant;

use rdzv_agent_proto::group::{WorkerRanks, environment};

use super::collapse::{Fold, Folded, StreamId};
use super::console::{Batch, Console, Target};
use super::line_assembler::Piece;

/// Stream number of folded lines; readers never reach it.
const FOLDED: StreamId = u64::MAX;

/// Parts of a prefix.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    pub(super) template: String,
    pub(super) role: String,
    pub(super) hostname: String,
}

impl Labels {
    /// Returns the prefix of a line of these workers.
    pub(super) fn prefix(&self, workers: &[WorkerRanks]) -> String {
        environment::line_prefix(&self.template, &self.role, workers, &self.hostname)
    }
}

/// One stream of one worker.
#[derive(Debug)]
pub(super) struct LogStream {
    pub(super) id: StreamId,
    pub(super) target: Target,
    pub(super) ranks: WorkerRanks,
    pub(super) prefix: Vec<u8>,
}

/// Writes a batch. Without a reader, only the files get the output.
fn write(console: &Console, target: Target, stream: StreamId, batch: &mut Batch) {
    let _ = console.write(target, stream, batch);
}

/// Path of all lines to the console.
#[derive(Debug)]
pub(super) struct Output {
    console: &'static Console,
    batch: Batch,
    folds: Option<Folds>,
}

/// Lines that wait for equal lines of other workers.
#[derive(Debug)]
struct Folds {
    labels: Labels,
    ranks: BTreeMap<StreamId, WorkerRanks>,
    stdout: Fold,
    stderr: Fold,
    /// Last prefix and its streams.
    /// Consecutive lines usually come from the same workers.
    prefix: (Vec<StreamId>, Vec<u8>),
}

impl Output {
    /// Creates an output; with `collapse`, equal lines of workers become one.
    pub(super) fn new(collapse: Option<Labels>) -> Self {
        Self {
            console: Console::get(),
            batch: Batch::default(),
            folds: collapse.map(|labels| Folds {
                labels,
                ranks: BTreeMap::new(),
                stdout: Fold::default(),
                stderr: Fold::default(),
                prefix: Default::default(),
            }),
        }
    }

    /// Adds a stream.
    pub(super) fn add(&mut self, stream: &LogStream) {
        if let Some(folds) = &mut self.folds {
            folds.ranks.insert(stream.id, stream.ranks);
            folds.of(stream.target).add(stream.id);
        }
    }

    /// Adds a piece; [`Output::flush`] writes it to the console.
    /// A line that waits for equal lines appears later.
    pub(super) fn take(&mut self, stream: &LogStream, piece: Piece<'_>, now: Instant) {
        let whole = piece.ended && piece.begun.is_none();
        if let (Some(folds), true) = (&mut self.folds, whole) {
            folds.of(stream.target).push(stream.id, piece.text, now);
            return;
        }
        // This piece does not wait, nor do the lines before it.
        self.write_while(stream.target, |fold| fold.release(stream.id));
        self.batch.add(&stream.prefix, piece);
        if self.batch.is_full() || self.folds.is_some() {
            self.flush(stream);
        }
    }

    /// Writes the pieces that were added from this stream.
    pub(super) fn flush(&mut self, stream: &LogStream) {
        write(self.console, stream.target, stream.id, &mut self.batch);
    }

    /// Writes the lines whose window has expired.
    pub(super) fn write_folded(&mut self, now: Instant) {
        for target in [Target::Stdout, Target::Stderr] {
            self.write_while(target, |fold| fold.pop(now));
        }
    }

    /// Returns the time at which the next waiting line is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let folds = self.folds.as_ref()?;
        rdzv_core::time::earliest([folds.stdout.deadline(), folds.stderr.deadline()])
    }

    /// Marks a stream as ended.
    pub(super) fn end(&mut self, stream: &LogStream) {
        if let Some(folds) = &mut self.folds {
            folds.of(stream.target).end(stream.id);
        }
    }

    /// Returns `true` if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.folds
            .as_ref()
            .is_none_or(|folds| folds.stdout.is_empty() && folds.stderr.is_empty())
    }

    fn write_while(&mut self, target: Target, mut next: impl FnMut(&mut Fold) -> Option<Folded>) {
        let Some(folds) = &mut self.folds else {
            return;
        };
        while let Some(line) = next(folds.of(target)) {
            let prefix = folds.prefix(line.streams);
            let line = Piece {
                text: &line.text,
                begun: None,
                ended: true,
            };
            self.batch.add(prefix, line);
            if self.batch.is_full() {
                write(self.console, target, FOLDED, &mut self.batch);
            }
        }
        write(self.console, target, FOLDED, &mut self.batch);
        if folds.stdout.is_empty() && folds.stderr.is_empty() {
            folds.forget_ended();
        }
    }
}

impl Folds {
    fn of(&mut self, target: Target) -> &mut Fold {
        match target {
            Target::Stdout => &mut self.stdout,
            Target::Stderr => &mut self.stderr,
        }
    }

    fn prefix(&mut self, streams: Vec<StreamId>) -> &[u8] {
        if self.prefix.0 != streams {
            let workers: Vec<WorkerRanks> = streams
                .iter()
                .filter_map(|stream| self.ranks.get(stream).copied())
                .collect();
            self.prefix = (streams, self.labels.prefix(&workers).into_bytes());
        }
        &self.prefix.1
    }

    /// Forgets the streams that have ended.
    fn forget_ended(&mut self) {
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        self.ranks
            .retain(|stream, _| stdout.knows(*stream) || stderr.knows(*stream));
    }
}
