//! The gathers of an agent: reports, lost members, and deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdzv_lock::Mutex;
use rdzv_rpc_proto::gather::{Finished, GatherError, GatherKey, GatherParticipant, GatherTable};
use rdzv_rpc_proto::worker::{WorkerInfo, WorkerName};

use crate::channel::slot::Slot;
use crate::payload::Payload;
use crate::runtime::member::{Member, Members};

/// All values, by the names of the members that supplied them.
pub(crate) type Values = BTreeMap<WorkerName, Payload>;

/// Result of a gather, for all waiting members.
pub(crate) type Verdict = Arc<Result<Values, GatherError>>;
type Waiting = Arc<Slot<Verdict>>;
type Ended = Finished<Payload, Waiting>;

#[derive(Debug, Default)]
pub(crate) struct Gathers(Mutex<GatherTable<Payload, Waiting>>);

impl Gathers {
    pub(crate) fn next(&self, members: Vec<GatherParticipant>) -> GatherKey {
        self.0.lock().next(members)
    }

    /// Adds the report of a member, and returns the slot for the result.
    pub(crate) fn report(&self, key: &GatherKey, from: &WorkerName, value: Payload) -> Waiting {
        let waiting = Waiting::default();
        let reported = self.0.lock().report(key, from, value, Arc::clone(&waiting));
        match reported {
            Ok(over) => fill(over),
            Err(refused) => drop(waiting.fill(Arc::new(Err(refused)))),
        }
        waiting
    }

    pub(crate) fn expire(&self, key: &GatherKey, within: Duration) {
        let over = self.0.lock().expire(key, &format!("{within:?}"));
        fill(over);
    }

    pub(crate) fn disconnected(&self, worker: &WorkerInfo, incarnation: u64) {
        let over = self.0.lock().disconnected(of(worker, incarnation));
        fill(over);
    }

    pub(crate) fn connected(&self, worker: &WorkerInfo, incarnation: u64) {
        self.0.lock().connected(&of(worker, incarnation));
    }

    pub(crate) fn changed(&self, before: &Members, now: &Members) {
        let stays = |member: &&Member| {
            let same = now.get(&member.info.id);
            same.is_some_and(|same| {
                same.info.name == member.info.name && same.incarnation == member.incarnation
            })
        };
        for member in before.values().filter(|member| !stays(member)) {
            let over = self.0.lock().left(participant(member));
            fill(over);
        }
    }

    /// Ends all gathers, because this worker stops.
    pub(crate) fn stop(&self) {
        let over = self.0.lock().stop();
        fill(over);
    }
}

pub(crate) fn participant(member: &Member) -> GatherParticipant {
    of(&member.info, member.incarnation)
}

fn of(worker: &WorkerInfo, incarnation: u64) -> GatherParticipant {
    GatherParticipant {
        name: worker.name.clone(),
        incarnation,
    }
}

fn fill(over: impl IntoIterator<Item = Ended>) {
    for over in over {
        let verdict = Arc::new(over.result);
        for waiting in over.waiting {
            waiting.fill(Arc::clone(&verdict));
        }
    }
}
