//! Operations of agents, and the coordinator that an agent obeyed before.

use super::hosted::{Before, Hosted};
use super::wire::{AgentRefusal, Authority, Event, Join, Operation, Reattach, Standing};
use super::{Coordinator, Output, keys, runs};
use crate::Rule;
use rdzv_core::ident::ConnId;
use rdzv_core::time::Now;

impl Coordinator {
    pub(super) fn operate(&mut self, now: Now, from: ConnId, operation: Operation) {
        match operation {
            Operation::Join(ref join) => {
                if self.is_acceptable(from, join) {
                    let run = join.run.clone();
                    self.about(now, from, run, operation);
                }
            }
            Operation::Close { ref run } | Operation::Status { ref run } => {
                let run = run.clone();
                self.about(now, from, run, operation);
            }
            Operation::Reattach(ref reattach) => {
                if self.is_acceptable(from, &reattach.join) {
                    let run = reattach.join.run.clone();
                    self.about(now, from, run, operation);
                }
            }
            Operation::Succeeded { round } => {
                self.apply_from(now, from, |run, node| run.succeeded(now, node, round));
            }
            Operation::Leave => {
                self.apply_from(now, from, |run, node| run.leave(now, node));
                self.outbox.push(Output::Send(from, Event::Left));
            }
            Operation::Heartbeat => {
                let arrived = self.heard(now, from).and_then(|hosted| {
                    let node = hosted.sessions.node(from)?;
                    hosted.run.arrived(&node)
                });
                self.outbox.push(Output::Send(from, Event::Alive(arrived)));
            }
            Operation::Report(report) => {
                self.heard(now, from);
                if let Some(run) = self.joined.get(&from).cloned() {
                    self.with(now, &run, |hosted| hosted.report(now.mono, from, report));
                }
            }
            Operation::Detach => {
                if let Some(session) = self.session(from) {
                    session.end.is_said = true;
                }
            }
            Operation::Lease { number, standing } => self.lease(now, from, number, standing),
            // The machine of the voters handles this operation.
            Operation::Candidate { .. } => {}
            Operation::Failed { reason } => {
                self.apply_from(now, from, |run, node| run.failed(node, &reason));
            }
            Operation::Master { round, addr, port } => {
                self.apply_from(now, from, |run, node| {
                    run.publish_master(node, round, addr, port);
                });
            }
        }
    }

    /// Registers a message of an agent, and returns the agent's run.
    fn heard(&mut self, now: Now, from: ConnId) -> Option<&mut Hosted> {
        let run = self.joined.get(&from)?;
        let hosted = self.runs.get_mut(run)?;
        let limits = hosted.limits();
        hosted.sessions.heard(now, from, &limits);
        // The message postpones the deadline. Without this update, a timer would expire for
        // nothing.
        if let Some(alarm) = hosted.deadline().filter(|_| self.alarms.has(run)) {
            self.alarms.set(run, alarm);
        }
        Some(hosted)
    }

    /// Handles an agent that reports its lease, and asks for a new one.
    ///
    /// A coordinator without voters does not answer.
    fn lease(&mut self, now: Now, from: ConnId, number: u64, standing: Standing) {
        let is_known = self.heard(now, from).is_some();
        if is_known && standing != Standing::Asks {
            self.apply_from(now, from, |run, node| run.reports_lease(node, standing));
        }
        if is_known && self.voters > 0 && standing != Standing::Lifted {
            self.backing.ask(from, number);
            self.ask_voters();
        }
    }

    fn ask_voters(&mut self) {
        if let Some(token) = self.backing.next() {
            if self.origin.rules.has(Rule::VotersConfirm) {
                self.outbox.push(Output::Confirm(token));
            } else {
                self.confirmed(token, true);
            }
        }
    }

    pub(super) fn confirmed(&mut self, token: u64, leads: bool) {
        for (from, number) in self.backing.answered(token) {
            if let Some(hosted) = self.hosted(from).filter(|_| leads)
                && let Some(node) = hosted.sessions.node(from)
                && hosted.run.keeps(&node)
            {
                hosted.run.grant(&node);
                let backed = Event::Backed { number };
                self.outbox.push(Output::Send(from, backed));
            }
        }
        self.ask_voters();
    }

