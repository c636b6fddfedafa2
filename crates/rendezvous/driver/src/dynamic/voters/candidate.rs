//! An agent's part in a group of voters that agents may join.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdzv_core::endpoint::Endpoint;
use rdzv_lock::{Mutex, MutexGuard};
use rdzv_store::{StoreError, TcpStoreServer};

use super::redirect::Redirect;
use super::search::Search;
use crate::dynamic::note::NoteFile;

/// The server of an agent that is a voter. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct OwnVoter(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    server: Mutex<Option<TcpStoreServer>>,
    has_others: AtomicBool,
}

impl OwnVoter {
    /// One that runs.
    pub fn new(server: TcpStoreServer) -> Self {
        let voter = Self::default();
        *voter.lock() = Some(server);
        voter
    }

    /// The server.
    pub fn lock(&self) -> MutexGuard<'_, Option<TcpStoreServer>> {
        self.0.server.lock()
    }

    /// Whether the group has other members, as the coordinator has told last.
    pub fn has_others(&self) -> bool {
        self.0.has_others.load(Ordering::Relaxed)
    }
}

/// Starts the server of a voter, which introduces itself to these members.
pub type StartVoter = Box<dyn Fn(&[String]) -> Result<TcpStoreServer, StoreError> + Send>;

/// An agent that looks for the coordinator at the members of a group, and may become one of them.
pub struct Candidate {
    /// The endpoint of the job.
    pub endpoint: Endpoint,
    /// The start of a voter; nothing for an agent whose server is at the endpoint.
    pub start: Option<StartVoter>,
    /// The server, once it is one.
    pub voter: OwnVoter,
    /// The note for the next agent here.
    pub note: Option<NoteFile>,
    /// Answers at the endpoint, if that is this machine.
    pub redirect: Option<Redirect>,
}

impl fmt::Debug for Candidate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_voter = self.voter.lock().is_some();
        write!(
            formatter,
            "Candidate(at {}, voter: {is_voter})",
            self.endpoint
        )
    }
}

impl Candidate {
    /// Whether it can become a voter, and is none.
    pub(in crate::dynamic) fn is_willing(&self) -> bool {
        self.start.is_some() && self.voter.lock().is_none()
    }

    /// The members of the group have changed. Returns whether this agent is no candidate any more, as it is a member now or
    /// cannot be one.
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
            // As long as there is one member, nobody is to be looked for elsewhere.
            None if has_others => {
                *search = Some(Search::of_open_group(self.endpoint.clone(), members));
            }
            None => {}
        }
        if let Some(redirect) = &mut self.redirect {
            match invites {
                // It may listen at the endpoint.
                true => redirect.stop(),
                false => redirect.members_changed(members),
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
            tracing::error!("the note for the next agent cannot be written: {error}");
        }
        false
    }
}
