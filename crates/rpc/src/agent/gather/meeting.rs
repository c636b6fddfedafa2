//! Who has reported, and who is missing. Knows neither time nor connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdzv_rpc_proto::worker::WorkerName;
use serde::{Deserialize, Serialize};

use crate::error::{RpcError, RpcErrorKind};

/// So many verdicts are kept for those who come late.
const VERDICTS: usize = 256;

/// So many lost members are remembered.
const LOST: usize = 1024;

/// Somebody who takes part: a name, and which process of that name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Participant {
    pub(super) name: WorkerName,
    pub(super) incarnation: u64,
}

/// Which gather it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    /// All who take part, in the order of their names; the first one leads.
    pub(super) members: Vec<Participant>,
    /// How many gathers of these members came before.
    pub(super) sequence: u64,
}

impl Key {
    pub(super) fn has(&self, name: &WorkerName) -> bool {
        self.members.iter().any(|member| member.name == *name)
    }
}

/// Why there are no values, in the same words for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Broken {
    pub(super) kind: RpcErrorKind,
    pub(super) message: String,
}

impl Broken {
    pub(super) fn new(kind: RpcErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub(super) fn into_error(self) -> RpcError {
        RpcError::new(self.kind, self.message)
    }
}

/// A gather that is over, and those who wait for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Over<V, W> {
    pub(super) result: Result<BTreeMap<WorkerName, V>, Broken>,
    pub(super) waiting: Vec<W>,
}

/// One gather that is not over.
#[derive(Debug)]
struct Meeting<V, W> {
    values: BTreeMap<WorkerName, V>,
    waiting: Vec<W>,
}

/// All gathers that this worker takes part in or leads: `V` is a value, `W` whoever waits.
#[derive(Debug)]
pub(super) struct Meetings<V, W> {
    open: BTreeMap<Key, Meeting<V, W>>,
    verdicts: VecDeque<(Key, Broken)>,
    lost: VecDeque<Participant>,
    /// Members that were connected and are not any more.
    away: BTreeSet<Participant>,
    begun: BTreeMap<Vec<Participant>, u64>,
    stopped: bool,
}

impl<V, W> Default for Meetings<V, W> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            verdicts: VecDeque::new(),
            lost: VecDeque::new(),
            away: BTreeSet::new(),
            begun: BTreeMap::new(),
            stopped: false,
        }
    }
}

impl<V, W> Meetings<V, W> {
    /// The next gather of these members that this worker takes part in.
    pub(super) fn next(&mut self, members: Vec<Participant>) -> Key {
        let begun = self.begun.entry(members.clone()).or_default();
        let sequence = *begun;
        *begun += 1;
        Key { members, sequence }
    }

    /// Somebody reports, and waits. Says so if the gather is over with that.
    ///
    /// # Errors
    ///
    /// A report that is not expected, and why; the gather itself goes on without it.
    pub(super) fn report(
        &mut self,
        key: &Key,
        from: &WorkerName,
        value: V,
        waiting: W,
    ) -> Result<Option<Over<V, W>>, Broken> {
        if self.stopped {
            return Err(stopping());
        }
        if !key.has(from) {
            let text = format!(
                "{from} is not expected by the leader of a gather of {}",
                names(key.members.iter().map(|member| &member.name))
            );
            return Err(Broken::new(RpcErrorKind::InvalidArgument, text));
        }
        if let Some((_, verdict)) = self.verdicts.iter().find(|(of, _)| of == key) {
            return Err(verdict.clone());
        }
        let meeting = self.open.entry(key.clone()).or_insert_with(|| Meeting {
            values: BTreeMap::new(),
            waiting: Vec::new(),
        });
        if meeting.values.contains_key(from) {
            let text = format!("{from} reported twice to gather {}", key.sequence);
            return Err(Broken::new(RpcErrorKind::InvalidArgument, text));
        }
        meeting.values.insert(from.clone(), value);
        meeting.waiting.push(waiting);
        if meeting.values.len() == key.members.len() {
            let whole = self.open.remove(key);
            return Ok(whole.map(|meeting| Over {
                result: Ok(meeting.values),
                waiting: meeting.waiting,
            }));
        }
        let gone = key
            .members
            .iter()
            .find(|member| self.lost.contains(member) || self.away.contains(member));
        Ok(match gone.map(|member| member.name.clone()) {
            Some(name) => self.end(key, lost(&name)),
            None => None,
        })
    }

    /// The time of somebody who takes part is over.
    pub(super) fn time_over(&mut self, key: &Key, waited: &str) -> Option<Over<V, W>> {
        let meeting = self.open.get(key)?;
        let all = key.members.iter().map(|member| &member.name);
        let missing = all.filter(|name| !meeting.values.contains_key(name));
        let text = format!(
            "the gather was not over within {waited}: {} did not report ({} of {} did); every member \
             has to take part, in the same order of gathers",
            names(missing),
            meeting.values.len(),
            key.members.len(),
        );
        self.end(key, Broken::new(RpcErrorKind::Deadline, text))
    }

    /// The connection with a member is over: gathers end, those to come too, until it comes back.
    pub(super) fn disconnected(&mut self, member: Participant) -> Vec<Over<V, W>> {
        let ended = self.end_with(&member);
        self.away.insert(member);
        ended
    }

    /// A member has connected.
    pub(super) fn connected(&mut self, member: &Participant) {
        self.away.remove(member);
    }

    /// A member is not in the group any more, and never will be again.
    pub(super) fn left(&mut self, member: Participant) -> Vec<Over<V, W>> {
        self.begun.retain(|members, _| !members.contains(&member));
        let ended = self.end_with(&member);
        self.away.remove(&member);
        if self.lost.len() == LOST {
            self.lost.pop_front();
        }
        self.lost.push_back(member);
        ended
    }

