//! Gathers: reported and missing members, without time and connections.
//!
//! The leader of a gather collects one value from each member, and answers all waiting members
//! together. The answer has all values, or an error. The error names the members that did not
//! report in time, or a lost member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::error::RpcErrorKind;
use crate::worker::WorkerName;

/// Maximum number of errors kept for members that report late.
const MAX_ERRORS: usize = 256;

/// Maximum number of remembered members that have left.
const MAX_LOST: usize = 1024;

/// Member of a gather: a name, and one process with that name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatherParticipant {
    /// Name of the member.
    pub name: WorkerName,
    /// Random number that distinguishes the process from earlier ones of that name.
    pub incarnation: u64,
}

/// Identifies a gather.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatherKey {
    /// All members, in the order of their names; the first one is the leader.
    pub members: Vec<GatherParticipant>,
    /// Number of gathers of these members before this one.
    pub sequence: u64,
}

impl GatherKey {
    /// `true` if a worker of this name is a member.
    pub fn has(&self, name: &WorkerName) -> bool {
        self.members.iter().any(|member| member.name == *name)
    }
}

/// Failure of a gather, or of a report to a gather.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatherError {
    /// Kind of the failure.
    pub kind: RpcErrorKind,
    /// Description of the failure.
    pub message: String,
}

impl GatherError {
    /// Creates a failure with this text.
    pub fn new(kind: RpcErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

/// Gather that has ended, and the replies that wait for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished<V, W> {
    /// All values, or the failure.
    pub result: Result<BTreeMap<WorkerName, V>, GatherError>,
    /// Replies to send.
    pub waiting: Vec<W>,
}

#[derive(Debug)]
struct Gather<V, W> {
    values: BTreeMap<WorkerName, V>,
    waiting: Vec<W>,
}

/// Gathers that this worker participates in or leads.
///
/// `V` is a value, `W` a pending reply.
#[derive(Debug, Default)]
pub struct GatherTable<V, W> {
    open: BTreeMap<GatherKey, Gather<V, W>>,
    failed: VecDeque<(GatherKey, GatherError)>,
    lost: VecDeque<GatherParticipant>,
    /// Members that have lost their connection.
    disconnected: BTreeSet<GatherParticipant>,
    begun: BTreeMap<Vec<GatherParticipant>, u64>,
    stopped: bool,
}

impl<V, W> GatherTable<V, W> {
    /// Returns the key of the next gather of these members, this worker included.
    pub fn next(&mut self, members: Vec<GatherParticipant>) -> GatherKey {
        let begun = self.begun.entry(members.clone()).or_default();
        let sequence = *begun;
        *begun += 1;
        GatherKey { members, sequence }
    }

    /// Records a member's value; returns the gather if it has ended.
    ///
    /// A gather ends if the value completes it, or if one of its members is lost or disconnected.
    ///
    /// # Errors
    ///
    /// [`GatherError`] if this worker is stopping, if the gather has already failed, or if the
    /// report is not expected. A report that is not expected does not end the gather.
    pub fn report(
        &mut self,
        key: &GatherKey,
        from: &WorkerName,
        value: V,
        waiting: W,
    ) -> Result<Option<Finished<V, W>>, GatherError> {
        if self.stopped {
            return Err(stopping());
        }
        if !key.has(from) {
            let text = format!(
                "the leader of a gather of {} does not expect {from}",
                names(key.members.iter().map(|member| &member.name))
            );
            return Err(GatherError::new(RpcErrorKind::InvalidArgument, text));
        }
        if let Some((_, error)) = self.failed.iter().find(|(of, _)| of == key) {
            return Err(error.clone());
        }
        let gather = self.open.entry(key.clone()).or_insert_with(|| Gather {
            values: BTreeMap::new(),
            waiting: Vec::new(),
        });
        if gather.values.contains_key(from) {
            let text = format!("{from} reported twice to gather {}", key.sequence);
            return Err(GatherError::new(RpcErrorKind::InvalidArgument, text));
        }
        gather.values.insert(from.clone(), value);
        gather.waiting.push(waiting);
        if gather.values.len() == key.members.len() {
            let whole = self.open.remove(key);
            return Ok(whole.map(|gather| Finished {
                result: Ok(gather.values),
                waiting: gather.waiting,
            }));
        }
        let gone = key
            .members
            .iter()
            .find(|member| self.lost.contains(member) || self.disconnected.contains(member));
        Ok(match gone.map(|member| member.name.clone()) {
            Some(name) => self.end(key, lost(&name)),
            None => None,
        })
    }

