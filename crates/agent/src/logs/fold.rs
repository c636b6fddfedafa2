//! Decides which lines of several workers become one.
//!
//! Each worker's lines wait in a queue of its own, for one window at most. Lines leave from the
//! heads of the queues only, so the order of a worker's lines is kept; a line leaves
//!
//! * at once, if all who can still speak have it at their heads;
//! * else when its window is over, together with the heads that are equal. A worker that has the
//!   line further back in its queue first gets rid of what stands before it. That aligns output
//!   that is the same but for some lines: tracebacks, say.
//!
//! This is a decision only: times are handed in, nothing is read or written.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a line waits for others to say the same.
pub(super) const WINDOW: Duration = Duration::from_millis(100);

/// How many bytes wait at most; beyond that, the oldest lines wait no longer.
const MOST_BYTES: usize = 2 << 20;

/// How far a line is looked for in other queues. Workers that are further apart are not aligned.
const FURTHEST: usize = 64;

/// What a waiting line takes beside its text.
const EACH: usize = 32;

/// Who says something: one stream of one worker.
pub(super) type Speaker = u64;

/// A text that waits in at least one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    bytes: Rc<[u8]>,
    number: u64,
}

#[derive(Debug)]
struct Waiting {
    text: Text,
    due: Instant,
    /// By arrival, over all queues.
    order: u64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Waiting>,
    /// Nothing more will come.
    ended: bool,
}

/// The lines that wait.
#[derive(Debug, Default)]
pub(super) struct Fold {
    queues: BTreeMap<Speaker, Queue>,
    /// Each text that waits somewhere, and how often it waits.
    texts: HashMap<Rc<[u8]>, (Text, usize)>,
    bytes: usize,
    arrived: u64,
    /// Who said the line that left last.
    last: Vec<Speaker>,
}

/// A line that leaves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Folded {
    /// Who said it, in ascending order.
    pub(super) speakers: Vec<Speaker>,
    /// The line, without its end.
    pub(super) text: Rc<[u8]>,
}

impl Fold {
    /// Counts with a speaker from now on.
    pub(super) fn add(&mut self, speaker: Speaker) {
        self.queues.entry(speaker).or_default();
    }

    /// A speaker will say nothing more.
    pub(super) fn end(&mut self, speaker: Speaker) {
        if let Some(queue) = self.queues.get_mut(&speaker) {
            queue.ended = true;
        }
        self.forget_silent();
    }

    /// A line arrives, without its end.
    pub(super) fn push(&mut self, speaker: Speaker, text: &[u8], now: Instant) {
        self.arrived += 1;
        let text = self.intern(text);
        self.bytes += EACH;
        self.queues
            .entry(speaker)
            .or_default()
            .lines
            .push_back(Waiting {
                text,
                due: now + WINDOW,
                order: self.arrived,
            });
    }

