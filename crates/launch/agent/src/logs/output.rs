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

#[derive(Debug, Clone)]
pub(super) struct Labels {
    pub(super) template: String,
    pub(super) role: String,
    pub(super) hostname: String,
}

impl Labels {
    pub(super) fn prefix(&self, workers: &[WorkerRanks]) -> String {
        environment::line_prefix(&self.template, &self.role, workers, &self.hostname)
    }
}

#[derive(Debug)]
pub(super) struct LogStream {
    pub(super) id: StreamId,
    pub(super) target: Target,
    pub(super) ranks: WorkerRanks,
    pub(super) prefix: Vec<u8>,
}

/// Writes a batch to the console; an error leaves the output only in the files.
fn write(console: &Console, target: Target, stream: StreamId, batch: &mut Batch) {
    let _ = console.write(target, stream, batch);
}

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

    pub(super) fn flush(&mut self, stream: &LogStream) {
        write(self.console, stream.target, stream.id, &mut self.batch);
    }

    /// Writes the folded lines that need not wait any longer.
    pub(super) fn write_folded(&mut self, now: Instant) {
        for target in [Target::Stdout, Target::Stderr] {
            self.write_while(target, |fold| fold.pop(now));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let folds = self.folds.as_ref()?;
        rdzv_core::time::earliest([folds.stdout.deadline(), folds.stderr.deadline()])
    }

    pub(super) fn end(&mut self, stream: &LogStream) {
        if let Some(folds) = &mut self.folds {
            folds.of(stream.target).end(stream.id);
        }
    }

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

    fn forget_ended(&mut self) {
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        self.ranks
            .retain(|stream, _| stdout.knows(*stream) || stderr.knows(*stream));
    }
}