    /// Ends a gather whose deadline has passed at one of its members.
    pub fn expire(&mut self, key: &GatherKey, waited: &str) -> Option<Finished<V, W>> {
        let gather = self.open.get(key)?;
        let all = key.members.iter().map(|member| &member.name);
        let missing = all.filter(|name| !gather.values.contains_key(name));
        let text = format!(
            "the gather did not finish within {waited}: {} did not report ({} of {} did); every \
             member must participate, in the same order of gathers",
            names(missing),
            gather.values.len(),
            key.members.len(),
        );
        self.end(key, GatherError::new(RpcErrorKind::Deadline, text))
    }

    /// Fails the gathers of a member that lost its connection, until it reconnects.
    pub fn disconnected(&mut self, member: GatherParticipant) -> Vec<Finished<V, W>> {
        let ended = self.end_with(&member);
        self.disconnected.insert(member);
        ended
    }

    /// Records that a member has connected.
    pub fn connected(&mut self, member: &GatherParticipant) {
        self.disconnected.remove(member);
    }

    /// Fails the gathers of a member that has left the group permanently.
    pub fn left(&mut self, member: GatherParticipant) -> Vec<Finished<V, W>> {
        self.begun.retain(|members, _| !members.contains(&member));
        let ended = self.end_with(&member);
        self.disconnected.remove(&member);
        if self.lost.len() == MAX_LOST {
            self.lost.pop_front();
        }
        self.lost.push_back(member);
        ended
    }

    /// Fails all gathers, because this worker stops.
    pub fn stop(&mut self) -> Vec<Finished<V, W>> {
        self.stopped = true;
        let open: Vec<GatherKey> = self.open.keys().cloned().collect();
        let ended = open.iter().map(|key| self.end(key, stopping()));
        ended.flatten().collect()
    }

    fn end_with(&mut self, member: &GatherParticipant) -> Vec<Finished<V, W>> {
        let with = self.open.keys().filter(|key| key.members.contains(member));
        let with: Vec<GatherKey> = with.cloned().collect();
        let ended = with.iter().map(|key| self.end(key, lost(&member.name)));
        ended.flatten().collect()
    }

