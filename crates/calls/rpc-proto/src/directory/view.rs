//! Group as one of its members sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use super::member::{Departure, Member};
use crate::device::{
    Device, DeviceFault, DeviceMap, GroupKind, Node, check, device_list, reverse_maps,
};
use crate::worker::{WorkerId, WorkerName};

/// Reason why two workers cannot be in one group, with PyTorch's texts.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotUnique {
    /// Both have the same name.
    #[error(
        "RPC worker name {name} is not unique. Workers {first} and {second} share the same name."
    )]
    Name {
        /// The name.
        name: WorkerName,
        /// Id of one worker: the first one, if that is known.
        first: WorkerId,
        /// Id of the other worker.
        second: WorkerId,
    },
    /// Both have the same id.
    #[error(
        "RPC worker id {id} is not unique. Worker {holder} and already has ID and {newcomer} cannot be added."
    )]
    Id {
        /// The id.
        id: WorkerId,
        /// Name of the first worker.
        holder: WorkerName,
        /// Name of the worker that came later.
        newcomer: WorkerName,
    },
}

/// Change between two views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewChange {
    /// A worker joined.
    Joined(Arc<Member>),
    /// A worker left the group.
    Left(Arc<Member>),
    /// A worker was lost: its lease expired.
    Lost(Arc<Member>),
}

/// All members of a group, with the device maps of one of them.
///
/// Each change creates a new view, so an owner of a view always sees one state of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    epoch: u64,
    me: Arc<Member>,
    members: BTreeMap<WorkerId, Arc<Member>>,
    reverse_maps: BTreeMap<String, DeviceMap>,
    devices: Vec<Device>,
    departures: Vec<Departure>,
}

impl GroupView {
    /// Creates the view of the member `me`.
    ///
    /// # Errors
    ///
    /// [`NotUnique`] if two members have the same id or name. Of several pairs with equal names,
    /// the error contains the pair whose second id is lowest.
    ///
    /// # Panics
    ///
    /// Panics if `me` is not among the members.
    pub fn new(
        epoch: u64,
        me: WorkerId,
        members: impl IntoIterator<Item = Member>,
    ) -> Result<Self, NotUnique> {
        let mut by_id: BTreeMap<WorkerId, Arc<Member>> = BTreeMap::new();
        for member in members {
            let id = member.info.id;
            if let Some(holder) = by_id.get(&id) {
                return Err(NotUnique::Id {
                    id,
                    holder: holder.info.name.clone(),
                    newcomer: member.info.name,
                });
            }
            by_id.insert(id, Arc::new(member));
        }
        let mut ids = BTreeMap::new();
        for (second, member) in &by_id {
            let name = &member.info.name;
            if let Some(first) = ids.insert(name.clone(), *second) {
                return Err(NotUnique::Name {
                    name: name.clone(),
                    first,
                    second: *second,
                });
            }
        }
        let me = Arc::clone(by_id.get(&me).expect("a view is that of a member"));
        let nodes = nodes(&by_id);
        let reverse_maps = reverse_maps(me.info.name.as_str(), &nodes);
        Ok(Self {
            epoch,
            devices: device_list(&me.device, &reverse_maps),
            reverse_maps,
            me,
            members: by_id,
            departures: Vec::new(),
        })
    }

    /// Adds the members that have left recently.
    #[must_use]
    pub(super) fn with_departures(mut self, departures: Vec<Departure>) -> Self {
        self.departures = departures;
        self
    }

    /// Checks the devices of all members.
    ///
    /// # Errors
    ///
    /// [`DeviceFault`]: the first broken rule, the same for every member.
    pub fn check_devices(&self, kind: GroupKind) -> Result<(), DeviceFault> {
        check(&nodes(&self.members), kind)
    }

    /// Returns the version of the group.
    ///
    /// In a static group, this is the number of the round. In a dynamic group, the version grows by
    /// one with every change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the member whose view this is.
    pub fn me(&self) -> &Arc<Member> {
        &self.me
    }

    /// Returns all members by their ids, this one included.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// Returns the member with this id, if there is one.
    pub fn with_id(&self, id: WorkerId) -> Option<&Arc<Member>> {
        self.members.get(&id)
    }

    /// Returns the member with this name, if there is one.
    pub fn named(&self, name: &str) -> Option<&Arc<Member>> {
        self.members()
            .find(|member| member.info.name.as_str() == name)
    }

    /// Returns the map from this member's devices to those of a callee.
    pub fn device_map(&self, callee: &WorkerName) -> Option<&DeviceMap> {
        self.me.device.device_maps.get(callee.as_str())
    }

