//! Connections of native agents.

use std::collections::VecDeque;

use rdzv_core::ident::ConnId;
use rdzv_rendezvous_proto::{coordinator, native_client};

use super::agent::{Input, peer_address};
use super::world::{Event, Link, Piece, World};
use crate::Result;

impl World {
    pub(super) fn connect(&mut self, agent: usize) -> u32 {
        let id = self.next_link;
        self.next_link += 1;
        let by_proxy = self.plan.proxies.contains(&agent);
        let it = &mut self.agents[agent];
        it.connection = Some(id);
        let link = Link {
            agent,
            process: it.process,
            node: it.me.clone(),
            at_host: true,
            at_agent: true,
            cut: false,
            by_proxy,
            to_host: VecDeque::new(),
            to_agent: VecDeque::new(),
        };
        self.links.insert(id, link);
        id
    }

    /// Breaks a connection.
    ///
    /// A proxy in between closes both of its connections cleanly.
    pub(super) fn break_link(&mut self, id: u32) {
        let Some(link) = self.links.get(&id) else {
            return;
        };
        let by_proxy = link.by_proxy;
        let piece = || if by_proxy { Piece::End } else { Piece::Reset };
        self.send(id, true, piece());
        self.send(id, false, piece());
    }

    pub(super) fn send(&mut self, id: u32, to_host: bool, what: Piece) {
        let late = self.latency();
        let Some(link) = self.links.get_mut(&id).filter(|link| !link.cut) else {
            return;
        };
        let (queue, event) = if to_host {
            (&mut link.to_host, Event::AtHost(id))
        } else {
            (&mut link.to_agent, Event::AtAgent(id))
        };
        queue.push_back(what);
        self.time.after(late, event);
    }

    pub(super) fn at_host(&mut self, id: u32) -> Result {
        if self.host_stall_end > self.time.now {
            self.time.at(self.host_stall_end, Event::AtHost(id));
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
            Piece::End => {
                let peer = if link.by_proxy {
                    format!("10.0.9.9:{id}")
                } else {
                    peer_address(id)
                };
                link.at_host = false;
                let (id, peer) = (ConnId(id), Some(peer));
                self.tell_host(coordinator::Input::EndOfStream { id, peer })?;
                self.tell_host(coordinator::Input::Closed(id))
            }
            Piece::Reset => {
                link.at_host = false;
                self.tell_host(coordinator::Input::Closed(ConnId(id)))
            }
            Piece::Bytes(bytes) => {
                self.report.operations += 1;
                self.tell_host(coordinator::Input::Request {
                    from: ConnId(id),
                    opcode: bytes[0],
                    payload: &bytes[9..],
                })
            }
        }
    }

    pub(super) fn at_agent(&mut self, id: u32) -> Result {
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
            Piece::End | Piece::Reset => {
                link.at_agent = false;
                self.agents[agent].connection = None;
                let why = "it closed the connection".to_owned();
                self.tell(
                    agent,
                    Input::Native(native_client::Input::Disconnected(why)),
                )
            }
            Piece::Bytes(bytes) => {
                self.tell(agent, Input::Native(native_client::Input::Bytes(&bytes)))
            }
        }
    }
}
