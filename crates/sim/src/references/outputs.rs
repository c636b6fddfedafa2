//! Outputs of the workers' machines.
//!
//! Batches are sent, and answers are compared with the model.

use rdzv_core::machine::Machine as _;
use rdzv_rpc_proto::rref::{
    Batch, Control, FetchId, ForkId, Handle, Member, Output, ReferenceFailure,
};

use super::model::Stage;
use super::world::{Doing, Event, World, pair};
use crate::{Result, broken};

impl World {
    pub(super) fn collect(&mut self, worker: usize) -> Result {
        let machine = &mut self.workers[worker].machine;
        let outputs: Vec<_> = std::iter::from_fn(|| machine.poll_output()).collect();
        let me = self.workers[worker].member;
        // The lost members explain the other outputs.
        for output in &outputs {
            if let Output::Lost { member, .. } = output {
                self.report.lost += 1;
                self.model.lost.insert((me, *member));
                let pair = pair(me.id, member.id);
                if self.plan.lost == 0
                    && !self.cut.contains_key(&pair)
                    && self.running(*member).is_some()
                {
                    return broken(format!("INV-P5: {me} has lost {member}, which is well"));
                }
            }
        }
        for output in outputs {
            if !matches!(output, Output::Lost { .. }) {
                self.note(worker, || format!("  ► {output:?}"));
            }
            self.apply(worker, me, output)?;
        }
        self.schedule(worker);
        Ok(())
    }

    fn apply(&mut self, worker: usize, me: Member, output: Output) -> Result {
        match output {
            Output::Send(batch) => self.send(batch),
            Output::Confirmed(fork) => return self.confirmed(fork),
            Output::Broken(fork, failure) => return self.fork_broke(fork, &failure),
            Output::Free(rref) => return self.model.free(me, rref),
            Output::Fetched(fetch, answer) => return self.answered(fetch, answer),
            Output::Drained => self.workers[worker].doing = Doing::Drained,
            Output::Completed { .. } | Output::Lost { .. } => {}
            Output::Ended(leaks) => {
                if !leaks.is_empty() {
                    return broken(format!("INV-P4: {me} leaks {leaks:?}"));
                }
            }
        }
        Ok(())
    }

    fn confirmed(&mut self, fork: ForkId) -> Result {
        let excused = self.model.is_excused(fork);
        let Some(it) = self.model.forks.get_mut(&fork) else {
            return broken(format!("fork {fork} was never made"));
        };
        if !self.model.freed.contains(&it.rref) {
            it.stage = Stage::Confirmed;
        } else if excused {
            // The owner has registered the fork because the value might still be created, but it is
            // not.
            it.stage = Stage::Broken;
            self.model.phantoms.insert(it.rref);
        } else {
            return broken(format!(
                "INV-P2: {fork} is confirmed after its value was freed"
            ));
        }
        Ok(())
    }

    fn fork_broke(&mut self, fork: ForkId, failure: &ReferenceFailure) -> Result {
        self.report.refused += 1;
        let Some(it) = self.model.forks.get(&fork) else {
            return broken(format!("fork {fork} was never made"));
        };
        let handle = Handle::User(it.rref, fork);
        self.model
            .refused(it.holder, handle, &failure.to_string())?;
        if let Some(it) = self.model.forks.get_mut(&fork) {
            it.stage = Stage::Broken;
        }
        Ok(())
    }

    fn answered(&mut self, fetch: FetchId, answer: Result<(), ReferenceFailure>) -> Result {
        let Some((asker, handle)) = self.questions.remove(&fetch) else {
            return broken(format!("{fetch:?} is answered twice"));
        };
        let rref = handle.rref();
        match answer {
            Ok(()) => {
                self.report.fetched += 1;
                if !self.model.made.contains_key(&rref) || self.model.freed.contains(&rref) {
                    return broken(format!("INV-P3: {rref} is fetched, but it is not there"));
                }
            }
            Err(failure) => {
                self.report.refused += 1;
                let holds = self
                    .running(asker)
                    .is_some_and(|worker| self.workers[worker].handles.contains(&handle));
                if holds {
                    self.model.refused(asker, handle, &failure.to_string())?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, batch: Batch) {
        self.report.batches += 1;
        self.report.messages += batch.messages.len() as u64;
        let asks = |message: &&Control| matches!(message, Control::CreationAsk(_));
        self.report.awaited += batch.messages.iter().filter(asks).count() as u64;
        let copies = 1 + u32::from(self.time.chance(self.plan.doubled));
        for _ in 0..copies {
            if self.time.chance(self.plan.lost) || self.is_cut(batch.from, batch.to) {
                continue;
            }
            let late = self.latency();
            self.time.after(late, Event::Batch(batch.clone()));
        }
    }
}
