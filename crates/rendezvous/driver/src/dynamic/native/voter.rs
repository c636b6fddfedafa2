//! A voter as an extension of a store server: the coordinator is here, or in another voter's server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::rules::Rules;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator;
use rdzv_rendezvous_proto::coordinator::wire::{PROBE_ANSWER, PROBE_VOTER};
use rdzv_rendezvous_proto::group::GroupView;
use rdzv_store_proto::server::{Extension, Reach};
use rdzv_trust::Credentials;
use rdzv_voters::{Fact, Open, Output, Settings, Voter};
use tracing::{error, info, warn};

use super::NoteFile;
use super::extension::{Host, beside};
use super::voter_link::VoterLink;
use crate::{GroupEvent, NodeState, Onlookers, RendezvousEvent};

/// The parts of a [`voter()`].
#[derive(Debug)]
pub struct VoterOptions {
    /// The places of all voters, in the order in which every agent has them. Of a group that agents may join, those that are
    /// known, the endpoint of the job first.
    pub places: Vec<Endpoint>,
    /// Agents may join the group.
    pub open: Option<Open>,
    /// The note for the next process here; only of a group that agents may join.
    pub note: Option<NoteFile>,
    /// The place at which the server of this process listens, by its index.
    pub own: usize,
    /// No agent runs in this process, so it is to coordinate if it can.
    pub is_store: bool,
    /// The instance of the agent in this process, as its joins say it; none if it has no keeper, or there is no agent.
    pub agent: Option<u64>,
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
/// extension requests of [`FRAME_BOUND`](rdzv_voters::FRAME_BOUND) bytes.
///
/// # Errors
///
/// If the runtime of the links to the other places cannot be started.
pub fn voter(options: VoterOptions) -> io::Result<Box<dyn Extension>> {
    let VoterOptions {
        places,
        open,
        note,
        own,
        is_store,
        agent,
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
    let is_open = open.is_some();
    let voter = Voter::new(Settings {
        places: places.iter().map(Endpoint::to_string).collect(),
        open,
        own,
        is_store,
        agent,
        seed: fastrand::u64(..),
        timeout,
        node_timeout,
        rules: Rules::default(),
    });
    let mut host = VoterHost {
        voter,
        links,
        credentials,
        greeting: Vec::new(),
        note,
        stored: BTreeSet::new(),
        onlookers: onlookers.clone(),
    };
    host.begin();
    if is_open {
        // One that is alone coordinates from its first connection on.
        host.voter.handle(Now::default(), coordinator::Input::Tick);
        host.begin();
    }
    Ok(beside(host, onlookers))
}

/// A voter beside a store.
#[derive(Debug)]
struct VoterHost {
    voter: Voter,
    /// The connections to the other places.
    links: BTreeMap<usize, VoterLink>,
    credentials: Credentials,
    /// The first frames of a connection.
    greeting: Vec<u8>,
    /// The note for the next process here.
    note: Option<NoteFile>,
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
            Fact::Founded { voters } | Fact::Fewer { voters } | Fact::Voters { voters, .. } => {
                voters.clone()
            }
            Fact::Replaced { .. } => self.voter.voters(),
            _ => return,
        };
        let event = RendezvousEvent::new(NodeState::Running, fact.to_string());
        (self.onlookers).record(event.about(GroupEvent::VotersChanged { voters }));
    }

    /// Applies what follows from the start, before there is a server.
    fn begin(&mut self) {
        while let Some(output) = self.voter.poll_output() {
            self.of_itself(output);
        }
    }

    /// Applies an output that has nothing to do with the store or its connections.
    fn of_itself(&mut self, output: Output) {
        match output {
            Output::ToPeer { place, frame } => {
                if let Some(link) = self.links.get(&place) {
                    link.send(frame);
                }
            }
            Output::Greet(frame) => {
                let links = self.links.values();
                links.for_each(|link| link.greet(frame.clone()));
                self.greeting = frame;
            }
            Output::Call { place, address } => self.call(place, address),
            Output::Note(note) => {
                if let Some(file) = &mut self.note
                    && let Err(error) = file.replace(*note)
                {
                    error!("the note for the next voter cannot be written: {error}");
                }
            }
            Output::Retire => self.links.clear(),
            Output::Log(fact) => self.tell(&fact),
            Output::Coordinator(_)
            | Output::Dismiss(..)
            | Output::Reply(..)
            | Output::SteppedDown => {}
        }
    }

    fn call(&mut self, place: usize, address: Option<String>) {
        self.links.remove(&place);
        let Some(address) = address else { return };
        let link = Endpoint::parse(&address, 0)
            .map_err(|error| error.to_string())
            .and_then(|endpoint| {
                let link = VoterLink::start(endpoint, self.credentials.clone());
                link.map_err(|error| error.to_string())
            });
        match link {
            Ok(link) => {
                link.greet(self.greeting.clone());
                self.links.insert(place, link);
            }
            Err(error) => warn!("the voter at {address} cannot be called: {error}"),
        }
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
            Output::Dismiss(id, why) => reach.dismiss(id, why),
            Output::Reply(to, bytes) => reach.send(to, &bytes),
            Output::SteppedDown => {
                for key in std::mem::take(&mut self.stored) {
                    reach.remove(&key);
                }
            }
            output => self.of_itself(output),
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
