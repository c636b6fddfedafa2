//! Steps of workers, from their heartbeats.

use rdzv_agent_proto::hang::line_splitter::SplitLine;
use rdzv_core::time::Now;

use super::ProcessSupervisor;
use crate::AgentEvent;
use crate::hang::Source;
use crate::supervisor::WorkerEvent;

impl ProcessSupervisor {
    /// Handles lines of workers; returns the events that follow from heartbeats.
    pub(super) fn beats(&mut self, now: Now, lines: &[(Source, SplitLine)]) -> Vec<WorkerEvent> {
        let (mut events, most) = (Vec::new(), self.steps.most());
        for (local_rank, step) in self.hang.read(now, lines) {
            let Some(worker) = self.workers.get(&local_rank) else {
                continue;
            };
            let at = now.wall;
            if self.silent.remove(&local_rank) && self.silent.is_empty() {
                events.push(AgentEvent::HangOver { at }.into());
            }
            let number = step.map(|step| step.number);
            self.config.observe.beats.record(local_rank, at, number);
            if let Some(step) = step
                && let Some(change) = self.steps.step(step.is_numbered.then_some(step.number))
            {
                let event = AgentEvent::Step {
                    at,
                    worker: worker.identity.clone(),
                    change,
                    age: step.age,
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
