//! Thread that takes the packets of the relay and draws.
//!
//! It draws at most every [`FRAME`], unless many bytes wait or the agent awaits the output. Equal
//! lines of several workers become one, as with `--collapse`. An idle view wakes only when the
//! clock in its status row changes. Without a clock it does not wake.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use anstyle::{Effects, Style};
use rdzv_agent_proto::group::WorkerRanks;
use rdzv_console::live::{RankRow, Row, Status, fold_rows, labelled};
use rdzv_core::time::Mono;
use rdzv_event::{Mailbox, poll};
use rustix::event::{PollFd, PollFlags};

use super::labels::Labels;
use super::stream::Stream;
use super::{Command, Readers, ViewOptions};
use crate::logs::capture::Tails;
use crate::logs::collapse::{Fold, Folded};
use crate::logs::console::{Console, Target};
use crate::logs::pty;
use crate::logs::relay::{Packet, Relay, StreamId};

const FRAME: Duration = Duration::from_millis(33);

/// Number of waiting bytes that are drawn immediately.
const MUCH: usize = 256 << 10;

/// Number of bytes per turn; then the thread checks other work.
const TURN: usize = 256 << 10;

/// Maximum number of worker rows, which take at most a third of the terminal.
const MOST_ROWS: usize = 8;

pub(super) struct View {
    options: ViewOptions,
    commands: Mailbox<Command>,
    readers: Arc<Readers>,
    relay: Arc<Relay>,
    tails: Tails,
    labels: Labels,
    streams: BTreeMap<StreamId, Stream>,
    /// Lines of stdout and of stderr that wait for equal ones.
    folds: [Fold; 2],
    /// Workers of the open streams, and of those whose output is still waiting.
    ranks: BTreeMap<StreamId, WorkerRanks>,
    /// Label of the last line and its streams.
    /// Consecutive lines usually come from the same workers.
    label: (Vec<StreamId>, String),
    /// Lines that are not drawn yet.
    lines: Vec<u8>,
    status: Option<Box<Status>>,
    size: (u16, u16),
    is_suspended: bool,
    /// Values to drop once the relay has answered, by number.
    drains: BTreeMap<u64, Box<dyn Send>>,
    next_drain: u64,
    /// Origin of the times in the status.
    origin: Instant,
    drawn: Instant,
    /// `true` if rows may have changed since the last drawing.
    is_dirty: bool,
    is_over: bool,
}

impl View {
    pub(super) fn new(
        options: ViewOptions,
        commands: Mailbox<Command>,
        readers: Arc<Readers>,
        tails: Tails,
        labels: Labels,
        origin: Instant,
    ) -> Self {
        Self {
            origin,
            options,
            commands,
            relay: readers.relay(),
            readers,
            tails,
            labels,
            streams: BTreeMap::new(),
            folds: [Fold::default(), Fold::default()],
            ranks: BTreeMap::new(),
            label: Default::default(),
            lines: Vec::new(),
            status: None,
            size: pty::size(),
            is_suspended: false,
            drains: BTreeMap::new(),
            next_drain: 0,
            drawn: Instant::now(),
            is_dirty: false,
            is_over: false,
        }
    }

    pub(super) fn run(mut self) {
        let mut buffer = Vec::new();
        while self.obey() {
            self.take(&mut buffer);
            let now = Instant::now();
            self.pass(now);
            if self.frame_at().is_some_and(|at| at <= now) {
                self.draw(now);
            }
            self.sleep();
        }
    }