    /// `true` if a join is valid, independent of the state of its run.
    ///
    /// If it is not, the agent receives a refusal, or its connection closes.
    fn is_acceptable(&mut self, from: ConnId, join: &Join) -> bool {
        if let Some(why) = runs::unusable(join) {
            let refused = Event::Refused(AgentRefusal::Unusable(why));
            self.outbox.push(Output::Send(from, refused));
            return false;
        }
        if self.joined.get(&from).is_some_and(|run| *run != join.run) {
            let why = "it joined a second run on one connection";
            self.outbox.push(Output::Close(from, why.to_owned()));
            return false;
        }
        true
    }

    /// Applies an operation about a run that may still be unknown.
    pub(super) fn about(&mut self, now: Now, from: ConnId, id: String, operation: Operation) {
        if !self.runs.contains_key(&id) {
            // The state of the run is under its key. Another operation may have requested it.
            if self.pending.iter().all(|(_, run, _)| *run != id) {
                self.outbox.push(Output::Read(keys::state(&id)));
            }
            return self.pending.push((from, id, operation));
        }
        match operation {
            Operation::Join(join) => {
                self.with(now, &id, |hosted| hosted.join(now, from, join));
            }
            Operation::Reattach(reattach) => {
                let before = self.before(&reattach);
                self.with(now, &id, |hosted| {
                    hosted.reattach(now, from, *reattach, before);
                });
            }
            Operation::Close { .. } => self.with(now, &id, |hosted| {
                hosted.apply(|run| run.close());
                hosted.out.push(Output::Send(from, Event::Closed));
            }),
            Operation::Status { .. } => self.with(now, &id, |hosted| {
                hosted.out.push(Output::Send(from, hosted.run.status()));
            }),
            _ => {}
        }
    }

    /// Returns the relation to the coordinator that an agent obeyed last.
    fn before(&mut self, reattach: &Reattach) -> Before {
        if reattach.leaves {
            return Before::Ours;
        }
        if self.takes_over(reattach) {
            return Before::HasEnded;
        }
        let (last, origin) = (&reattach.last, &self.origin);
        // All voters have the record, and know how many earlier decisions were forgotten.
        let is_alone = origin.electors_heard.is_none() && origin.forgotten == 0;
        let is_elsewhere = !origin.recover && !origin.addresses.contains(&last.address);
        let ours = self.authority.map(|ours| ours.cluster);
        let hosted = self.runs.get(&reattach.join.run);
        let may_be = hosted.is_some_and(|hosted| hosted.run.may_be_of(last));
        if is_alone && is_elsewhere && may_be && ours.is_some_and(|ours| ours != last.cluster) {
            Before::MayLive
        } else {
            Before::Ours
        }
    }

    /// `true` if this coordinator follows the one that an agent obeyed last.
    ///
    /// This coordinator must know no round, from a record or from agents. The other one must have
    /// certainly ended: it listened at the same address, or the user confirms its end. This
    /// coordinator then gets the next number in the cluster of the other one. After that, it
    /// follows any coordinator of this cluster.
    fn takes_over(&mut self, reattach: &Reattach) -> bool {
        let last = &reattach.last;
        let (Some(ours), Some(_)) = (self.authority, self.began) else {
            return false;
        };
        let is_same = last.cluster == ours.cluster;
        if is_same && !self.has_taken_over {
            return false;
        }
        let mut runs = self.runs.values();
        let knows_rounds = self.has_note || runs.any(|hosted| hosted.run.knows_a_round());
        let has_ended = self.origin.recover || self.origin.addresses.contains(&last.address);
        if !is_same && (self.has_taken_over || !has_ended || knows_rounds) {
            return false;
        }
        if !is_same || last.epoch >= ours.epoch {
            let authority = Authority {
                cluster: last.cluster,
                epoch: last.epoch.saturating_add(1),
                ..ours
            };
            self.authority = Some(authority);
            for hosted in self.runs.values_mut() {
                hosted.authority = self.authority;
                hosted.run.had_coordinators(authority.epoch);
            }
            self.has_taken_over = true;
            self.outbox.push(Output::Adopt(authority));
        }
        true
    }
}
