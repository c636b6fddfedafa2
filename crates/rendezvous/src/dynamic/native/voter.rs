//! A voter as an extension of a store server: the coordinator is here, or in another voter's server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER, PROBE_VOTER};
use rdzv_rendezvous_proto::coordinator::{self, Input, PREFIX};
use rdzv_rendezvous_proto::voter::{Output, Settings, Voter};
use rdzv_store_proto::server::{Extension, Reach};
use rdzv_trust::Credentials;
use tracing::{info, warn};

use super::extension::{perform, state};
use super::voter_link::VoterLink;

/// The parts of a [`voter()`].
#[derive(Debug)]
pub struct VoterOptions {
    /// The places of all voters, in the order in which every agent has them.
    pub places: Vec<Endpoint>,
    /// The place at which the server of this process listens, by its index.
    pub own: usize,
    /// The time for which agents wait for a coordinator.
    pub timeout: Duration,
    /// The proof that this process belongs to the job.
    pub credentials: Credentials,
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
        timeout,
        credentials,
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
        seed: fastrand::u64(..),
        timeout,
    });
    while let Some(output) = voter.poll_output() {
        if let Output::Greet(frame) = output {
            links.values().for_each(|link| link.greet(frame.clone()));
        }
    }
    Ok(Box::new(VoterExtension {
        voter,
        links,
        stored: BTreeSet::new(),
        scratch: Vec::new(),
    }))
}

#[derive(Debug)]
struct VoterExtension {
    voter: Voter,
    /// The connections to the other places.
    links: BTreeMap<usize, VoterLink>,
    /// The keys that the coordinator here has stored, which the next one does not know.
    stored: BTreeSet<Vec<u8>>,
    /// Where an event is written before it is sent.
    scratch: Vec<u8>,
}

impl VoterExtension {
    fn handle(&mut self, now: Now, input: Input<'_>, reach: &mut Reach<'_>) {
        self.voter.handle(now, input);
        let mut reads = self.apply(reach);
        // A value may lead to more keys to read.
        while let Some(key) = reads.pop() {
            let value = state(&key, reach);
            let value = value.as_deref();
            self.voter.handle(now, Input::Found { key: &key, value });
            let more = self.apply(reach);
            reads.splice(0..0, more);
        }
    }

    /// Returns the keys to read, the first at the end.
    fn apply(&mut self, reach: &mut Reach<'_>) -> Vec<Vec<u8>> {
        let mut reads = Vec::new();
        while let Some(output) = self.voter.poll_output() {
            match output {
                Output::Coordinator(output) => {
                    match &output {
                        coordinator::Output::Store { key, .. } => {
                            self.stored.insert(key.clone());
                        }
                        coordinator::Output::Remove(key) => drop(self.stored.remove(key)),
                        _ => {}
                    }
                    reads.extend(perform(output, reach, &mut self.scratch));
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
                Output::Log(fact) if fact.is_warning() => warn!("{fact}"),
                Output::Log(fact) => info!("{fact}"),
            }
        }
        reads.reverse();
        reads
    }
}

impl Extension for VoterExtension {
    fn prefix(&self) -> &[u8] {
        PREFIX.as_bytes()
    }

    fn probe(&self) -> (u32, u32) {
        match self.voter.coordinates() {
            true => (PROBE, PROBE_ANSWER),
            false => (PROBE, PROBE_VOTER),
        }
    }

    fn watches(&self) -> bool {
        self.voter.is_active()
    }

    fn request(
        &mut self,
        now: Now,
        from: ConnId,
        opcode: u8,
        payload: &[u8],
        reach: &mut Reach<'_>,
    ) {
        let request = Input::Request {
            from,
            opcode,
            payload,
        };
        self.handle(now, request, reach);
        if self.voter.has_joined(from) {
            reach.join(from);
        }
    }

    fn closed(&mut self, now: Now, id: ConnId, reach: &mut Reach<'_>) {
        self.handle(now, Input::Closed(id), reach);
    }

    fn before(&mut self, now: Now, key: &[u8], writes: bool, reach: &mut Reach<'_>) {
        self.handle(now, Input::Touching { key, writes }, reach);
    }

    fn after(&mut self, now: Now, key: &[u8], reach: &mut Reach<'_>) {
        let value = state(key, reach);
        let value = value.as_deref();
        self.handle(now, Input::Stored { key, value }, reach);
    }

    fn ending(&mut self, now: Now, reach: &mut Reach<'_>) {
        self.handle(now, Input::Ending, reach);
    }

    fn deadline(&self) -> Option<Mono> {
        self.voter.deadline()
    }

    fn tick(&mut self, now: Now, reach: &mut Reach<'_>) {
        self.handle(now, Input::Tick, reach);
    }
}