    /// Handles the commands of the agent; returns `false` if there will be no more.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Add(id, ranks, target)) => self.add(id, ranks, target),
                Ok(Command::Status(mut status)) => {
                    if let (Some(old), Some(new)) = (&mut self.status, &mut status)
                        && discriminant(&old.phase) == discriminant(&new.phase)
                    {
                        new.awaited = old.awaited.take();
                    }
                    self.status = status;
                    self.is_dirty = true;
                }
                Ok(Command::Awaited(awaited)) => {
                    if let Some(status) = &mut self.status {
                        status.awaited = Some(awaited);
                        self.is_dirty = true;
                    }
                }
                Ok(Command::Drain(done)) => {
                    let number = self.next_drain;
                    self.next_drain += 1;
                    self.drains.insert(number, done);
                    self.relay.drain(number);
                }
                Ok(Command::Resized) => {
                    self.size = pty::size();
                    self.is_dirty = true;
                }
                Ok(Command::Suspend(is_suspended)) => {
                    self.is_suspended = is_suspended;
                    self.is_dirty = true;
                }
                Ok(Command::End(done)) => {
                    self.status = None;
                    self.is_over = true;
                    self.draw(Instant::now());
                    drop(done);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn add(&mut self, id: StreamId, ranks: WorkerRanks, target: Target) {
        self.streams.insert(id, Stream::new(ranks, target));
        self.ranks.insert(id, ranks);
        self.folds[fold_of(target)].add(id);
    }

    fn take(&mut self, buffer: &mut Vec<u8>) {
        let (mut taken, now) = (0, Instant::now());
        while taken < TURN && self.lines.len() < MUCH {
            let relay = Arc::clone(&self.relay);
            match relay.receive(buffer) {
                Ok(Some(Packet::Output(id, bytes))) => {
                    taken += bytes.len();
                    self.output(id, bytes, now);
                }
                Ok(Some(Packet::Dropped(id, bytes))) => self.dropped(id, bytes, now),
                Ok(Some(Packet::Ended(id))) => self.ended(id, now),
                Ok(Some(Packet::Drained(number))) => self.drained(number, now),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(
                        "the relay of the workers' output exited ({error}); a thread replaces it"
                    );
                    if let Err(error) = self.readers.replace_relay() {
                        tracing::error!(
                            "cannot read the output of the workers any longer: {error}"
                        );
                    }
                    self.relay = self.readers.relay();
                    for number in self.drains.keys() {
                        self.relay.drain(*number);
                    }
                    return;
                }
            }
        }
    }

    /// Handles the commands of the agent if this stream is unknown.
    ///
    /// The agent adds a stream before its first packet, but perhaps after this thread last handled
    /// commands.
    fn learn(&mut self, id: StreamId) {
        if !self.streams.contains_key(&id) {
            self.obey();
        }
    }

    fn output(&mut self, id: StreamId, bytes: &[u8], now: Instant) {
        self.learn(id);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.target == Target::Stderr {
            self.tails.retain(stream.ranks.local_rank, bytes);
        }
        stream.changed = now;
        self.is_dirty = true;
        let at = mono(self.origin, now);
        let fold = &mut self.folds[fold_of(stream.target)];
        if !stream.is_flooding(bytes.len(), now) {
            return stream.take(bytes, at, &mut |block| fold.push(id, block, now));
        }
        // No user reads that much line by line, and comparing lines is most of the work.
        let mut all = Vec::with_capacity(bytes.len());
        stream.take(bytes, at, &mut |block| {
            all.extend_from_slice(block);
            all.push(b'\n');
        });
        if all.pop().is_some() {
            fold.push_alone(id, &all, now);
        }
    }

    fn dropped(&mut self, id: StreamId, bytes: u64, now: Instant) {
        let note = format!("({bytes} bytes were dropped here, because the console was not read)\n");
        self.output(id, note.as_bytes(), now);
    }

    fn ended(&mut self, id: StreamId, now: Instant) {
        self.learn(id);
        self.readers.streams().remove(&id);
        let Some(mut stream) = self.streams.remove(&id) else {
            return;
        };
        self.is_dirty = true;
        let at = mono(self.origin, now);
        let fold = &mut self.folds[fold_of(stream.target)];
        stream.finish(at, &mut |block| fold.push(id, block, now));
        fold.end(id);
    }

