//! A voter as an extension of a store server: the coordinator is here, or in another voter's server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator;
use rdzv_rendezvous_proto::coordinator::wire::{PROBE_ANSWER, PROBE_VOTER};
use rdzv_rendezvous_proto::group::GroupView;
use rdzv_rendezvous_proto::voter::{Fact, Output, Settings, Voter};
use rdzv_store_proto::server::{Extension, Reach};
use rdzv_trust::Credentials;
use tracing::{info, warn};

use super::extension::{Host, beside};
use super::voter_link::VoterLink;
use crate::{GroupEvent, NodeState, Onlookers, RendezvousEvent};

/// The parts of a [`voter()`].
#[derive(Debug)]
pub struct VoterOptions {
    /// The places of all voters, in the order in which every agent has them.
    pub places: Vec<Endpoint>,
    /// The place at which the server of this process listens, by its index.
    pub own: usize,
    /// No agent runs in this process, so it is to coordinate if it can.
    pub is_store: bool,
    /// The time for which agents wait for a coordinator.
    pub timeout: Duration,
    /// The time for which a machine may be silent.
    pub node_timeout: Duration,
    /// The proof that this process belongs to the job.
    pub credentials: Credentials,
    /// Those who look on.
    pub onlookers: Onlookers,
}

/// The extension of a [server](rdzv_store::ServerOptions) that is a voter. The server's limits have to admit
/// extension requests of [`FRAME_BOUND`](rdzv_rendezvous_proto::voter::FRAME_BOUND) bytes.
///
/// # Errors
///
/// If a thread cannot be started: there is one for each other place.
pub fn voter(options: VoterOptions) -> io::Result<Box<dyn Extension>> {
    let VoterOptions {
        places,
        own,
        is_store,
        timeout,
        node_timeout,
        credentials,
        onlookers,
    } = options;
    let mut links = BTreeMap::new();
    for (place, endpoint) in places.iter().enumerate().filter(|(place, _)| *place != own) {
        links.insert(
            place,
            VoterLink::start(endpoint.clone(), credentials.clone())?,
        );
    }
    let mut voter = Voter::new(Settings {
        places: places.iter().map(Endpoint::to_string).collect(),
        own,
        is_store,
        seed: fastrand::u64(..),
        timeout,
        node_timeout,
    });
    while let Some(output) = voter.poll_output() {
        if let Output::Greet(frame) = output {
            links.values().for_each(|link| link.greet(frame.clone()));
        }
    }
    let host = VoterHost {
        voter,
        links,
        stored: BTreeSet::new(),
        onlookers: onlookers.clone(),
    };
    Ok(beside(host, onlookers))
}

/// A voter beside a store.
#[derive(Debug)]
struct VoterHost {
    voter: Voter,
    /// The connections to the other places.
    links: BTreeMap<usize, VoterLink>,
    /// The keys that the coordinator here has stored, which the next one does not know.
    stored: BTreeSet<Vec<u8>>,
    onlookers: Onlookers,
}

impl VoterHost {
    /// People are told, and programs if other processes vote than before.
    fn tell(&self, fact: &Fact) {
        match fact.is_warning() {
            true => warn!("{fact}"),
            false => info!("{fact}"),
        }
        let voters = match fact {
            // At the beginning, not all of them have said where they are.
            Fact::Founded { voters } | Fact::Fewer { voters } => voters.clone(),
            Fact::Replaced { .. } => self.voter.voters(),
            _ => return,
        };
        let event = RendezvousEvent::new(NodeState::Running, fact.to_string());
        (self.onlookers).record(event.about(GroupEvent::VotersChanged { voters }));
    }
}

impl Host for VoterHost {
    type Machine = Voter;

    fn machine(&self) -> &Voter {
        &self.voter
    }

    fn machine_mut(&mut self) -> &mut Voter {
        &mut self.voter
    }

    fn apply(&mut self, output: Output, reach: &mut Reach<'_>) -> Option<coordinator::Output> {
        match output {
            Output::Coordinator(output) => {
                match &output {
                    coordinator::Output::Store { key, .. } => {
                        self.stored.insert(key.clone());
                    }
                    coordinator::Output::Remove(key) => drop(self.stored.remove(key)),
                    _ => {}
                }
                return Some(output);
            }
            Output::ToPeer { place, frame } => {
                if let Some(link) = self.links.get(&place) {
                    link.send(frame);
                }
            }
            Output::Dismiss(id, why) => reach.dismiss(id, why),
            Output::Greet(frame) => {
                let links = self.links.values();
                links.for_each(|link| link.greet(frame.clone()));
            }
            Output::Reply(to, bytes) => reach.send(to, &bytes),
            Output::SteppedDown => {
                for key in std::mem::take(&mut self.stored) {
                    reach.remove(&key);
                }
            }
            Output::Retire => self.links.clear(),
            Output::Log(fact) => self.tell(&fact),
        }
        None
    }

    fn probe_answer(&self) -> u32 {
        match self.voter.coordinates() {
            true => PROBE_ANSWER,
            false => PROBE_VOTER,
        }
    }

    fn is_active(&self) -> bool {
        self.voter.is_active()
    }

    fn has_joined(&self, connection: ConnId) -> bool {
        self.voter.has_joined(connection)
    }

    fn has_ended(&self) -> bool {
        !self.voter.hands_over()
    }

    fn view(&self, now: Now) -> GroupView {
        self.voter.view(now)
    }

    fn silence(&self, connection: ConnId) -> Option<Duration> {
        self.voter.silence(connection)
    }
}
