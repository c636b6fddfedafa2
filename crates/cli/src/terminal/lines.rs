//! Lines for stderr that a stalled reader does not hold up.
//!
//! Whoever pages through the output of a run (`| less`, Ctrl-S) lets its pipe fill up, and the next
//! write to it waits. The agent must not: it has workers to look after. So from [`start_lines`] on
//! a thread of their own writes the lines, and callers only queue them. None of them gets into a
//! line of a worker, nor the other way round: the agent, which writes those, writes these too.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rdzv_agent::write_own_lines;

/// Most bytes that wait to be written; what comes while there are more is lost, and counted.
const MOST_WAITING: usize = 4 << 20;

static QUEUE: OnceLock<Sender<Order>> = OnceLock::new();
static WAITING: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);

enum Order {
    Write(Vec<u8>),
    /// Answer when everything before this has been written.
    Finish(Sender<()>),
}

/// Writes to stderr, each call in one piece: at once, or through the queue once there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineWriter;

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(queue) = QUEUE.get() else {
            write_own_lines(bytes);
            return Ok(bytes.len());
        };
        if WAITING.fetch_add(bytes.len(), Ordering::Relaxed) > MOST_WAITING {
            WAITING.fetch_sub(bytes.len(), Ordering::Relaxed);
            LOST.fetch_add(1, Ordering::Relaxed);
        } else {
            // The thread never ends before the program does.
            let _ = queue.send(Order::Write(bytes.to_vec()));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From here on lines are queued. To be called once, by a process that has workers to look after;
/// if no thread can be had, lines go on being written at once.
pub(crate) fn start_lines() {
    let (queue, orders) = channel();
    let thread = thread::Builder::new()
        .name("stderr".to_owned())
        .stack_size(128 << 10);
    if thread.spawn(move || write_out(&orders)).is_ok() {
        let _ = QUEUE.set(queue);
    }
}

/// Waits until everything queued has been written, for so long at most; `None` is for ever.
pub(crate) fn finish_lines(patience: Option<Duration>) {
    let Some(queue) = QUEUE.get() else {
        return;
    };
    let (done, finished) = channel();
    let _ = queue.send(Order::Finish(done));
    let _ = match patience {
        Some(patience) => finished.recv_timeout(patience).ok(),
        None => finished.recv().ok(),
    };
}

fn write_out(orders: &Receiver<Order>) {
    for order in orders {
        match order {
            Order::Write(bytes) => {
                write_own_lines(&bytes);
                WAITING.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
            Order::Finish(done) => {
                let _ = done.send(());
            }
        }
        let lost = LOST.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let note = format!("rdzv: {lost} lines were lost here, because nobody read stderr\n");
            write_own_lines(note.as_bytes());
        }
    }
}
