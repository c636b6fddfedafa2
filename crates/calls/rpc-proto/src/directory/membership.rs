//! The record of a dynamic group: one value, changed by compare-and-set.
//!
//! Each function takes the record as it is and gives the record as it would be. Whoever writes its
//! version first has decided; the others read again and ask again.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::member::{BadRecord, Departure, Member, read, written};
use super::view::{GroupView, NotUnique};
use crate::device::{DeviceFault, GroupKind, check};
use crate::worker::{WorkerId, WorkerInfo};

/// The form of the record. Another version is not guessed at.
const FORMAT: u32 = 1;

/// So many departures are remembered, for members that were slow to look.
const REMEMBERED: usize = 64;

/// Why somebody cannot join.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JoinRefusal {
    /// A member has the name or the id.
    #[error("{clash}")]
    Taken {
        /// What they share.
        clash: NotUnique,
        /// The member's incarnation: if that is dead, there will be room.
        holder: u64,
    },
    /// With the newcomer, the device maps would not fit together.
    #[error(transparent)]
    Devices(#[from] DeviceFault),
    /// The group has been ended; the next one has a record of its own.
    #[error("this dynamic RPC group is over")]
    Over,
}

/// The members of a dynamic group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    format: u32,
    epoch: u64,
    /// Nobody joins any more.
    #[serde(default)]
    over: bool,
    /// By id.
    members: Vec<Member>,
    /// Oldest first.
    departures: Vec<Departure>,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            format: FORMAT,
            epoch: 0,
            over: false,
            members: Vec::new(),
            departures: Vec::new(),
        }
    }
}

impl Membership {
    /// As it is kept in a store. Two versions never look the same.
    pub fn encode(&self) -> Vec<u8> {
        written(self)
    }

    /// Out of a store; nothing there is the empty group.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if it is something else, or of another format.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRecord> {
        const WHAT: &str = "the list of members of an RPC group";
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let record: Self = read(WHAT, bytes)?;
        if record.format != FORMAT {
            return Err(BadRecord {
                what: WHAT,
                reason: format!("its format is {}, not {FORMAT}", record.format),
                beginning: String::new(),
            });
        }
        Ok(record)
    }

    /// The version: it grows by one with every change, for ever.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// `true` if nobody is there.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// `true` if it has been ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ended, if nobody is there; `None` if somebody is, or if it is over already.
    pub fn end(&self) -> Option<Self> {
        let ended = Self {
            over: true,
            ..self.next()
        };
        (self.is_empty() && !self.over).then_some(ended)
    }

    /// The members by id.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// With a newcomer.
    ///
    /// # Errors
    ///
    /// [`JoinRefusal`] if its id or its name is taken (in this order), or if its device maps do not
    /// fit those of the members; or if the group is over. The record stays as it is then.
    pub fn join(&self, newcomer: &Member) -> Result<Self, JoinRefusal> {
        if self.over {
            return Err(JoinRefusal::Over);
        }
        let WorkerInfo { id, name } = &newcomer.info;
        for member in &self.members {
            let holder = member.incarnation;
            if member.info.id == *id {
                let clash = NotUnique::Id {
                    id: *id,
                    holder: member.info.name.clone(),
                    newcomer: name.clone(),
                };
                return Err(JoinRefusal::Taken { clash, holder });
            }
            if member.info.name == *name {
                let clash = NotUnique::Name {
                    name: name.clone(),
                    first: member.info.id,
                    second: *id,
                };
                return Err(JoinRefusal::Taken { clash, holder });
            }
        }
        let mut next = self.next();
        next.members.push(newcomer.clone());
        next.members.sort_by_key(|member| member.info.id);
        let nodes: Vec<_> = next.members.iter().map(Member::node).collect();
        check(&nodes, GroupKind::Dynamic)?;
        Ok(next)
    }

    /// Without somebody who leaves; `None` if it is not there.
    pub fn leave(&self, incarnation: u64) -> Option<Self> {
        self.without(|member| member.incarnation == incarnation, false)
    }

    /// Without those whose leases have run out; `None` if none of them is there.
    pub fn expire(&self, incarnations: &[u64]) -> Option<Self> {
        self.without(|member| incarnations.contains(&member.incarnation), true)
    }

    /// The group as a member sees it; `None` if it is not one.
    pub fn view(&self, incarnation: u64) -> Option<GroupView> {
        let mut members = self.members.iter();
        let me: WorkerId = members
            .find(|member| member.incarnation == incarnation)?
            .info
            .id;
        let view = GroupView::new(self.epoch, me, self.members.iter().cloned());
        // Nobody can write a record with two of a kind: `join` is the only way in.
        Some(view.ok()?.with_departures(self.departures.clone()))
    }

    fn next(&self) -> Self {
        Self {
            epoch: self.epoch + 1,
            ..self.clone()
        }
    }

    fn without(&self, goes: impl Fn(&Member) -> bool, lost: bool) -> Option<Self> {
        let gone = self.members.iter().filter(|member| goes(member));
        let gone: Vec<Departure> = gone
            .map(|member| Departure {
                info: member.info.clone(),
                incarnation: member.incarnation,
                lost,
            })
            .collect();
        if gone.is_empty() {
            return None;
        }
        let mut next = self.next();
        next.members.retain(|member| !goes(member));
        next.departures.extend(gone);
        let forgotten = next.departures.len().saturating_sub(REMEMBERED);
        next.departures.drain(..forgotten);
        Some(next)
    }
}

#[cfg(test)]
mod tests;