    /// Returns the map for replies, from this member's devices to a caller's.
    pub fn reverse_map(&self, caller: &WorkerName) -> Option<&DeviceMap> {
        self.reverse_maps.get(caller.as_str())
    }

    /// Returns the maps for replies, by the names of the callers.
    pub fn reverse_maps(&self) -> &BTreeMap<String, DeviceMap> {
        &self.reverse_maps
    }

    /// Returns the devices that this member uses, in order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns at most `most` members that follow this one by id.
    ///
    /// The lowest id follows the highest. This member watches the leases of these members.
    pub fn followers(&self, most: usize) -> impl Iterator<Item = &Arc<Member>> {
        let me = self.me.info.id;
        let after = self.members.range(me..).skip(1);
        let before = self.members.range(..me);
        after.chain(before).map(|(_, member)| member).take(most)
    }

    /// Returns the changes since an older view of the same member.
    pub fn changes_since(&self, older: &Self) -> Vec<ViewChange> {
        let is_in = |view: &Self, member: &Member| {
            let there = view.members.get(&member.info.id);
            there.is_some_and(|there| there.incarnation == member.incarnation)
        };
        let gone = older.members().filter(|member| !is_in(self, member));
        let gone = gone.map(|member| {
            let lost = |departure: &Departure| {
                departure.lost && departure.incarnation == member.incarnation
            };
            if self.departures.iter().any(lost) {
                ViewChange::Lost(Arc::clone(member))
            } else {
                ViewChange::Left(Arc::clone(member))
            }
        });
        let come = self.members().filter(|member| !is_in(older, member));
        gone.chain(come.map(|member| ViewChange::Joined(Arc::clone(member))))
            .collect()
    }
}

fn nodes(members: &BTreeMap<WorkerId, Arc<Member>>) -> Vec<Node<'_>> {
    members.values().map(|member| member.node()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::member::tests::member;
    use super::*;

    fn view(members: &[(&str, u32)]) -> Result<GroupView, NotUnique> {
        let members = members.iter().map(|(name, id)| member(name, *id));
        GroupView::new(
            1,
            WorkerId(members.clone().next().unwrap().info.id.0),
            members,
        )
    }

    #[test]
    fn names_and_ids_are_unique() {
        assert_eq!(
            view(&[("a", 0), ("b", 1), ("a", 2)])
                .unwrap_err()
                .to_string(),
            "RPC worker name a is not unique. Workers 0 and 2 share the same name."
        );
        assert_eq!(
            view(&[("a", 0), ("b", 0)]).unwrap_err().to_string(),
            "RPC worker id 0 is not unique. Worker a and already has ID and b cannot be added."
        );
    }

    #[test]
    fn members_are_found_by_name_and_by_id() {
        let view = view(&[("a", 4), ("b-1", 7)]).unwrap();
        assert_eq!(view.named("b-1").unwrap().info.id, WorkerId(7));
        assert_eq!(view.with_id(WorkerId(7)).unwrap().info.name.as_str(), "b-1");
        assert_eq!(view.named("c d"), None);
        assert_eq!(view.with_id(WorkerId(0)), None);
    }

    #[test]
    fn the_followers_go_round_and_leave_oneself_out() {
        let view = view(&[("b", 3), ("a", 1), ("c", 5), ("d", 7)]).unwrap();
        let ids = |most| -> Vec<u32> {
            let followers = view.followers(most);
            followers.map(|member| member.info.id.0).collect()
        };
        assert_eq!(ids(8), [5, 7, 1]);
        assert_eq!(ids(2), [5, 7]);
    }

    #[test]
    fn a_view_knows_what_replies_go_by() {
        let mut a = member("a", 0);
        a.device.device_count = 2;
        let map = DeviceMap::new([(0, 1)]).unwrap();
        a.device.device_maps.insert("b".to_owned(), map);
        let mut b = member("b", 1);
        b.device.device_count = 2;
        let (at_a, at_b) = (a.info.name.clone(), b.info.name.clone());
        let members = [a, b];
        let of = |id| GroupView::new(1, WorkerId(id), members.clone()).unwrap();
        assert_eq!(
            of(0).device_map(&at_b).unwrap().to_string(),
            "{cuda:0: cuda:1}"
        );
        assert_eq!(
            of(1).reverse_map(&at_a).unwrap().to_string(),
            "{cuda:1: cuda:0}"
        );
        assert_eq!(of(0).reverse_map(&at_b), None);
        assert_eq!(of(0).devices(), [Device::from(0)]);
        assert_eq!(of(1).devices(), [Device::from(1)]);
        assert_eq!(of(1).check_devices(GroupKind::Static), Ok(()));
    }
}
