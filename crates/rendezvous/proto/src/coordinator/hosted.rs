//! A run of this coordinator: its rounds, and the sessions of its agents.

use std::time::Duration;

use super::runs::{Effect, Run};
use super::sessions::{Limits, Sessions};
use super::viewers::Viewers;
use super::wire::{AgentRefusal, Authority, Event, Join, Reattach, Report};
use super::{Coordinator, Output};
use crate::{fence, silence};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Outbox;
use rdzv_core::time::{Mono, Now, earliest};

#[derive(Debug, Default)]
pub(super) struct Hosted {
    pub(super) run: Run,
    pub(super) sessions: Sessions,
    viewers: Viewers,
    pub(super) authority: Option<Authority>,
    /// The connection whose session has just begun.
    pub(super) begun: Option<ConnId>,
    /// Connections whose sessions have just ended.
    pub(super) ended: Vec<ConnId>,
    pub(super) out: Outbox<Output>,
}

/// The last coordinator that an agent has obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// This coordinator, one whose record it has, or one of an unrelated cluster.
    Ours,
    /// A coordinator that has certainly ended, without a record.
    HasEnded,
    /// A coordinator elsewhere, which may be running.
    MayLive,
}

impl Hosted {
    pub(super) fn new(id: &str, coordinator: &Coordinator) -> Self {
        let (authority, origin) = (coordinator.authority, &coordinator.origin);
        let mut run = Run::new(id, coordinator.began, origin.clone(), coordinator.voters);
        if let Some(authority) = authority.filter(|_| coordinator.has_taken_over) {
            run.had_coordinators(authority.epoch);
        }
        if origin.forgotten > 0 {
            run.had_coordinators(origin.forgotten);
        }
        Self {
            run,
            sessions: Sessions::new(origin.rules),
            authority,
            ..Self::default()
        }
    }

    /// Changes the run, and turns the effects into outputs.
    pub(super) fn apply(&mut self, change: impl FnOnce(&mut Run)) {
        change(&mut self.run);
        while let Some(effect) = self.run.poll_effect() {
            self.out.push(match effect {
                Effect::Notify(node, event) => match self.sessions.connection(&node) {
                    Some(connection) => Output::Send(connection, event),
                    None => continue,
                },
                Effect::Gone(node) => {
                    self.ended.extend(self.sessions.detach(&node));
                    continue;
                }
                Effect::Output(output) => output,
            });
        }
    }

    pub(super) fn join(&mut self, now: Now, from: ConnId, join: Box<Join>) {
        let closed = self.run.is_closed().then_some(AgentRefusal::Closed);
        if let Some(refusal) = closed.or_else(|| self.refusal(from, &join)) {
            return self.out.push(Output::Send(from, Event::Refused(refusal)));
        }
        self.attach(now, from, &join);
        if let Some(authority) = self.authority.filter(|_| join.can_reattach()) {
            self.out
                .push(Output::Send(from, self.attached(authority, &join)));
        }
        self.apply(|run| run.join(now, join));
    }

    /// Handles an agent that resumes over a new connection.
    pub(super) fn reattach(&mut self, now: Now, from: ConnId, reattach: Reattach, before: Before) {
        let join = &reattach.join;
        if reattach.leaves {
            self.apply(|run| run.leaves(now, join));
            return self.out.push(Output::Send(from, Event::Left));
        }
        // A closed run only reports its end, even to its former members.
        if self.run.is_closed() {
            let over = match &reattach.holds {
                Some(held) if held.succeeded && self.run.has_succeeded(held.round) => {
                    Event::AllSucceeded { round: held.round }
                }
                Some(_) => Event::Closed,
                None => Event::Refused(AgentRefusal::Closed),
            };
            return self.out.push(Output::Send(from, over));
        }
        if let Some(refusal) = self.refusal(from, join) {
            return self.out.push(Output::Send(from, Event::Refused(refusal)));
        }
        self.attach(now, from, join);
        let authority = self.authority.unwrap_or_default();
        let known = reattach.holds.as_ref().or(reattach.left.as_ref()).cloned();
        let known = known.as_ref();
        if before == Before::MayLive {
            self.apply(|run| run.leave_undecided(now, &reattach.last, known, authority));
        }
        if before == Before::HasEnded {
            self.run.decide(now, reattach.last.cluster);
        }
        self.out
            .push(Output::Send(from, self.attached(authority, join)));
        self.apply(|run| {
            if let Some(known) = known.filter(|_| before == Before::HasEnded) {
                run.recover_unnoted(now, known, None);
            }
            run.reattach(now, reattach);
        });
    }