    /// Handles an answer of the relay: all output before the request is here.
    fn drained(&mut self, number: u64, now: Instant) {
        for (id, stream) in &mut self.streams {
            let fold = &mut self.folds[fold_of(stream.target)];
            stream
                .blocks
                .finish_whole(&mut |block| fold.push(*id, block, now));
        }
        let streams: Vec<StreamId> = self.ranks.keys().copied().collect();
        for fold in 0..self.folds.len() {
            for id in &streams {
                self.write_while(fold, |fold| fold.release(*id));
            }
        }
        self.draw(now);
        self.drains.remove(&number);
    }

    /// Passes on the output that has waited long enough.
    fn pass(&mut self, now: Instant) {
        let at = mono(self.origin, now);
        for (id, stream) in &mut self.streams {
            let fold = &mut self.folds[fold_of(stream.target)];
            stream.pass(at, now, self.options.rows, &mut |block| {
                fold.push(*id, block, now);
            });
        }
        for fold in 0..self.folds.len() {
            self.write_while(fold, |fold| fold.pop(now));
        }
        let (streams, folds) = (&self.streams, &self.folds);
        if self.ranks.len() > streams.len() {
            self.ranks.retain(|id, _| {
                streams.contains_key(id) || folds.iter().any(|fold| fold.knows(*id))
            });
        }
    }

    fn write_while(&mut self, fold: usize, mut next: impl FnMut(&mut Fold) -> Option<Folded>) {
        while let Some(Folded { streams, text }) = next(&mut self.folds[fold]) {
            if self.label.0 != streams {
                let workers: Vec<WorkerRanks> = streams
                    .iter()
                    .filter_map(|id| self.ranks.get(id).copied())
                    .collect();
                self.label = (streams, self.labels.of(&workers).render());
            }
            labelled(&self.label.1, &text, &mut self.lines);
        }
    }

    /// Returns the time of the next drawing, if there is anything new.
    fn frame_at(&self) -> Option<Instant> {
        if self.lines.len() >= MUCH {
            return Some(self.drawn);
        }
        (self.is_dirty || !self.lines.is_empty()).then(|| self.drawn + FRAME)
    }

    fn draw(&mut self, now: Instant) {
        let width = usize::from(self.size.0);
        let rows = if self.options.rows && !self.is_suspended && !self.is_over {
            self.rows(now)
        } else {
            Vec::new()
        };
        Console::get().draw(&self.lines, rows, width);
        self.lines.clear();
        self.lines.shrink_to(2 * MUCH);
        self.is_dirty = false;
        // During a long write, the thread reads no output of workers.
        self.drawn = Instant::now();
    }

    fn rows(&self, now: Instant) -> Vec<String> {
        // The last column stays free, so that no terminal wraps a row.
        let width = usize::from(self.size.0).saturating_sub(1);
        let mut by_rank: BTreeMap<u32, (Instant, WorkerRanks, &Row)> = BTreeMap::new();
        for stream in self.streams.values() {
            let Some(row) = stream.row(now) else {
                continue;
            };
            let shown =
                by_rank
                    .entry(stream.ranks.rank.0)
                    .or_insert((stream.changed, stream.ranks, row));
            if shown.0 < stream.changed {
                *shown = (stream.changed, stream.ranks, row);
            }
        }
        let workers: Vec<WorkerRanks> = by_rank.values().map(|(_, ranks, _)| *ranks).collect();
        let rows: Vec<RankRow<'_>> = by_rank
            .values()
            .enumerate()
            .map(|(worker, (_, _, row))| RankRow { worker, row })
            .collect();
        let most = MOST_ROWS.min(usize::from(self.size.1) / 3);
        let mut label = |indices: &[usize]| {
            let workers: Vec<WorkerRanks> = indices.iter().map(|index| workers[*index]).collect();
            self.labels.of(&workers)
        };
        let mut rows = fold_rows(&rows, most, width, &mut label);
        if let Some(status) = &self.status {
            let text = Row::plain(&status.row(mono(self.origin, now), width)).text(width);
            let style = if self.options.colours {
                Style::new().effects(Effects::DIMMED)
            } else {
                Style::new()
            };
            rows.push(format!("{style}{text}{}", style.render_reset()));
        }
        rows
    }

