//! Record of a dynamic group: one value, changed by compare-and-set.
//!
//! A change takes the current record and returns the changed record. The first worker to write
//! its version decides. Other workers read the record again and repeat the change.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::member::{BadRecord, Departure, Member, read, written};
use super::view::{GroupView, NotUnique};
use crate::device::{DeviceFault, GroupKind, check};
use crate::worker::{WorkerId, WorkerInfo};

/// Format of the record. A record of another version is refused.
const FORMAT: u32 = 1;

/// Maximum number of departures in the record, for members that poll slowly.
const REMEMBERED: usize = 64;

/// Reason why a worker cannot join.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JoinRefusal {
    /// A member already has the name or the id.
    #[error("{clash}")]
    Taken {
        /// Name or id that both have.
        clash: NotUnique,
        /// Incarnation of that member.
        ///
        /// If that member's process has ended, the name or id becomes free when the lease expires.
        holder: u64,
    },
    /// The device maps would not fit together with the new member.
    #[error(transparent)]
    Devices(#[from] DeviceFault),
    /// The group has ended. The next group has another record.
    #[error("this dynamic RPC group has ended")]
    Over,
}

/// The members of a dynamic group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    format: u32,
    epoch: u64,
    /// `true` if the group has ended: no further worker can join.
    #[serde(default)]
    over: bool,
    /// Sorted by id.
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
    /// Returns the stored form of the record. Two versions always differ.
    pub fn encode(&self) -> Vec<u8> {
        written(self)
    }

    /// Reads a record from its stored form; no bytes mean the empty group.
    ///
    /// # Errors
    ///
    /// [`BadRecord`] if the bytes are not a record, or have another format.
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

    /// Returns the version. It grows by one with every change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// `true` if the group has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// `true` if the group has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ends the group; `None` if it has members or has already ended.
    pub fn end(&self) -> Option<Self> {
        let ended = Self {
            over: true,
            ..self.next()
        };
        (self.is_empty() && !self.over).then_some(ended)
    }

    /// Returns the members, sorted by id.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Adds a member.
    ///
    /// # Errors
    ///
    /// [`JoinRefusal`] if the group has ended, if the id or the name is taken, or if the device
    /// maps do not fit together. On error, the record is unchanged.
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

    /// Removes a member that leaves; `None` if it is not in the group.
    pub fn leave(&self, incarnation: u64) -> Option<Self> {
        self.without(|member| member.incarnation == incarnation, false)
    }

    /// Removes members whose leases expired; `None` if none is in the group.
    pub fn expire(&self, incarnations: &[u64]) -> Option<Self> {
        self.without(|member| incarnations.contains(&member.incarnation), true)
    }

    /// Returns the group as a member sees it; `None` if it is not a member.
    pub fn view(&self, incarnation: u64) -> Option<GroupView> {
        let mut members = self.members.iter();
        let me: WorkerId = members
            .find(|member| member.incarnation == incarnation)?
            .info
            .id;
        let view = GroupView::new(self.epoch, me, self.members.iter().cloned());
        // No worker can write a record with a duplicate name or id, because only `join` adds
        // members.
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