    /// Returns the event that names the coordinator that the agent now obeys.
    fn attached(&self, ours: Authority, join: &Join) -> Event {
        Event::Attached(Authority {
            in_process: self.run.is_in_process(join),
            ..self.run.obeyed(ours)
        })
    }

    /// Returns the reason why an agent cannot join, if there is one.
    fn refusal(&self, from: ConnId, join: &Join) -> Option<AgentRefusal> {
        let refusal = self.sessions.refusal(from, &join.node);
        refusal.or_else(|| self.run.refusal(join))
    }

    pub(super) fn limits(&self) -> Limits {
        let settings = self.run.settings();
        // If a broken connection means a lost agent, the coordinator does not test connections.
        let has_others = settings.max_nodes > 1 && self.authority.is_some();
        Limits {
            lost_after: settings.lost_after().max(self.run.fence()),
            again: settings.keep_alive_interval,
            pulse: has_others.then(|| silence::pulse(self.lease())),
        }
    }

    /// Returns the time for which a machine can be silent.
    ///
    /// It depends on the current number of agents.
    fn lease(&self) -> Duration {
        fence::lease(self.run.settings().node_timeout, self.sessions.len())
    }

    /// Begins a session of an agent over this connection.
    fn attach(&mut self, now: Now, from: ConnId, join: &Join) {
        self.run.adopt_settings(join);
        let limits = self.limits();
        let peer = join.from.as_deref();
        let in_process = self.run.is_in_process(join);
        let node = &join.node;
        let old = (self.sessions).attach(now, from, node, peer, in_process, &limits);
        self.begun = Some(from);
        if let Some(old) = old {
            self.ended.push(old);
            let why = "its agent reattached over another connection";
            self.out.push(Output::Close(old, why.to_owned()));
        }
    }

    pub(super) fn closed(&mut self, now: Now, from: ConnId) {
        let Some(node) = self.sessions.node(from) else {
            return;
        };
        if self.run.may_reattach(&node) {
            let fence = self.run.fence_of(&node);
            let silence = self.lease();
            return self.sessions.await_return(now, &node, fence, silence);
        }
        self.apply(|run| run.lost(now, &node, "its connection closed"));
    }

    /// Handles the deadline `at`, which has passed.
    pub(super) fn tick(&mut self, now: Now, at: Mono) {
        let late = now.mono.since(at) > self.run.settings().keep_alive_interval;
        let due = self.sessions.lost_agents(now, late, &self.limits());
        for (connection, node) in due.quiet {
            if self.run.is_member(&node) {
                self.out.push(Output::Send(connection, Event::Alive(None)));
            }
        }
        for (connection, node, heard) in due.silent {
            let how = format!(
                "it sent nothing for {:.1} s",
                now.mono.since(heard).as_secs_f64()
            );
            self.apply(|run| run.lost(now, &node, &how));
            self.out.push(Output::Close(
                connection,
                format!("its agent is lost: {how}"),
            ));
        }
        while let Some((node, has_ended)) = self.sessions.take_gone(now) {
            self.apply(|run| {
                if has_ended {
                    run.has_ended(now, &node);
                } else {
                    let how = "its connection closed, and it did not reattach";
                    run.lost(now, &node, how);
                }
            });
        }
        self.apply(|run| run.tick(now, late));
    }

    /// Passes the message of an agent on to viewers, or to all agents.
    pub(super) fn report(&mut self, now: Mono, from: ConnId, report: Report) {
        if let Some(message) = self.viewers.report(now, from, report) {
            for connection in self.sessions.all() {
                self.send_reports(connection, message.clone());
            }
        }
        while let Some((connection, messages)) = self.viewers.take(from) {
            self.send_reports(connection, messages);
        }
    }

    fn send_reports(&mut self, connection: ConnId, messages: Vec<u8>) {
        let node = self.sessions.node(connection);
        let event = Event::Reports {
            arrived: node.and_then(|node| self.run.arrived(&node)),
            watch: self.viewers.watch(),
            messages,
        };
        self.out.push(Output::Send(connection, event));
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        earliest([self.sessions.deadline(), self.run.deadline()])
    }
}
