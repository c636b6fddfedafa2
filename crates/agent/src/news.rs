//! What a dynamic rendezvous has to say about this node, as events. Static rendezvous and a node
//! alone have no news: there, nodes neither come nor go.

use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::Change;

use crate::agent::Agent;
use crate::meeting::{Answer, Joined};
use crate::{AgentEvent, NodeState, RendezvousPlan};

impl Agent<'_> {
    /// This node looks for the others.
    pub(crate) fn tell_joining(&mut self) {
        let message = format!(
            "The node joins the next round of the rendezvous '{}'.",
            self.plan.run_id
        );
        self.tell_news(NodeState::Init, message, None, None);
    }

    /// What came back from the rendezvous.
    pub(crate) fn tell_answer(&mut self, answer: &Answer) {
        match answer {
            Answer::Joined(Ok(Joined { round, .. })) => {
                let (rank, size) = (round.group_rank, round.group_world_size);
                let message = format!(
                    "The node has joined round {} of the rendezvous '{}' as rank {rank} of {size}.",
                    round.number, self.plan.run_id
                );
                self.tell_news(NodeState::Running, message, Some(rank), None);
            }
            Answer::Joined(Err(error)) => {
                let message = format!("{}: {error}", error.class());
                self.tell_news(NodeState::Failed, message, None, Some(error.to_string()));
            }
            Answer::NotNeeded(reason) => {
                self.tell_news(NodeState::Succeeded, reason.clone(), None, None);
            }
            Answer::Changed(Change::Membership { reason, .. }) => {
                self.tell_news(NodeState::Running, reason.clone(), None, None);
            }
            Answer::Changed(Change::PeerFailed { node, reason }) => {
                let message = format!("Node {node} has failed for good: {reason}");
                self.tell_news(NodeState::Running, message, None, None);
            }
            Answer::Changed(Change::Closed) => {
                let message = format!("The rendezvous '{}' was closed.", self.plan.run_id);
                self.tell_news(NodeState::Running, message, None, None);
            }
            Answer::Changed(Change::Lost(error)) => {
                let text = error.to_string();
                self.tell_news(NodeState::Failed, text.clone(), None, Some(text));
            }
            Answer::Assigned { .. } | Answer::BarrierPassed(_) | Answer::Told(_) => {}
        }
    }

    /// This node is about to leave the others.
    pub(crate) fn tell_leaving(&mut self) {
        let message = format!("The node leaves the rendezvous '{}'.", self.plan.run_id);
        self.tell_news(NodeState::Succeeded, message, None, None);
    }

    fn tell_news(
        &mut self,
        state: NodeState,
        message: String,
        rank: Option<GroupRank>,
        error: Option<String>,
    ) {
        let RendezvousPlan::Dynamic { parameters } = &self.plan.rendezvous else {
            return;
        };
        let event = AgentEvent::RendezvousNews {
            at: self.clock.now().wall,
            state,
            message,
            endpoint: parameters.endpoint.clone(),
            rank,
            error,
        };
        self.emit(event);
    }
}