    /// Sleeps until packets or commands arrive, or something is due.
    fn sleep(&mut self) {
        let now = Instant::now();
        let has_rows = self.options.rows;
        let streams = self.streams.values();
        // Earlier times have already been handled.
        let rows = streams.filter_map(|stream| stream.due(has_rows).filter(|at| *at > now));
        let blocks = self
            .streams
            .values()
            .filter_map(|stream| stream.blocks.deadline());
        let blocks = blocks.map(|at| self.origin + at.since(Mono::ZERO));
        let folds = self.folds.iter().filter_map(Fold::deadline);
        let status = self.status.as_ref();
        let shown = status.filter(|_| self.options.rows && !self.is_suspended);
        let tick = shown.map(|status| {
            let drawn = mono(self.origin, self.drawn);
            self.origin + status.changes_at(drawn).since(Mono::ZERO)
        });
        let due = rows
            .chain(blocks)
            .chain(folds)
            .chain(self.frame_at())
            .chain(tick)
            .min();
        let timeout = due.map(|at| at.saturating_duration_since(now));
        let full = self.lines.len() >= MUCH;
        let mut waited = vec![PollFd::new(&self.commands, PollFlags::IN)];
        if !full {
            waited.push(PollFd::new(&*self.relay, PollFlags::IN));
        }
        let _ = poll(&mut waited, timeout);
        drop(waited);
        self.commands.drain();
        let now = Instant::now();
        let is_due = |stream: &Stream| {
            let due = stream.due(has_rows);
            due.is_some_and(|at| at > self.drawn && at <= now)
        };
        self.is_dirty |= self.streams.values().any(is_due);
        self.is_dirty |= tick.is_some_and(|tick| tick <= now);
    }
}

fn mono(origin: Instant, at: Instant) -> Mono {
    Mono::from_origin(at.saturating_duration_since(origin))
}

fn fold_of(target: Target) -> usize {
    match target {
        Target::Stdout => 0,
        Target::Stderr => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use rdzv_core::rank::{LocalRank, Rank, RoleRank};
    use rdzv_event::mailbox;

    use super::*;
    use crate::logs::pty::Ends;

    #[test]
    fn output_that_precedes_the_look_at_the_commands_is_not_lost() {
        let (agent, commands) = mailbox().unwrap();
        let readers = Arc::new(Readers {
            relay: Mutex::new(Arc::new(Relay::start_thread().unwrap())),
            streams: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let options = ViewOptions {
            rows: false,
            terminals: false,
            colours: false,
            workers: 1,
        };
        let (labels, tails, now) = (Labels::new(options), Tails::default(), Instant::now());
        let mut view = View::new(options, commands, readers, tails, labels, now);
        let ranks = WorkerRanks {
            local_rank: LocalRank(0),
            rank: Rank(0),
            world_size: 1,
            role_rank: RoleRank(0),
            role_world_size: 1,
        };
        agent.send(Command::Add(0, ranks, Target::Stderr));
        let Ends { reader, writer } = pty::open_pipe().unwrap();
        rustix::io::write(&writer, b"a line\n").unwrap();
        drop(writer);
        view.relay.add(0, reader.as_fd()).unwrap();
        let mut buffer = Vec::new();
        while view.tails.of(LocalRank(0)).0.is_empty() {
            assert!(
                now.elapsed() < Duration::from_secs(10),
                "the output is lost"
            );
            let _ = poll(&mut [PollFd::new(&*view.relay, PollFlags::IN)], Some(FRAME));
            view.take(&mut buffer);
        }
        assert_eq!(view.tails.of(LocalRank(0)).0, b"a line\n");
    }
}