    fn end(&mut self, key: &GatherKey, error: GatherError) -> Option<Finished<V, W>> {
        let gather = self.open.remove(key)?;
        if self.failed.len() == MAX_ERRORS {
            self.failed.pop_front();
        }
        self.failed.push_back((key.clone(), error.clone()));
        Some(Finished {
            result: Err(error),
            waiting: gather.waiting,
        })
    }
}

fn lost(name: &WorkerName) -> GatherError {
    let text = format!("{name} was lost during the gather: no member receives any values");
    GatherError::new(RpcErrorKind::PeerLost, text)
}

fn stopping() -> GatherError {
    GatherError::new(RpcErrorKind::Stopping, "this worker is shutting down")
}

fn names<'a>(names: impl Iterator<Item = &'a WorkerName>) -> String {
    let names: Vec<&str> = names.map(WorkerName::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn participant(name: &str) -> GatherParticipant {
        GatherParticipant {
            name: WorkerName::new(name).unwrap(),
            incarnation: 1,
        }
    }

    fn name(name: &str) -> WorkerName {
        WorkerName::new(name).unwrap()
    }

    fn of(gathers: &mut GatherTable<u8, u8>, names: &[&str]) -> GatherKey {
        gathers.next(names.iter().map(|name| participant(name)).collect())
    }

    #[test]
    fn sets_whose_names_read_the_same_together_are_counted_apart() {
        let mut gathers = GatherTable::default();
        let one = of(&mut gathers, &["w0", "w10"]);
        let other = of(&mut gathers, &["w0w1", "w0"]);
        assert_ne!(one, other);
        assert_eq!((one.sequence, other.sequence), (0, 0));
        assert_eq!(of(&mut gathers, &["w0", "w10"]).sequence, 1);
        // A gather with a new process of the same name starts from the beginning.
        let mut again = one.members;
        again[1].incarnation = 2;
        assert_eq!(gathers.next(again).sequence, 0);
    }

    #[test]
    fn it_is_over_when_all_have_reported_once() {
        let mut gathers = GatherTable::default();
        let key = of(&mut gathers, &["a", "b"]);
        assert_eq!(gathers.report(&key, &name("b"), 2, 20), Ok(None));
        let twice = gathers.report(&key, &name("b"), 3, 30).unwrap_err();
        assert!(twice.message.contains("b reported twice"), "{twice:?}");
        let foreign = gathers.report(&key, &name("c"), 3, 30).unwrap_err();
        assert!(
            foreign.message.ends_with("does not expect c"),
            "{foreign:?}"
        );
        let over = gathers.report(&key, &name("a"), 1, 10).unwrap().unwrap();
        assert_eq!(over.waiting, [20, 10]);
        let values = over.result.unwrap();
        assert_eq!(
            values.into_iter().collect::<Vec<_>>(),
            [(name("a"), 1), (name("b"), 2)]
        );
    }

    #[test]
    fn who_comes_after_the_verdict_gets_the_verdict() {
        let mut gathers = GatherTable::default();
        let key = of(&mut gathers, &["a", "b", "c"]);
        gathers.report(&key, &name("b"), 2, 20).unwrap();
        let over = gathers.expire(&key, "1 s").unwrap();
        let error = over.result.unwrap_err();
        assert!(
            error.message.contains("a, c did not report (1 of 3 did)"),
            "{error:?}"
        );
        assert_eq!(gathers.report(&key, &name("a"), 1, 10), Err(error));
        assert_eq!(gathers.expire(&key, "1 s"), None);
    }

    #[test]
    fn a_lost_member_ends_its_gathers_and_no_others() {
        let mut gathers = GatherTable::default();
        let with = of(&mut gathers, &["a", "b", "c"]);
        let without = of(&mut gathers, &["a", "b"]);
        gathers.report(&with, &name("b"), 2, 20).unwrap();
        gathers.report(&without, &name("b"), 2, 21).unwrap();
        let over = gathers.disconnected(participant("c"));
        assert_eq!(over.len(), 1);
        assert_eq!(over[0].waiting, [20]);
        // While the member is disconnected, waiting is useless.
        let next = of(&mut gathers, &["a", "b", "c"]);
        assert!(gathers.report(&next, &name("a"), 1, 10).unwrap().is_some());
        // The member reconnects and joins another gather; then it leaves permanently.
        gathers.connected(&participant("c"));
        let next = of(&mut gathers, &["a", "b", "c"]);
        assert_eq!(gathers.report(&next, &name("c"), 3, 30), Ok(None));
        assert_eq!(gathers.left(participant("c")).len(), 1);
        // A member that does not know of the departure yet gets the error.
        assert_eq!(
            of(&mut gathers, &["a", "b", "c"]).sequence,
            0,
            "counted from 0 again"
        );
        let later = GatherKey {
            sequence: 9,
            ..next
        };
        let over = gathers.report(&later, &name("a"), 1, 10).unwrap().unwrap();
        assert_eq!(over.result.unwrap_err().kind, RpcErrorKind::PeerLost);
        assert_eq!(gathers.stop().len(), 1, "the one without c");
    }
}
