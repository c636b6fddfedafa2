//! Open group: voters of a job with one endpoint, whose agent founds the group.
//!
//! The agent at the endpoint runs the first voter, which coordinates immediately. Other agents
//! become voters on request of the coordinator ([`VoterCandidate`]). Each of them then has a server
//! at a separate port, or at the endpoint if that is vacant and on its machine. The agent that
//! replaces a killed agent finds its sockets, and a record with the endpoints of the other members.

use std::net::TcpListener;
use std::{io, slice};

use rdzv_core::endpoint::Endpoint;
use rdzv_rendezvous_proto::coordinator::{Note, Origin};
use rdzv_store::{ServerOptions, StoreError, TcpStoreServer};
use rdzv_voters::{Open, Start};

use super::candidate::{OwnVoter, StartVoter, VoterCandidate};
use super::listed::{become_voter, bind_endpoint, start_voter};
use super::redirect::Redirect;
use super::voter::VoterOptions;
use crate::bind::loopback;
use crate::dynamic::node;
use crate::dynamic::note::NoteFile;
use crate::dynamic::options::Options;
use crate::{Kept, Onlookers};

/// Endpoint of the job, with the options and onlookers of this agent.
pub(in crate::dynamic) type Site<'a> = (&'a Endpoint, &'a Options, &'a Onlookers);

/// Sockets and record of the previous agent.
pub(in crate::dynamic) struct Left {
    /// Sockets of the previous agent, if it was a voter.
    listeners: Vec<TcpListener>,
    note: Note,
}

impl Left {
    /// Reads the record of an agent that knew others, or was alone elsewhere.
    ///
    /// "Alone elsewhere" means that the agent was the only member, but not at the endpoint. `None`
    /// for any other agent.
    pub(in crate::dynamic) fn by_member(
        endpoint: &Endpoint,
        options: &Options,
    ) -> Result<Option<Self>, StoreError> {
        let Some(kept) = options.kept.as_ref().filter(|_| options.most_voters > 1) else {
            return Ok(None);
        };
        let explain = |source| StoreError::Listen {
            address: options.endpoint(),
            source,
        };
        let note = note_file(kept, options).map_err(explain)?.note().clone();
        let is_elsewhere = !note.address.is_empty() && note.address != endpoint.to_string();
        if note.voters.is_empty() && !is_elsewhere {
            return Ok(None);
        }
        let listeners = kept.listeners().map_err(explain)?;
        Ok(Some(Self { listeners, note }))
    }

    /// Restarts the voter of the previous agent, if that agent was one.
    ///
    /// Returns the voter and the members of the group.
    pub(in crate::dynamic) fn resume(
        self,
        (endpoint, options, onlookers): Site<'_>,
    ) -> Result<(OwnVoter, Vec<String>), StoreError> {
        let Self { listeners, note } = self;
        let mut members = note.voters.clone();
        let Some(own) = endpoint_of(&note, &listeners) else {
            // No client must connect to these sockets.
            if let Some(kept) = &options.kept {
                kept.release_listeners();
            }
            return Ok((OwnVoter::default(), members));
        };
        members.push(own.to_string());
        let is_alone = note.voters.is_empty();
        let note = Box::new(note);
        let start = if is_alone {
            let origin = origin(&listeners, options);
            Start::Alone { note, origin }
        } else {
            Start::Returns { note }
        };
        let site = (endpoint, options, onlookers);
        let server = serve(site, own, &members, listeners, start)?;
        Ok((OwnVoter::new(server), members))
    }
}

/// Returns the origin of a coordinator that starts in this process.
pub(in crate::dynamic) fn origin(listeners: &[TcpListener], options: &Options) -> Origin {
    Origin {
        agent: options.kept.as_ref().map(Kept::instance),
        addresses: node::addresses(listeners),
        recover: options.recover,
        ..Origin::default()
    }
}

/// Opens the record of the previous agent, which the next one reads too.
fn note_file(kept: &Kept, options: &Options) -> io::Result<NoteFile> {
    let mut note = NoteFile::over(kept.coordinator_slots()?, options.coordinator_timeout);
    note.reopen()?;
    Ok(note)
}

/// Returns the endpoint of the previous agent, if it was a member there.
///
/// An agent that was killed between the request to vote and its membership has left sockets that
/// its record does not mention.
fn endpoint_of(note: &Note, listeners: &[TcpListener]) -> Option<Endpoint> {
    let endpoint = Endpoint::parse(&note.address, 0).ok()?;
    let mut bound = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok());
    bound
        .any(|bound| bound.port() == endpoint.port)
        .then_some(endpoint)
}

