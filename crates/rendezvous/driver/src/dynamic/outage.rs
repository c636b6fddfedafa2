//! Notices about a shared state that stops answering, and then answers again.
//!
//! An outage is logged after 2.5 s, after 30 s and then every 5 minutes. Its end is logged too,
//! unless the outage ends with an error.

use std::pin::pin;
use std::time::{Duration, Instant};

use rdzv_core::reminder::Reminder;

use crate::runtime::sleep;

/// Receiver of the lines. A line about a wait comes with the remaining time.
type Say = Box<dyn Fn(&str, Option<Duration>) + Send + Sync>;

/// Watch on the requests of one rendezvous.
pub(super) struct OutageWatch {
    endpoint: String,
    /// Time limit of a request with its retries.
    limit: Duration,
    say: Say,
}

impl OutageWatch {
    pub(super) fn new(endpoint: String, limit: Duration, say: Say) -> Self {
        Self {
            endpoint,
            limit,
            say,
        }
    }

    /// Waits for the answer to a request.
    ///
    /// The caller reports an error of the request.
    ///
    /// `in_round` is `true` if this node is in a round, whose workers run.
    pub(super) async fn answer<T, E>(
        &self,
        in_round: bool,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut request = pin!(request);
        let (began, mut reminder) = (Instant::now(), Reminder::default());
        let mut noticed = false;
        loop {
            let next = reminder.next().saturating_sub(began.elapsed());
            tokio::select! {
                biased;
                answer = &mut request => {
                    if noticed && answer.is_ok() {
                        let elapsed = began.elapsed().as_secs_f64();
                        let line = format!("{} answers again after {elapsed:.1} s", self.endpoint);
                        (self.say)(&line, None);
                    }
                    return answer;
                }
                () = sleep(Some(next)) => {}
            }
            let elapsed = began.elapsed();
            if reminder.is_due(elapsed) {
                noticed = true;
                let left = self.limit.saturating_sub(elapsed);
                // With running workers, the status row is about the workers.
                let of_wait = (!in_round).then_some(left);
                (self.say)(&self.notice(in_round, elapsed, left), of_wait);
            }
        }
    }

    fn notice(&self, in_round: bool, elapsed: Duration, left: Duration) -> String {
        let Self { endpoint, .. } = self;
        let goes_on = if in_round {
            "the workers of this node continue, but no other node can join or leave"
        } else {
            "no round can be formed"
        };
        format!(
            "{endpoint} has not answered for {} s; {goes_on}; retrying for {} s more; then the run \
             ends on this node",
            elapsed.as_secs_f64().round(),
            left.as_secs_f64().ceil(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::sync::oneshot;

    use super::*;

    fn watch() -> (OutageWatch, UnboundedReceiver<String>) {
        let (lines, heard) = unbounded_channel();
        let say = Box::new(move |line: &str, _: Option<Duration>| {
            let _ = lines.send(line.to_owned());
        });
        let endpoint = "the store h:1".to_owned();
        (
            OutageWatch::new(endpoint, Duration::from_secs(60), say),
            heard,
        )
    }

    #[tokio::test]
    async fn an_outage_has_a_line_for_its_begin_and_one_for_its_end() {
        let (watch, mut heard) = watch();
        let (answer, answered) = oneshot::channel();
        let began = Instant::now();
        let outage = async {
            let line = heard.recv().await.unwrap();
            assert!(began.elapsed() >= Duration::from_millis(2500));
            assert_eq!(
                line,
                "the store h:1 has not answered for 3 s; the workers of this node continue, but no \
                 other node can join or leave; retrying for 58 s more; then the run ends on this \
                 node"
            );
            answer.send(()).unwrap();
        };
        let (answered, ()) = tokio::join!(watch.answer(true, answered), outage);
        answered.unwrap();
        let line = heard.recv().await.unwrap();
        assert!(
            line.starts_with("the store h:1 answers again after 2.5"),
            "{line}"
        );
        drop(watch);
        assert_eq!(heard.recv().await, None, "there is nothing else to say");
    }

    #[tokio::test]
    async fn an_answer_in_time_and_an_error_are_not_noticed() {
        let (watch, mut heard) = watch();
        watch.answer(false, ready(Ok::<_, ()>(()))).await.unwrap();
        let (answer, answered) = oneshot::channel::<()>();
        let outage = async {
            let line = heard.recv().await.unwrap();
            assert!(line.contains("no round can be formed"), "{line}");
            drop(answer);
        };
        let (answered, ()) = tokio::join!(watch.answer(false, answered), outage);
        answered.unwrap_err();
        drop(watch);
        assert_eq!(heard.recv().await, None);
    }
}
