//! From the pieces that sources read to the console: with prefixes, and folded if that is wanted.

use std::collections::BTreeMap;
use std::time::Instant;

use rdzv_agent_proto::group::{WorkerRanks, environment};

use super::console::{Batch, Console, Target};
use super::fold::{Fold, Folded};
use super::lines::Piece;

/// The number under which folded lines are written; no source gets this far.
const FOLDED: u64 = u64::MAX;

/// How prefixes are made.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    pub(super) template: String,
    pub(super) role: String,
    pub(super) hostname: String,
}

impl Labels {
    /// What stands before a line of these workers.
    pub(super) fn prefix(&self, places: &[WorkerRanks]) -> String {
        environment::line_prefix(&self.template, &self.role, places, &self.hostname)
    }
}

/// Who speaks.
#[derive(Debug)]
pub(super) struct Voice {
    pub(super) number: u64,
    pub(super) target: Target,
    pub(super) place: WorkerRanks,
    pub(super) prefix: Vec<u8>,
}

/// The way to the console.
#[derive(Debug)]
pub(super) struct Output {
    console: &'static Console,
    batch: Batch,
    folds: Option<Folds>,
}

/// Lines that wait for others to say the same.
#[derive(Debug)]
struct Folds {
    labels: Labels,
    places: BTreeMap<u64, WorkerRanks>,
    stdout: Fold,
    stderr: Fold,
    /// The last prefix, and whose it was: most lines come from the same workers as the one before.
    prefix: (Vec<u64>, Vec<u8>),
}

impl Output {
    /// With `collapse`, equal lines of several workers become one.
    pub(super) fn new(collapse: Option<Labels>) -> Self {
        Self {
            console: Console::get(),
            batch: Batch::default(),
            folds: collapse.map(|labels| Folds {
                labels,
                places: BTreeMap::new(),
                stdout: Fold::default(),
                stderr: Fold::default(),
                prefix: Default::default(),
            }),
        }
    }

    /// Somebody will speak.
    pub(super) fn add(&mut self, voice: &Voice) {
        if let Some(folds) = &mut self.folds {
            folds.places.insert(voice.number, voice.place);
            folds.of(voice.target).add(voice.number);
        }
    }

    /// Takes a piece. It need not be on the console before [`Output::flush`], or later if it waits
    /// for others.
    pub(super) fn take(&mut self, voice: &Voice, piece: Piece<'_>, now: Instant) {
        let whole = piece.ended && piece.begun.is_none();
        if let (Some(folds), true) = (&mut self.folds, whole) {
            folds.of(voice.target).push(voice.number, piece.text, now);
            return;
        }
        self.release(voice);
        self.batch.add(&voice.prefix, piece);
        if self.batch.is_full() || self.folds.is_some() {
            self.flush(voice);
        }
    }

    /// Writes what was taken from this voice.
    pub(super) fn flush(&mut self, voice: &Voice) {
        self.console
            .write(voice.target, voice.number, &mut self.batch);
    }

    /// Writes what has waited long enough for others.
    pub(super) fn write_folded(&mut self, now: Instant) {
        for target in [Target::Stdout, Target::Stderr] {
            self.write_while(target, |fold| fold.pop(now));
        }
    }

    /// When there is something to write that waits now.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let folds = self.folds.as_ref()?;
        let deadlines = [folds.stdout.deadline(), folds.stderr.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Somebody has said everything.
    pub(super) fn end(&mut self, voice: &Voice) {
        if let Some(folds) = &mut self.folds {
            folds.of(voice.target).end(voice.number);
        }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.folds
            .as_ref()
            .is_none_or(|folds| folds.stdout.is_empty() && folds.stderr.is_empty())
    }

    /// A piece of a line waits for nobody, nor does what was said before it.
    fn release(&mut self, voice: &Voice) {
        self.write_while(voice.target, |fold| fold.release(voice.number));
    }

    fn write_while(&mut self, target: Target, mut next: impl FnMut(&mut Fold) -> Option<Folded>) {
        let Some(folds) = &mut self.folds else {
            return;
        };
        while let Some(line) = next(folds.of(target)) {
            let prefix = folds.prefix(line.speakers);
            let line = Piece {
                text: &line.text,
                begun: None,
                ended: true,
            };
            self.batch.add(prefix, line);
            if self.batch.is_full() {
                self.console.write(target, FOLDED, &mut self.batch);
            }
        }
        self.console.write(target, FOLDED, &mut self.batch);
        if folds.stdout.is_empty() && folds.stderr.is_empty() {
            folds.forget_places();
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

    fn prefix(&mut self, speakers: Vec<u64>) -> &[u8] {
        if self.prefix.0 != speakers {
            let places: Vec<WorkerRanks> = speakers
                .iter()
                .filter_map(|speaker| self.places.get(speaker).copied())
                .collect();
            self.prefix = (speakers, self.labels.prefix(&places).into_bytes());
        }
        &self.prefix.1
    }

    /// Forgets those who have ended.
    fn forget_places(&mut self) {
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        self.places
            .retain(|speaker, _| stdout.knows(*speaker) || stderr.knows(*speaker));
    }
}
