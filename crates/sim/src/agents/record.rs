//! History of operations of agents at a coordinator, with the answers: INV-L1.

use rdzv_rendezvous_proto::native_client;

use super::agent::Input;
use super::plan::Act;
use super::world::World;
use crate::Result;
use crate::history::check;
use crate::history::record::Event;
use crate::history::run;

impl World {
    pub(super) fn write_down(&mut self, agent: usize, input: &Input<'_>) {
        let event = match input {
            Input::Join => Event::Joins,
            Input::Leave => Event::Leaves,
            Input::Close => Event::Closes,
            Input::Native(native_client::Input::Succeeded(round)) => Event::Succeeds(*round),
            _ => return,
        };
        if self.agents[agent].machine.is_some() {
            self.write(agent, event);
        }
    }

    /// Records a fault that may rightly make agents count as lost.
    pub(super) fn write_fault(&mut self, agent: usize, act: Act) {
        match act {
            Act::Crash | Act::Vanish | Act::Stall(_) | Act::Cut(_) | Act::Reset | Act::Killed => {
                self.write(agent, Event::MayBeLost);
            }
            Act::HostStalls(_) | Act::NoteLost | Act::Moved | Act::Recover => {
                self.history.all_may_be_lost = true;
                self.history.is_unnoted |= !matches!(act, Act::HostStalls(_));
                for agent in 0..self.agents.len() {
                    self.write(agent, Event::MayBeLost);
                }
            }
            _ => {}
        }
    }

    pub(super) fn write(&mut self, agent: usize, event: Event) {
        let history = &mut self.history;
        let is_unknown = history.is_unnoted && matches!(event, Event::IsOver(_));
        if self.host.is_none() || history.has_ended || is_unknown {
            return;
        }
        let now = self.time.now;
        let it = &self.agents[agent];
        // Each process is a separate agent. A silence of the machine also affects its next process.
        let number: run::Agent = it.process << 32 | agent as u64;
        let is_silent = it.stall_end > now || it.cut_end > now;
        if event == Event::Joins && (history.all_may_be_lost || is_silent) {
            history.record.note(now, number, Event::MayBeLost);
        }
        history.record.note(now, number, event);
    }

    /// Ends the history of the run, and checks it.
    ///
    /// Later events are not recorded.
    pub(super) fn end_history(&mut self) -> Result {
        if !std::mem::replace(&mut self.history.has_ended, true) {
            let operations = &self.history.record.operations;
            check(operations)?;
            self.report.ordered = operations.len() as u64;
        }
        Ok(())
    }
}
