//! Connections, and what is cut.

use rdzv_core::ident::ConnId;

use super::{Event, Link, MACHINES, MS, World};

impl World {
    /// Closes a connection, and notifies its voter, and its agent if it has one.
    pub(super) fn hang_up(&mut self, id: ConnId) {
        if let Some(link) = self.links.remove(&id) {
            self.time.at(self.time.now, Event::VoterHears(link.to, id));
            if link.is_agent {
                self.time
                    .at(self.time.now, Event::AgentHears(link.from, id));
            }
        }
    }

    /// Ends the stream of an agent's connection, behind everything that was sent.
    ///
    /// The agent ends it, or the agent's kernel does.
    pub(super) fn end_stream(&mut self, id: ConnId) {
        if let Some(at) = self.arrival(id, 0) {
            let to = self.links[&id].to;
            self.time.at(at, Event::StreamEnds(to, id));
        }
    }

    pub(super) fn break_links(&mut self, it: usize) {
        let crosses = |link: &Link| (link.from == it) != (link.to == it);
        let broken: Vec<ConnId> = (self.links.iter())
            .filter(|(_, link)| crosses(link))
            .map(|(id, _)| *id)
            .collect();
        broken.into_iter().for_each(|id| self.hang_up(id));
    }

    pub(super) fn new_link(&mut self, from: usize, to: usize, is_agent: bool) -> ConnId {
        self.last_link += 1;
        let id = ConnId(self.last_link);
        let last = [self.time.now; 2];
        let link = Link {
            from,
            to,
            is_agent,
            last,
        };
        self.links.insert(id, link);
        id
    }

    /// Returns the arrival time of bytes that are sent now in one direction.
    pub(super) fn arrival(&mut self, id: ConnId, direction: usize) -> Option<u64> {
        let late = self.time.random.u64(MS / 5..3 * MS);
        let link = self.links.get_mut(&id)?;
        let slow = if link.from == link.to {
            0
        } else {
            self.machines[link.from]
                .slow
                .max(self.machines[link.to].slow)
        };
        let at = (self.time.now + late + slow).max(link.last[direction] + 1);
        link.last[direction] = at;
        Some(at)
    }

    /// Returns the connections of a voter to others, with their other ends.
    pub(super) fn links_from(&self, it: usize) -> Vec<(ConnId, usize)> {
        let links = self.links.iter();
        let own = links.filter(|(_, link)| !link.is_agent && link.from == it);
        own.map(|(id, link)| (*id, link.to)).collect()
    }

    pub(super) fn connect(&mut self) {
        for from in 0..MACHINES {
            for to in (0..MACHINES).filter(|to| *to != from) {
                let is_there = self.links_from(from).iter().any(|(_, end)| *end == to);
                let calls = self.machines[from].calls.values().any(|it| *it == to);
                if calls && !is_there && self.is_reachable(from, to) {
                    let id = self.new_link(from, to, false);
                    let greeting = self.machines[from].greeting.clone();
                    self.send(id, greeting);
                }
            }
        }
    }

    pub(super) fn send(&mut self, id: ConnId, bytes: Vec<u8>) {
        if let Some(at) = self.arrival(id, 0) {
            let to = self.links[&id].to;
            self.time.at(at, Event::Request(to, id, bytes));
        }
    }

    pub(super) fn is_reachable(&self, from: usize, to: usize) -> bool {
        from == to || !self.cut.contains(&from) && !self.cut.contains(&to)
    }
}