    /// The next line that leaves now, if any does.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Folded> {
        let line = self.unanimous().or_else(|| self.due(now))?;
        Some(self.leave(&line))
    }

    /// Lets all lines of a speaker leave, and what has to leave before them.
    pub(super) fn release(&mut self, speaker: Speaker) -> Option<Folded> {
        let line = self.head(speaker)?.text.clone();
        let line = self.clear_the_way(line);
        Some(self.leave(&line))
    }

    /// When [`Fold::pop`] has something, unless more arrives before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.heads().map(|(_, head)| head.due).min()
    }

    /// Whether this speaker may still say something, or something of it waits.
    pub(super) fn knows(&self, speaker: Speaker) -> bool {
        self.queues.contains_key(&speaker)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The line that everybody who can still speak has at the head.
    fn unanimous(&self) -> Option<Text> {
        let mut common: Option<&Text> = None;
        for queue in self.queues.values() {
            let head = &queue.lines.front()?.text;
            if common.is_some_and(|common| common.number != head.number) {
                return None;
            }
            common = Some(head);
        }
        common.cloned()
    }

    /// A line whose window is over; of several, one of those who spoke last, so that what belongs
    /// together stays together, else the oldest.
    fn due(&self, now: Instant) -> Option<Text> {
        let hurry = self.bytes > MOST_BYTES || self.queues.values().all(|queue| queue.ended);
        let is_due = |head: &&Waiting| hurry || head.due <= now;
        let of_last = self.last.first().and_then(|speaker| self.head(*speaker));
        let same = of_last
            .filter(is_due)
            .filter(|head| self.last == self.speakers(&head.text));
        let oldest = || {
            let heads = self.heads().map(|(_, head)| head);
            heads.filter(is_due).min_by_key(|head| head.order)
        };
        Some(self.clear_the_way(same.or_else(oldest)?.text.clone()))
    }

    /// The line that has to leave first so that `line` can leave with all who have it waiting.
    fn clear_the_way(&self, line: Text) -> Text {
        let mut line = line;
        let mut seen = Vec::new();
        while let Some(ahead) = self.ahead_of(&line) {
            seen.push(line.number);
            if seen.contains(&ahead.number) {
                // Two workers say the same in another order.
                break;
            }
            line = ahead;
        }
        line
    }

    /// What stands before this line in the queue of somebody who has it waiting further back.
    fn ahead_of(&self, line: &Text) -> Option<Text> {
        let waiting = self.texts.get(&line.bytes).map_or(0, |(_, count)| *count);
        let at_heads = self
            .heads()
            .filter(|(_, head)| head.text.number == line.number)
            .count();
        // Empty lines and rulers are everywhere; they align nothing.
        if waiting == at_heads || !line.bytes.iter().any(u8::is_ascii_alphanumeric) {
            return None;
        }
        self.queues.values().find_map(|queue| {
            let mut lines = queue.lines.iter().take(FURTHEST);
            let head = &lines.next()?.text;
            let behind = head.number != line.number
                && lines.any(|waiting| waiting.text.number == line.number);
            behind.then(|| head.clone())
        })
    }

    fn heads(&self) -> impl Iterator<Item = (Speaker, &Waiting)> {
        self.queues
            .iter()
            .filter_map(|(speaker, queue)| Some((*speaker, queue.lines.front()?)))
    }

    fn head(&self, speaker: Speaker) -> Option<&Waiting> {
        self.queues.get(&speaker)?.lines.front()
    }

    /// Who has this line at the head.
    fn speakers(&self, line: &Text) -> Vec<Speaker> {
        self.heads()
            .filter(|(_, head)| head.text.number == line.number)
            .map(|(speaker, _)| speaker)
            .collect()
    }

    /// Takes a line off the heads that have it.
    fn leave(&mut self, line: &Text) -> Folded {
        let speakers = self.speakers(line);
        for speaker in &speakers {
            if let Some(queue) = self.queues.get_mut(speaker) {
                queue.lines.pop_front();
                self.bytes -= EACH;
            }
        }
        if let Some((_, count)) = self.texts.get_mut(&line.bytes) {
            *count -= speakers.len();
            if *count == 0 {
                self.texts.remove(&line.bytes);
                self.bytes -= size(&line.bytes);
            }
        }
        self.forget_silent();
        self.last.clone_from(&speakers);
        Folded {
            speakers,
            text: Rc::clone(&line.bytes),
        }
    }

    fn intern(&mut self, text: &[u8]) -> Text {
        if let Some((text, count)) = self.texts.get_mut(text) {
            *count += 1;
            return text.clone();
        }
        let text = Text {
            bytes: text.into(),
            number: self.arrived,
        };
        self.bytes += size(&text.bytes);
        let key = Rc::clone(&text.bytes);
        self.texts.insert(key, (text.clone(), 1));
        text
    }

    fn forget_silent(&mut self) {
        self.queues
            .retain(|_, queue| !(queue.ended && queue.lines.is_empty()));
    }
}

/// What a text takes that waits somewhere.
fn size(text: &[u8]) -> usize {
    text.len() + 3 * EACH
}

#[cfg(test)]
mod tests;
