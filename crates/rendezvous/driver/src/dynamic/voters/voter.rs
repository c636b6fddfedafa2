//! Voter as an extension of a store server, which may run the coordinator.

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
use rdzv_rendezvous_proto::group::VoterGroupView;
use rdzv_store_proto::server::{Extension, Reach};
use rdzv_trust::Credentials;
use rdzv_voters::{Fact, Output, Settings, Voter};
use tracing::{error, info, warn};

use super::link::VoterLink;
use crate::dynamic::extension::{Host, beside};
use crate::dynamic::note::NoteFile;
use crate::dynamic::options::Options;
use crate::{GroupEvent, Kept, NodeState, Onlookers, RendezvousEvent};

/// Parameters of a [`voter()`].
#[derive(Debug)]
pub(super) struct VoterOptions {
    pub(super) settings: Settings,
    /// Record for the next process on this node; only in an open group.
    pub(super) note: Option<NoteFile>,
    /// Credentials that prove that this process belongs to the job.
    pub(super) credentials: Credentials,
    /// Receivers of information about the group.
    pub(super) onlookers: Onlookers,
}

impl VoterOptions {
    /// Returns the options of the voter with index `own`, in an agent.
    pub(super) fn of_agent(
        endpoints: &[Endpoint],
        own: usize,
        options: &Options,
        onlookers: &Onlookers,
    ) -> Self {
        Self {
            settings: Settings {
                endpoints: endpoints.iter().map(Endpoint::to_string).collect(),
                open: None,
                own,
                is_store: false,
                agent: options.kept.as_ref().map(Kept::instance),
                seed: fastrand::u64(..),
                timeout: options.coordinator_timeout,
                node_timeout: options.settings.node_timeout,
                rules: Rules::default(),
            },
            note: None,
            credentials: options.policy.credentials.clone(),
            onlookers: onlookers.clone(),
        }
    }
}

/// Creates the extension of a voter's [server](rdzv_store::ServerOptions).
///
/// The limits of the server must allow extension requests of
/// [`FRAME_BOUND`](rdzv_voters::FRAME_BOUND) bytes.
///
/// # Errors
///
/// Returns an error if the runtime of the links to the other voters cannot start.
pub(super) fn voter(options: VoterOptions) -> io::Result<Box<dyn Extension>> {
    let VoterOptions {
        settings,
        note,
        credentials,
        onlookers,
    } = options;
    let mut links = BTreeMap::new();
    let peers = settings.endpoints.iter().enumerate();
    for (index, peer) in peers.filter(|(index, _)| *index != settings.own) {
        links.insert(index, VoterLink::start(peer, &credentials)?);
    }
    let is_open = settings.open.is_some();
    let mut host = VoterHost {
        voter: Voter::new(settings),
        links,
        credentials,
        greeting: Vec::new(),
        note,
        stored: BTreeSet::new(),
        onlookers: onlookers.clone(),
    };
    host.begin();
    if is_open {
        // A voter that is alone coordinates from its first connection on.
        host.voter.handle(Now::default(), coordinator::Input::Tick);
        host.begin();
    }
    Ok(beside(host, onlookers))
}

#[derive(Debug)]
struct VoterHost {
    voter: Voter,
    /// Connections to the other voters, by index.
    links: BTreeMap<usize, VoterLink>,
    credentials: Credentials,
    /// First frame of each connection.
    greeting: Vec<u8>,
    /// Record for the next process on this node.
    note: Option<NoteFile>,
    /// Keys that the coordinator here has stored, unknown to the next one.
    stored: BTreeSet<Vec<u8>>,
    onlookers: Onlookers,
}

impl VoterHost {
    /// Logs a fact. If the voters have changed, this also records an event.
    fn tell(&self, fact: &Fact) {
        if fact.is_warning() {
            warn!("{fact}");
        } else {
            info!("{fact}");
        }
        let voters = match fact {
            // At the start, some of them have not sent their addresses yet.
            Fact::Founded { voters } | Fact::Fewer { voters } | Fact::Voters { voters, .. } => {
                voters.clone()
            }
            Fact::Replaced { .. } => self.voter.voters(),
            _ => return,
        };
        let event = RendezvousEvent::new(NodeState::Running, fact.to_string());
        (self.onlookers).record(event.about(GroupEvent::VotersChanged { voters }));
    }

    /// Applies the outputs of the start, before there is a server.
    fn begin(&mut self) {
        while let Some(output) = self.voter.poll_output() {
            self.of_itself(output);
        }
    }

    /// Applies an output that does not concern the store or its connections.
    fn of_itself(&mut self, output: Output) {
        match output {
            Output::ToPeer { index, frame } => {
                if let Some(link) = self.links.get(&index) {
                    link.send(frame);
                }
            }
            Output::Greet(frame) => {
                let links = self.links.values();
                links.for_each(|link| link.greet(frame.clone()));
                self.greeting = frame;
            }
            Output::Call { index, address } => self.call(index, address),
            Output::Note(note) => {
                if let Some(file) = &mut self.note
                    && let Err(error) = file.replace(*note)
                {
                    error!("cannot write the record for the next voter: {error}");
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

    fn call(&mut self, index: usize, address: Option<String>) {
        self.links.remove(&index);
        let Some(address) = address else { return };
        match VoterLink::start(&address, &self.credentials) {
            Ok(link) => {
                link.greet(self.greeting.clone());
                self.links.insert(index, link);
            }
            Err(error) => warn!("cannot connect to the voter at {address}: {error}"),
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
        if self.voter.coordinates() {
            PROBE_ANSWER
        } else {
            PROBE_VOTER
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

    fn view(&self, now: Now) -> VoterGroupView {
        self.voter.view(now)
    }

    fn silence(&self, connection: ConnId) -> Option<Duration> {
        self.voter.silence(connection)
    }
}
