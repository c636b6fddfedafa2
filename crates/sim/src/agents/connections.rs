//! The connections of native agents.

use std::collections::VecDeque;

use rdzv_core::ident::ConnId;
use rdzv_rendezvous_proto::{coordinator, native_client};

use super::agent::Input;
use super::world::{Event, Link, World};
use crate::Violation;

impl World {
    pub(super) fn connect(&mut self, agent: usize) {
        let id = self.next_link;
        self.next_link += 1;
        let it = &mut self.agents[agent];
        it.connection = Some(id);
        self.links.insert(
            id,
            Link {
                agent,
                process: it.process,
                node: it.me.clone(),
                at_host: true,
                at_agent: true,
                cut: false,
                to_host: VecDeque::new(),
                to_agent: VecDeque::new(),
            },
        );
    }

    /// Tells the ends of a connection that it is over.
    pub(super) fn end_link(&mut self, id: u32, to_host: bool, to_agent: bool) {
        if to_host {
            self.send(id, true, None);
        }
        if to_agent {
            self.send(id, false, None);
        }
    }

    /// Puts something on its way.
    pub(super) fn send(&mut self, id: u32, to_host: bool, what: Option<Vec<u8>>) {
        let late = self.latency();
        let Some(link) = self.links.get_mut(&id).filter(|link| !link.cut) else {
            return;
        };
        match to_host {
            true => link.to_host.push_back(what),
            false => link.to_agent.push_back(what),
        }
        let event = if to_host {
            Event::AtHost(id)
        } else {
            Event::AtAgent(id)
        };
        self.time.at(self.time.now + late, event);
    }

    pub(super) fn at_host(&mut self, id: u32) -> Result<(), Violation> {
        if self.host_stalled_until > self.time.now {
            self.time.at(self.host_stalled_until, Event::AtHost(id));
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        let Some(what) = link.to_host.pop_front() else {
            return Ok(());
        };
        if !link.at_host || link.cut {
            return Ok(());
        }
        match what {
            None => {
                link.at_host = false;
                self.tell_host(coordinator::Input::Closed(ConnId(id)))
            }
            Some(bytes) => {
                self.report.operations += 1;
                self.tell_host(coordinator::Input::Request {
                    from: ConnId(id),
                    opcode: bytes[0],
                    payload: &bytes[9..],
                })
            }
        }
    }

    pub(super) fn at_agent(&mut self, id: u32) -> Result<(), Violation> {
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        let Some(what) = link.to_agent.pop_front() else {
            return Ok(());
        };
        let agent = link.agent;
        if !link.at_agent || link.cut || self.agents[agent].process != link.process {
            return Ok(());
        }
        match what {
            None => {
                link.at_agent = false;
                self.agents[agent].connection = None;
                let why = "it closed the connection".to_owned();
                self.tell(
                    agent,
                    Input::Native(native_client::Input::Disconnected(why)),
                )
            }
            Some(bytes) => self.tell(agent, Input::Native(native_client::Input::Bytes(&bytes))),
        }
    }
}
