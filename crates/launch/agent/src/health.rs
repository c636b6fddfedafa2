//! Checks whether the agent's own threads make progress.
//!
//! Threads do not update a timestamp, because idle threads sleep. [`Liveness::check`] asks each
//! thread to answer, and the next check finds the threads that did not. Without a check, health
//! costs nothing. A thread hangs if it has not answered a question within the limit.
//!
//! ```text
//!   check ── ping ──► agent loop, rendezvous, store server
//!   check ◄── alive ─┘   no answer for longer than the limit: silent
//! ```

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdzv_store::Pinger;

/// Time of silence after which a thread counts as hung: torchelastic's limit.
pub const SILENCE: Duration = Duration::from_secs(60);

/// Time that a check waits for answers; running threads answer immediately.
const ANSWERING: Duration = Duration::from_millis(100);

/// Threads that must make progress; clones share one list.
#[derive(Clone, Default)]
pub struct Liveness(Arc<Mutex<Threads>>);

#[derive(Default)]
struct Threads {
    next: u64,
    list: Vec<Thread>,
}

struct Thread {
    number: u64,
    name: &'static str,
    pinger: Pinger,
    /// Time and channel of the question that has no answer yet.
    asked: Option<(Instant, Receiver<()>)>,
}

/// Liveness of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Name of the thread.
    pub name: &'static str,
    /// Time since an unanswered question, or zero; `None` if the thread exited.
    pub silent: Option<Duration>,
}

impl Pulse {
    /// Returns `true` if the thread was silent for at most `limit`.
    pub fn is_alive(&self, limit: Duration) -> bool {
        self.silent.is_some_and(|silent| silent <= limit)
    }
}

/// Guard that removes its thread from the list when dropped.
/// After that, the exit of the thread is not reported.
#[must_use = "the thread is watched for as long as this lives"]
pub struct Watched {
    threads: Liveness,
    number: u64,
}

impl Liveness {
    /// Creates an empty list of threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the liveness of every thread; waits up to 100 ms.
    pub fn check(&self) -> Vec<Pulse> {
        self.ask();
        let deadline = Instant::now() + ANSWERING;
        let mut threads = self.lock();
        let pulses = threads.list.iter_mut().map(|thread| Pulse {
            name: thread.name,
            silent: thread.receive(deadline),
        });
        pulses.collect()
    }

    fn ask(&self) {
        for thread in &mut self.lock().list {
            // A late answer counts too.
            if let Some((_, answers)) = &thread.asked
                && answers.try_recv().is_ok()
            {
                thread.asked = None;
            }
            if thread.asked.is_none() {
                let (alive, answers) = channel();
                (thread.pinger)(alive);
                thread.asked = Some((Instant::now(), answers));
            }
        }
    }

    /// Watches one more thread until the returned guard is dropped.
    pub fn watch(&self, name: &'static str, pinger: Pinger) -> Watched {
        let mut threads = self.lock();
        let number = threads.next;
        threads.next += 1;
        threads.list.push(Thread {
            number,
            name,
            pinger,
            asked: None,
        });
        Watched {
            threads: self.clone(),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Thread {
    /// Returns the time of silence; waits for an answer until `deadline`.
    fn receive(&mut self, deadline: Instant) -> Option<Duration> {
        let Some((since, answers)) = &self.asked else {
            return Some(Duration::ZERO);
        };
        let timeout = deadline.saturating_duration_since(Instant::now());
        match answers.recv_timeout(timeout) {
            Ok(()) => {
                self.asked = None;
                Some(Duration::ZERO)
            }
            Err(RecvTimeoutError::Timeout) => Some(since.elapsed()),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let number = self.number;
        self.threads
            .lock()
            .list
            .retain(|thread| thread.number != number);
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Watched({})", self.number)
    }
}

impl fmt::Debug for Liveness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.lock();
        let names = threads.list.iter().map(|thread| thread.name);
        formatter.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// Thread that answers only once the test lets it.
    #[derive(Clone, Default)]
    struct Asleep(Arc<Mutex<Option<Vec<Sender<()>>>>>);

    impl Asleep {
        fn pinger(&self) -> Pinger {
            *self.0.lock().unwrap() = Some(Vec::new());
            let this = self.clone();
            Arc::new(move |alive| match &mut *this.0.lock().unwrap() {
                Some(asleep) => asleep.push(alive),
                None => alive.send(()).unwrap(),
            })
        }

        /// Answers all questions and returns their number.
        fn wake(&self) -> usize {
            let asked = self.0.lock().unwrap().take().unwrap();
            asked.iter().for_each(|alive| alive.send(()).unwrap());
            asked.len()
        }
    }

    #[test]
    fn a_thread_that_answers_is_alive_and_one_that_does_not_is_named() {
        let liveness = Liveness::new();
        let hung = Asleep::default();
        let _watched = (
            liveness.watch("awake", Arc::new(|alive| alive.send(()).unwrap())),
            liveness.watch("hung", hung.pinger()),
        );
        let pulses = liveness.check();
        assert_eq!(pulses[0].silent, Some(Duration::ZERO));
        assert_eq!(pulses[1].name, "hung");
        let first = pulses[1].silent.unwrap();
        assert!(first > Duration::ZERO);
        assert!(pulses[1].is_alive(SILENCE), "it may still answer");
        let second = liveness.check()[1];
        assert!(second.silent.unwrap() > first);
        assert!(!second.is_alive(first));
        assert_eq!(hung.wake(), 1, "its silence counts from the first question");
        assert_eq!(liveness.check()[1].silent, Some(Duration::ZERO));
    }

    #[test]
    fn a_thread_that_ended_on_its_own_is_dead_and_one_that_was_let_go_is_forgotten() {
        let liveness = Liveness::new();
        // A question to a thread that has exited is dropped.
        let watched = liveness.watch("gone", Arc::new(drop));
        let pulse = liveness.check()[0];
        assert_eq!((pulse.name, pulse.silent), ("gone", None));
        assert!(!pulse.is_alive(SILENCE));
        drop(watched);
        assert_eq!(liveness.check(), []);
    }
}