    /// This worker stops.
    pub(super) fn stop(&mut self) -> Vec<Over<V, W>> {
        self.stopped = true;
        let open: Vec<Key> = self.open.keys().cloned().collect();
        let ended = open.iter().map(|key| self.end(key, stopping()));
        ended.flatten().collect()
    }

    fn end_with(&mut self, member: &Participant) -> Vec<Over<V, W>> {
        let with = self.open.keys().filter(|key| key.members.contains(member));
        let with: Vec<Key> = with.cloned().collect();
        let ended = with.iter().map(|key| self.end(key, lost(&member.name)));
        ended.flatten().collect()
    }

    fn end(&mut self, key: &Key, broken: Broken) -> Option<Over<V, W>> {
        let meeting = self.open.remove(key)?;
        if self.verdicts.len() == VERDICTS {
            self.verdicts.pop_front();
        }
        self.verdicts.push_back((key.clone(), broken.clone()));
        Some(Over {
            result: Err(broken),
            waiting: meeting.waiting,
        })
    }
}

fn lost(name: &WorkerName) -> Broken {
    let text = format!("{name} was lost during the gather: nobody gets any values");
    Broken::new(RpcErrorKind::PeerLost, text)
}

fn stopping() -> Broken {
    Broken::new(RpcErrorKind::Stopping, "this worker is shutting down")
}

fn names<'a>(names: impl Iterator<Item = &'a WorkerName>) -> String {
    let names: Vec<&str> = names.map(WorkerName::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn participant(name: &str) -> Participant {
        Participant {
            name: WorkerName::new(name).unwrap(),
            incarnation: 1,
        }
    }

    fn name(name: &str) -> WorkerName {
        WorkerName::new(name).unwrap()
    }

    fn of(meetings: &mut Meetings<u8, u8>, names: &[&str]) -> Key {
        meetings.next(names.iter().map(|name| participant(name)).collect())
    }

    #[test]
    fn sets_whose_names_read_the_same_together_are_counted_apart() {
        let mut meetings = Meetings::default();
        let one = of(&mut meetings, &["w0", "w10"]);
        let other = of(&mut meetings, &["w0w1", "w0"]);
        assert_ne!(one, other);
        assert_eq!((one.sequence, other.sequence), (0, 0));
        assert_eq!(of(&mut meetings, &["w0", "w10"]).sequence, 1);
        // One of a new process of the same name begins anew.
        let mut again = one.members;
        again[1].incarnation = 2;
        assert_eq!(meetings.next(again).sequence, 0);
    }

    #[test]
    fn it_is_over_when_all_have_reported_once() {
        let mut meetings = Meetings::default();
        let key = of(&mut meetings, &["a", "b"]);
        assert_eq!(meetings.report(&key, &name("b"), 2, 20), Ok(None));
        let twice = meetings.report(&key, &name("b"), 3, 30).unwrap_err();
        assert!(twice.message.contains("b reported twice"), "{twice:?}");
        let foreign = meetings.report(&key, &name("c"), 3, 30).unwrap_err();
        assert!(
            foreign.message.starts_with("c is not expected"),
            "{foreign:?}"
        );
        let over = meetings.report(&key, &name("a"), 1, 10).unwrap().unwrap();
        assert_eq!(over.waiting, [20, 10]);
        let values = over.result.unwrap();
        assert_eq!(
            values.into_iter().collect::<Vec<_>>(),
            [(name("a"), 1), (name("b"), 2)]
        );
    }

    #[test]
    fn who_comes_after_the_verdict_gets_the_verdict() {
        let mut meetings = Meetings::default();
        let key = of(&mut meetings, &["a", "b", "c"]);
        meetings.report(&key, &name("b"), 2, 20).unwrap();
        let over = meetings.time_over(&key, "1 s").unwrap();
        let broken = over.result.unwrap_err();
        assert!(
            broken.message.contains("a, c did not report (1 of 3 did)"),
            "{broken:?}"
        );
        assert_eq!(meetings.report(&key, &name("a"), 1, 10), Err(broken));
        assert_eq!(meetings.time_over(&key, "1 s"), None);
    }

    #[test]
    fn a_lost_member_ends_its_gathers_and_no_others() {
        let mut meetings = Meetings::default();
        let with = of(&mut meetings, &["a", "b", "c"]);
        let without = of(&mut meetings, &["a", "b"]);
        meetings.report(&with, &name("b"), 2, 20).unwrap();
        meetings.report(&without, &name("b"), 2, 21).unwrap();
        let over = meetings.disconnected(participant("c"));
        assert_eq!(over.len(), 1);
        assert_eq!(over[0].waiting, [20]);
        // As long as it is away there is no use in waiting.
        let next = of(&mut meetings, &["a", "b", "c"]);
        assert!(meetings.report(&next, &name("a"), 1, 10).unwrap().is_some());
        // It comes back, and to another gather; then it leaves for good.
        meetings.connected(&participant("c"));
        let next = of(&mut meetings, &["a", "b", "c"]);
        assert_eq!(meetings.report(&next, &name("c"), 3, 30), Ok(None));
        assert_eq!(meetings.left(participant("c")).len(), 1);
        // Whoever does not know yet that it has left is told.
        assert_eq!(
            of(&mut meetings, &["a", "b", "c"]).sequence,
            0,
            "counted anew"
        );
        let later = Key {
            sequence: 9,
            ..next
        };
        let over = meetings.report(&later, &name("a"), 1, 10).unwrap().unwrap();
        assert_eq!(over.result.unwrap_err().kind, RpcErrorKind::PeerLost);
        assert_eq!(meetings.stop().len(), 1, "the one without c");
    }
}
