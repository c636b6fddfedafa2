//! Steps of workers, from their heartbeats.

use std::time::Duration;

use rdzv_agent_proto::goodput::Steps;
use rdzv_agent_proto::hang::line_splitter::SplitLine;
use rdzv_core::time::Now;
use rustix::time::{ClockId, clock_gettime};

use super::ProcessSupervisor;
use crate::AgentEvent;
use crate::hang::Source;
use crate::supervisor::WorkerEvent;

impl ProcessSupervisor {
    /// Handles lines of workers; returns the events that follow from heartbeats.
    pub(super) fn beats(&mut self, now: Now, lines: &[(Source, SplitLine)]) -> Vec<WorkerEvent> {
        self.hang.read(now, lines);
        let (mut events, most) = (Vec::new(), self.steps.most());
        for (source, line) in lines {
            let Source::Heartbeat(local_rank) = source else {
                continue;
            };
            let Some(worker) = self.workers.get(local_rank) else {
                continue;
            };
            let at = now.wall;
            if self.silent.remove(local_rank) && self.silent.is_empty() {
                events.push(AgentEvent::HangOver { at }.into());
            }
            let step = match line {
                SplitLine::Whole(line) => Steps::of_line(line),
                SplitLine::TooLong => None,
            };
            let number = step.map(|(number, _)| number);
            self.config.observe.beats.record(*local_rank, at, number);
            if let Some((number, sent)) = step
                && let Some(change) = self.steps.step(number)
            {
                let event = AgentEvent::Step {
                    at,
                    worker: worker.identity.clone(),
                    change,
                    age: sent.map_or(Duration::ZERO, age),
                };
                events.push(event.into());
            }
        }
        if let Some(kept) = &self.config.rendezvous.kept
            && self.steps.most() != most
        {
            kept.update_note(|note| note.most_step = self.steps.most());
        }
        events
    }
}

/// Returns the time since a time on the node's monotonic clock.
///
/// Zero for a time of another clock.
fn age(sent: f64) -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
    let age = Duration::try_from_secs_f64(now - sent).unwrap_or_default();
    if age < Duration::from_secs(10) {
        age
    } else {
        Duration::ZERO
    }
}
