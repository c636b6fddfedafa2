//! Notices about a shared state that does not answer, and that answers again.
//!
//! The thread of the rendezvous waits inside of its request meanwhile, so another one looks at the
//! time. An outage has a line after 2.5 s, after 30 s and then every 5 minutes, and one at its end; if it ends with
//! an error, that error.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdzv_core::reminder::Reminder;
use rdzv_lock::{Condvar, Mutex};

/// Receives the lines; with one about a wait, the time that is left of it.
type Say = Box<dyn Fn(&str, Option<Duration>) + Send>;

/// The watch on the requests of one rendezvous.
pub(super) struct OutageWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A request that has been made.
#[must_use]
pub(super) struct Request(Arc<Shared>);

struct Shared {
    place: String,
    /// The time for which a request is repeated.
    limit: Duration,
    say: Mutex<Say>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ended: bool,
    /// When the present request was made.
    since: Option<Instant>,
    /// Whether this node is in a round, whose workers run.
    in_round: bool,
    /// The notices about the present request.
    reminder: Reminder,
    /// Whether there was one.
    noticed: bool,
}

impl OutageWatch {
    /// Without a thread, if there cannot be one, there are no notices.
    pub(super) fn new(place: String, limit: Duration, say: Say) -> Self {
        let shared = Arc::new(Shared {
            place,
            limit,
            say: Mutex::new(say),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("rdzv-outage".to_owned())
            .spawn(move || watched.run());
        Self {
            shared,
            thread: thread.ok(),
        }
    }

    /// A request begins.
    pub(super) fn request(&self, in_round: bool) -> Request {
        let mut state = self.shared.state.lock();
        (state.since, state.reminder) = (Some(Instant::now()), Reminder::default());
        state.in_round = in_round;
        self.shared.changed.notify_one();
        Request(Arc::clone(&self.shared))
    }
}

impl Drop for OutageWatch {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Request {
    /// The request has ended, with an answer or with an error that is reported by others.
    pub(super) fn end(self, answered: bool) {
        let mut state = self.0.state.lock();
        let (since, noticed) = (state.since.take(), std::mem::take(&mut state.noticed));
        drop(state);
        if let Some(since) = since.filter(|_| noticed && answered) {
            let elapsed = since.elapsed().as_secs_f64();
            let line = format!("{} answers again, after {elapsed:.1} s", self.0.place);
            self.0.say(&line, None);
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            let elapsed = state.since.map(|since| since.elapsed());
            let next = state.reminder.next();
            match elapsed.map(|elapsed| (elapsed, next.saturating_sub(elapsed))) {
                Some((elapsed, Duration::ZERO)) => {
                    state.noticed = true;
                    state.reminder.is_due(elapsed);
                    let in_round = state.in_round;
                    drop(state);
                    let left = self.limit.saturating_sub(elapsed);
                    // Workers that run are what their row is about.
                    let of_wait = (!in_round).then_some(left);
                    self.say(&self.notice(in_round, elapsed, left), of_wait);
                    state = self.state.lock();
                }
                Some((_, next)) => {
                    state = self.changed.wait_timeout(state, next).0;
                }
                None => {
                    state = self.changed.wait(state);
                }
            }
        }
    }

    fn notice(&self, in_round: bool, elapsed: Duration, left: Duration) -> String {
        let Self { place, .. } = self;
        let goes_on = if in_round {
            "the workers of this node go on, but no other node can join or leave"
        } else {
            "no round can be formed"
        };
        format!(
            "{place} has not answered for {} s; meanwhile {goes_on}; it is asked again; {} s left; then the run ends \
             here",
            elapsed.as_secs_f64().round(),
            left.as_secs_f64().ceil(),
        )
    }

    fn say(&self, line: &str, left: Option<Duration>) {
        self.say.lock()(line, left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn watch() -> (OutageWatch, mpsc::Receiver<String>) {
        let (lines, heard) = mpsc::channel();
        let say = Box::new(move |line: &str, _: Option<Duration>| {
            let _ = lines.send(line.to_owned());
        });
        let place = "the store h:1".to_owned();
        (OutageWatch::new(place, Duration::from_secs(60), say), heard)
    }

    #[test]
    fn an_outage_has_a_line_for_its_begin_and_one_for_its_end() {
        let (watch, heard) = watch();
        let began = Instant::now();
        let request = watch.request(true);
        let line = heard.recv_timeout(LONG).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(2500));
        assert_eq!(
            line,
            "the store h:1 has not answered for 3 s; meanwhile the workers of this node go on, but no \
             other node can join or leave; it is asked again; 58 s left; then the run ends here"
        );
        request.end(true);
        let line = heard.recv_timeout(LONG).unwrap();
        assert!(
            line.starts_with("the store h:1 answers again, after 2.5"),
            "{line}"
        );
        drop(watch);
        assert!(heard.recv().is_err(), "there is nothing else to say");
    }

    #[test]
    fn an_answer_in_time_and_an_error_are_not_noticed() {
        let (watch, heard) = watch();
        watch.request(false).end(true);
        let request = watch.request(false);
        assert!(
            heard
                .recv_timeout(LONG)
                .unwrap()
                .contains("no round can be formed")
        );
        request.end(false);
        drop(watch);
        assert!(heard.recv().is_err());
    }
}
