//! Decides which lines of several workers become one.
//!
//! The lines of each worker wait in a separate queue, for at most one window. Lines leave only from
//! the heads of the queues, so the lines of a worker stay in order. A line leaves
//!
//! * immediately, if it is at the heads of all streams that have not ended or still have lines;
//! * when it reaches the head of its queue, if it is not compared;
//! * otherwise when its window has expired, together with the equal heads. It leaves earlier if too
//!   many bytes wait, if all streams have ended, or if the caller releases it. If a worker has the
//!   line further back in its queue, the lines before it leave first. This aligns output that is
//!   the same except for some lines, such as tracebacks.
//!
//! This module only decides: the time is an argument, and the module reads and writes nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Maximum time that a line waits for equal lines of other streams.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

/// Limit on the bytes that may wait; beyond it, lines leave before their time.
const MOST_BYTES: usize = 2 << 20;

/// Number of lines that are searched in other queues.
/// Workers that are further apart are not aligned.
const FURTHEST: usize = 64;

/// Memory of a waiting line in addition to its text.
const EACH: usize = 32;

pub(super) type StreamId = u64;

/// Text that waits in at least one queue.
/// Equal waiting texts share one allocation, unless they are not compared.
#[derive(Debug, Clone)]
struct Text {
    bytes: Rc<[u8]>,
    is_compared: bool,
}

impl Text {
    fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.bytes, &other.bytes)
    }
}

#[derive(Debug)]
struct Waiting {
    text: Text,
    due: Instant,
    /// Arrival number over all queues.
    order: u64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Waiting>,
    ended: bool,
}

/// Lines that wait for equal lines.
#[derive(Debug, Default)]
pub(super) struct Fold {
    queues: BTreeMap<StreamId, Queue>,
    /// Number of waiting lines with each compared text.
    texts: HashMap<Rc<[u8]>, usize>,
    bytes: usize,
    arrived: u64,
    /// Streams of the line that left last.
    last: Vec<StreamId>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Folded {
    /// Streams of the line, in ascending order.
    pub(super) streams: Vec<StreamId>,
    /// Text of the line, without its end.
    pub(super) text: Rc<[u8]>,
}

impl Fold {
    pub(super) fn add(&mut self, stream: StreamId) {
        self.queues.entry(stream).or_default();
    }

