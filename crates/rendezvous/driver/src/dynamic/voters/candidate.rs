//! Candidacy of an agent in a group of voters that agents may join.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdzv_core::endpoint::Endpoint;
use rdzv_lock::{Mutex, MutexGuard};
use rdzv_store::{StoreError, TcpStoreServer};

use super::redirect::Redirect;
use super::search::Search;
use crate::dynamic::note::NoteFile;

/// Server of an agent that is a voter. Clones share one server.
#[derive(Debug, Clone, Default)]
pub struct OwnVoter(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    server: Mutex<Option<TcpStoreServer>>,
    has_others: AtomicBool,
}

impl OwnVoter {
    /// Wraps a running server.
    pub fn new(server: TcpStoreServer) -> Self {
        let voter = Self::default();
        *voter.lock() = Some(server);
        voter
    }

    /// Locks and returns the server.
    pub fn lock(&self) -> MutexGuard<'_, Option<TcpStoreServer>> {
        self.0.server.lock()
    }

    /// `true` if the group has other members, according to the coordinator.
    pub fn has_others(&self) -> bool {
        self.0.has_others.load(Ordering::Relaxed)
    }
}

/// Closure that starts a voter's server, which introduces itself to members.
pub type StartVoter = Box<dyn Fn(&[String]) -> Result<TcpStoreServer, StoreError> + Send>;

/// Agent that finds the coordinator through a group, and may become a member.
pub struct VoterCandidate {
    /// Endpoint of the job.
    pub endpoint: Endpoint,
    /// Closure that starts a voter; `None` if this process serves the endpoint.
    pub start: Option<StartVoter>,
    /// Server of the voter, once the agent is one.
    pub voter: OwnVoter,
    /// Record for the next agent on this node.
    pub note: Option<NoteFile>,
    /// Redirect at the endpoint, if this machine has it and this process does not.
    pub redirect: Option<Redirect>,
}

impl fmt::Debug for VoterCandidate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_voter = self.voter.lock().is_some();
        write!(
            formatter,
            "Candidate(at {}, voter: {is_voter})",
            self.endpoint
        )
    }
}

impl VoterCandidate {
    /// `true` if the agent can become a voter, and is not one yet.
    pub(in crate::dynamic) fn is_willing(&self) -> bool {
        self.start.is_some() && self.voter.lock().is_none()
    }

    /// Handles a change of the members of the group.
    ///
    /// Returns `true` if the coordinator has invited this agent, which is then a member or cannot
    /// be one.
    pub(in crate::dynamic) fn members_changed(
        &mut self,
        members: &[String],
        invites: bool,
        search: &mut Option<Search>,
    ) -> bool {
        let has_others = members.len() > 1;
        self.voter.0.has_others.store(has_others, Ordering::Relaxed);
        match search {
            Some(search) => search.know(members),
            // With a single member, there is no other endpoint to search.
            None if has_others => {
                *search = Some(Search::of_open_group(self.endpoint.clone(), members));
            }
            None => {}
        }
        if let Some(redirect) = &mut self.redirect {
            if invites {
                redirect.stop();
            } else {
                redirect.members_changed(members);
            }
        }
        let mut voter = self.voter.lock();
        let Some(start) = self.start.as_ref().filter(|_| voter.is_none()) else {
            return invites;
        };
        if invites {
            match start(members) {
                Ok(server) => *voter = Some(server),
                Err(error) => tracing::warn!("this node cannot be a voter: {error}"),
            }
            return true;
        }
        if let Some(note) = &mut self.note
            && let Err(error) = note.keep_members(members.to_vec())
        {
            tracing::error!("cannot write the record for the next agent: {error}");
        }
        false
    }
}