/// Makes a server the voter at the endpoint.
///
/// The voter founds the group, or continues as the only member.
pub(in crate::dynamic) fn found(
    server: &mut ServerOptions,
    (endpoint, options, onlookers): Site<'_>,
    listeners: Vec<TcpListener>,
    origin: Origin,
) -> io::Result<()> {
    let note = options.kept.as_ref().map(|kept| note_file(kept, options));
    let note = note.transpose()?;
    let first = Note::new(fastrand::u64(1..), options.coordinator_timeout);
    let start = Start::Alone {
        note: Box::new(note.as_ref().map_or(first, |note| note.note().clone())),
        origin,
    };
    let voter = voter(
        slice::from_ref(endpoint),
        0,
        start,
        note,
        (options, onlookers),
    );
    become_voter(server, listeners, voter)
}

/// Returns the candidacy of an agent, with its server if it is a voter.
///
/// Other voters reach it at `address`; without an address, it does not become a voter. `is_here` is
/// `true` if the endpoint is on this machine.
pub(in crate::dynamic) fn candidate(
    (endpoint, options, onlookers): Site<'_>,
    voter: OwnVoter,
    address: Option<String>,
    is_here: bool,
) -> VoterCandidate {
    // A voter writes the record itself.
    let is_voter = address.is_none() || voter.lock().is_some();
    let kept = options.kept.as_ref().filter(|_| !is_voter);
    let note = kept.and_then(|kept| note_file(kept, options).ok());
    let (endpoint, options, onlookers) = (endpoint.clone(), options.clone(), onlookers.clone());
    let redirects = is_here && address.is_some();
    VoterCandidate {
        endpoint: endpoint.clone(),
        redirect: redirects.then(|| Redirect::new(endpoint.clone(), options.policy.clone())),
        start: address.map(|address| -> StartVoter {
            Box::new(move |members| {
                let site = (&endpoint, &options, &onlookers);
                invited(site, &address, is_here, members)
            })
        }),
        voter,
        note,
    }
}

/// Becomes a voter on request of the coordinator.
///
/// On the endpoint's machine, it listens at the endpoint if no other process does. New nodes then
/// find the group there.
fn invited(
    (endpoint, options, onlookers): Site<'_>,
    address: &str,
    is_here: bool,
    members: &[String],
) -> Result<TcpStoreServer, StoreError> {
    let explain = |source| StoreError::Listen {
        address: address.to_owned(),
        source,
    };
    // A process there that is not a member is about to exit.
    let is_vacant = is_here && !members.contains(&endpoint.to_string());
    let at_endpoint =
        is_vacant.then(|| bind_endpoint(slice::from_ref(endpoint), options.read_timeout));
    let (own, listeners) = match at_endpoint.flatten() {
        Some((_, listeners)) => (endpoint.clone(), listeners),
        None => {
            let listeners = TcpStoreServer::listen(loopback(&endpoint.host).as_deref(), 0)?;
            let bound = listeners.iter().map(TcpListener::local_addr).next_back();
            let bound = bound.transpose().map_err(explain)?;
            let own = Endpoint {
                host: address.to_owned(),
                port: bound.map_or(0, |bound| bound.port()),
            };
            (own, listeners)
        }
    };
    if let Some(kept) = &options.kept {
        // Keep the sockets for the next agent before the server accepts any client.
        kept.keep_listeners(&listeners).map_err(explain)?;
    }
    let site = (endpoint, options, onlookers);
    serve(site, own, members, listeners, Start::Invited)
}

fn serve(
    (endpoint, options, onlookers): Site<'_>,
    own: Endpoint,
    members: &[String],
    listeners: Vec<TcpListener>,
    start: Start,
) -> Result<TcpStoreServer, StoreError> {
    let mut endpoints = vec![endpoint.clone()];
    let members = members
        .iter()
        .filter_map(|member| Endpoint::parse(member, 0).ok());
    for endpoint in members.chain([own.clone()]) {
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    let at = endpoints
        .iter()
        .position(|endpoint| *endpoint == own)
        .unwrap_or(0);
    let note = options.kept.as_ref().map(|kept| note_file(kept, options));
    let note = note.transpose().map_err(|source| StoreError::Listen {
        address: own.to_string(),
        source,
    })?;
    let server = options.policy.server(loopback(&endpoint.host), own.port);
    let voter = voter(&endpoints, at, start, note, (options, onlookers));
    start_voter(server, listeners, voter)
}

/// Returns the options of a voter at the endpoint with index `own`.
fn voter(
    endpoints: &[Endpoint],
    own: usize,
    start: Start,
    note: Option<NoteFile>,
    (options, onlookers): (&Options, &Onlookers),
) -> VoterOptions {
    let mut voter = VoterOptions::of_agent(endpoints, own, options, onlookers);
    voter.settings.open = Some(Open {
        run: options.run_id.as_str().to_owned(),
        most: options.most_voters,
        start,
    });
    voter.note = note;
    voter
}