    pub(super) fn end(&mut self, stream: StreamId) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.ended = true;
        }
        self.forget_ended();
    }

    /// Adds a line, without its end.
    pub(super) fn push(&mut self, stream: StreamId, text: &[u8], now: Instant) {
        let text = Text {
            bytes: self.intern(text),
            is_compared: true,
        };
        self.enqueue(stream, text, now + WINDOW);
    }

    /// Adds text that is compared with no other text.
    /// It waits only for the lines before it.
    pub(super) fn push_alone(&mut self, stream: StreamId, text: &[u8], now: Instant) {
        self.bytes += size(text);
        let text = Text {
            bytes: text.into(),
            is_compared: false,
        };
        self.enqueue(stream, text, now);
    }

    fn enqueue(&mut self, stream: StreamId, text: Text, due: Instant) {
        self.arrived += 1;
        self.bytes += EACH;
        let order = self.arrived;
        let queue = self.queues.entry(stream).or_default();
        queue.lines.push_back(Waiting { text, due, order });
    }

    /// Returns the next line that leaves now, if any.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Folded> {
        let line = self.unanimous().or_else(|| self.due(now))?;
        Some(self.leave(&line))
    }

    /// Makes a line of a stream leave now.
    /// If another line must leave before it, returns that line. The caller repeats the call.
    pub(super) fn release(&mut self, stream: StreamId) -> Option<Folded> {
        let line = self.head(stream)?.text.clone();
        let line = self.clear_the_way(line);
        Some(self.leave(&line))
    }

    /// Returns the time of the next line of [`Fold::pop`] if no more lines arrive.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.heads().map(|(_, head)| head.due).min()
    }

    /// Returns `true` unless this stream has ended and no line of it waits.
    pub(super) fn knows(&self, stream: StreamId) -> bool {
        self.queues.contains_key(&stream)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn unanimous(&self) -> Option<Text> {
        let mut common: Option<&Text> = None;
        for queue in self.queues.values() {
            let head = &queue.lines.front()?.text;
            if common.is_some_and(|common| !common.is(head)) {
                return None;
            }
            common = Some(head);
        }
        common.cloned()
    }

    /// Returns the next line that leaves because its window has expired.
    /// If too many bytes wait, or all streams have ended, any window counts as expired. A line with
    /// the same streams as the last one comes first, so that lines that belong together stay
    /// together. Otherwise the oldest line comes first.
    fn due(&self, now: Instant) -> Option<Text> {
        let hurry = self.bytes > MOST_BYTES || self.queues.values().all(|queue| queue.ended);
        let is_due = |head: &&Waiting| hurry || head.due <= now;
        let of_last = self.last.first().and_then(|stream| self.head(*stream));
        let same = of_last
            .filter(is_due)
            .filter(|head| self.last == self.streams(&head.text));
        let oldest = || {
            let heads = self.heads().map(|(_, head)| head);
            heads.filter(is_due).min_by_key(|head| head.order)
        };
        Some(self.clear_the_way(same.or_else(oldest)?.text.clone()))
    }

    /// Returns the line that leaves next: `line`, or one that waits before it.
    /// `line` can then leave all queues that contain it at the same time.
    fn clear_the_way(&self, line: Text) -> Text {
        let mut line = line;
        let mut seen = Vec::new();
        while let Some(ahead) = self.ahead_of(&line) {
            seen.push(line.clone());
            if seen.iter().any(|seen| seen.is(&ahead)) {
                // Two workers have the same lines in a different order.
                break;
            }
            line = ahead;
        }
        line
    }

    /// Returns the head of a queue in which this line waits further back.
    fn ahead_of(&self, line: &Text) -> Option<Text> {
        if !line.is_compared {
            return None;
        }
        let waiting = self.texts.get(&line.bytes).copied().unwrap_or(0);
        let at_heads = self.streams(line).len();
        // Empty lines and rulers are everywhere; they align nothing.
        if waiting == at_heads || !line.bytes.iter().any(u8::is_ascii_alphanumeric) {
            return None;
        }
        self.queues.values().find_map(|queue| {
            let mut lines = queue.lines.iter().take(FURTHEST);
            let head = &lines.next()?.text;
            let behind = !head.is(line) && lines.any(|waiting| waiting.text.is(line));
            behind.then(|| head.clone())
        })
    }

    fn heads(&self) -> impl Iterator<Item = (StreamId, &Waiting)> {
        self.queues
            .iter()
            .filter_map(|(stream, queue)| Some((*stream, queue.lines.front()?)))
    }

    fn head(&self, stream: StreamId) -> Option<&Waiting> {
        self.queues.get(&stream)?.lines.front()
    }

    /// Returns the streams that have this line at the head.
    fn streams(&self, line: &Text) -> Vec<StreamId> {
        self.heads()
            .filter(|(_, head)| head.text.is(line))
            .map(|(stream, _)| stream)
            .collect()
    }

    /// Removes a line from all heads that equal it.
    fn leave(&mut self, line: &Text) -> Folded {
        let streams = self.streams(line);
        for stream in &streams {
            if let Some(queue) = self.queues.get_mut(stream) {
                queue.lines.pop_front();
                self.bytes -= EACH;
            }
        }
        if !line.is_compared {
            self.bytes -= size(&line.bytes);
        } else if let Some(count) = self.texts.get_mut(&line.bytes) {
            *count -= streams.len();
            if *count == 0 {
                self.texts.remove(&line.bytes);
                self.bytes -= size(&line.bytes);
            }
        }
        self.forget_ended();
        self.last.clone_from(&streams);
        Folded {
            streams,
            text: Rc::clone(&line.bytes),
        }
    }

    fn intern(&mut self, text: &[u8]) -> Rc<[u8]> {
        let known = self.texts.get_key_value(text);
        let text = known.map_or_else(|| text.into(), |(known, _)| Rc::clone(known));
        let count = self.texts.entry(Rc::clone(&text)).or_default();
        if *count == 0 {
            self.bytes += size(&text);
        }
        *count += 1;
        text
    }

    fn forget_ended(&mut self) {
        self.queues
            .retain(|_, queue| !(queue.ended && queue.lines.is_empty()));
    }
}

fn size(text: &[u8]) -> usize {
    text.len() + 3 * EACH
}

#[cfg(test)]
mod tests;
