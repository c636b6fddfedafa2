//! Members that exchange frames immediately, without a network.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rdzv_consensus::{
    Configuration, Consensus, Input, Kind, Output, Settings, VoterChange, VoterId,
};
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};

/// A group whose members share one clock.
struct Group {
    members: BTreeMap<VoterId, Consensus>,
    now: Now,
    frames: VecDeque<(VoterId, VoterId, Vec<u8>)>,
    /// Outputs of each member, except its frames and its requests for snapshots.
    outputs: Vec<(VoterId, Output)>,
    /// Pairs of members; no frame passes from the first to the second.
    cut: Vec<(VoterId, VoterId)>,
    /// Number of delivered generations of frames: half a round trip each.
    hops: u32,
}

pub(crate) fn id(number: u64) -> VoterId {
    VoterId::new(number).unwrap()
}

/// Returns the input of the member that receives a frame.
pub(crate) fn received(from: VoterId, frame: &[u8]) -> Input<'_> {
    let (opcode, payload) = (frame[0], &frame[9..]);
    Input::Received {
        from,
        opcode,
        payload,
    }
}

impl Group {
    fn of(voters: u64) -> Self {
        let ids: Vec<VoterId> = (1..=voters).map(id).collect();
        let mut group = Self {
            members: BTreeMap::new(),
            now: Now::default(),
            frames: VecDeque::new(),
            outputs: Vec::new(),
            cut: Vec::new(),
            hops: 0,
        };
        for one in &ids {
            let settings = Settings {
                truncate_after: 10,
                ..Settings::default()
            };
            let member = Consensus::bootstrap(group.now, settings, *one, &ids, b"begin", 1);
            group.members.insert(*one, member);
        }
        group.handle(id(1), Input::Tick);
        group.settle();
        assert!(group.members[&id(1)].role().leads);
        group
    }

    fn join(&mut self, number: u64, voter_index: u8) {
        let member = Consensus::join(self.now, Settings::default(), id(number), voter_index);
        self.members.insert(id(number), member);
    }

    fn handle(&mut self, it: VoterId, input: Input<'_>) {
        let Some(member) = self.members.get_mut(&it) else {
            return;
        };
        member.handle(self.now, input);
        let mut takes = false;
        while let Some(output) = member.poll_output() {
            match output {
                Output::Send { to, frame } => self.frames.push_back((it, to, frame)),
                Output::TakeSnapshot => takes = true,
                other => self.outputs.push((it, other)),
            }
        }
        if takes {
            self.handle(it, Input::Snapshot(b"state"));
        }
    }

    /// Delivers frames until there are none.
    fn settle(&mut self) {
        self.hops = 0;
        while !self.frames.is_empty() {
            self.hops += 1;
            for (from, to, frame) in std::mem::take(&mut self.frames) {
                if !self.cut.contains(&(from, to)) {
                    self.handle(to, received(from, &frame));
                }
            }
        }
    }

    /// Cuts the first member off from the second and the third.
    fn isolate_first(&mut self) {
        let ways = [2, 3].map(|it| [(id(1), id(it)), (id(it), id(1))]);
        self.cut = ways.concat();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now.mono + time;
        while let Some(due) = self.members.values().filter_map(Consensus::deadline).min()
            && due <= end
        {
            self.now.mono = self.now.mono.max(due);
            for it in self.members.keys().copied().collect::<Vec<_>>() {
                if self.members[&it]
                    .deadline()
                    .is_some_and(|due| due <= self.now.mono)
                {
                    self.handle(it, Input::Tick);
                }
            }
            self.settle();
        }
        self.now.mono = end;
    }

    fn propose(&mut self, it: u64, command: &[u8]) {
        let token = 1;
        self.handle(id(it), Input::Propose { token, command });
        self.settle();
    }

    fn change(&mut self, steps: &[(u64, Kind, u8)]) {
        let mut change = VoterChange::default();
        for (member, kind, voter_index) in steps {
            change.add(id(*member), *kind, *voter_index);
        }
        self.handle(id(1), Input::Change(&change));
        self.settle();
    }

    fn applied(&self, it: u64) -> Vec<Vec<u8>> {
        let outputs = self.outputs.iter().filter(|(who, _)| *who == id(it));
        outputs
            .filter_map(|(_, output)| match output {
                Output::Apply { command, .. } => Some(command.to_vec()),
                _ => None,
            })
            .collect()
    }

    fn configuration(&self, it: u64) -> &Configuration {
        self.members[&id(it)].configuration()
    }

    fn said(&self, it: u64, output: &Output) -> bool {
        self.outputs.contains(&(id(it), output.clone()))
    }
}

#[test]
fn one_voter_commits_in_the_turn_in_which_it_proposes() {
    let mut group = Group::of(1);
    let (token, command) = (1, b"a");
    group.handle(id(1), Input::Propose { token, command });
    assert_eq!(group.applied(1), [b"a"]);
    group.handle(id(1), Input::Confirm(7));
    assert!(group.said(1, &Output::Confirmed(7)));
}

#[test]
fn a_group_grows_from_one_to_three_in_a_joint_change_and_shrinks_again() {
    let mut group = Group::of(1);
    for number in 0..30_u8 {
        group.propose(1, &[number]);
    }
    group.join(2, 1);
    group.join(3, 2);
    group.change(&[(2, Kind::Learner, 1), (3, Kind::Learner, 2)]);
    // Learners receive the state and the later entries, but nothing from before the snapshot.
    assert!(group.members[&id(1)].is_caught_up(id(2)));
    assert!(group.applied(2).len() < 30);
    group.change(&[(2, Kind::Voter, 1), (3, Kind::Voter, 2)]);
    assert!(group.hops <= 20, "{} hops", group.hops);
    assert_eq!(group.configuration(1).voters.len(), 3);
    assert!(!group.configuration(1).is_joint());
    group.propose(1, b"three");
    assert_eq!(group.applied(3).last().unwrap(), b"three");
    group.change(&[(2, Kind::Removed, 0), (3, Kind::Removed, 0)]);
    assert_eq!(group.configuration(1).voters, [id(1)].into());
    group.propose(1, b"one");
    assert_eq!(group.applied(1).last().unwrap(), b"one");
}

#[test]
fn a_learner_that_has_said_nothing_may_not_vote_however_short_the_log_is() {
    let mut group = Group::of(3);
    group.cut = vec![(id(1), id(4)), (id(4), id(1))];
    group.join(4, 3);
    group.change(&[(4, Kind::Learner, 3)]);
    let lag = group.members[&id(1)].lag(id(4)).unwrap();
    assert!(lag < 64, "{lag}");
    assert!(!group.members[&id(1)].is_caught_up(id(4)));
    group.change(&[(4, Kind::Voter, 3)]);
    let fault = "the voter-to-be does not have the log yet";
    assert!(group.said(1, &Output::Unchanged(fault)));
    group.cut.clear();
    group.pass(Duration::from_secs(1));
    assert!(group.members[&id(1)].is_caught_up(id(4)));
    group.change(&[(4, Kind::Voter, 3)]);
    assert!(group.configuration(1).voters.contains(&id(4)));
}

#[test]
fn a_member_at_rest_is_woken_for_heartbeats_only() {
    let mut group = Group::of(3);
    let mut wakes = 0;
    let end = group.now.mono + Duration::from_secs(10);
    while let Some(due) = group.members.values().filter_map(Consensus::deadline).min()
        && due <= end
    {
        group.now.mono = due;
        for it in [1, 2, 3].map(id) {
            if group.members[&it].deadline().is_some_and(|at| at <= due) {
                assert_eq!(
                    it,
                    id(1),
                    "a follower that has a leader does not need any timer"
                );
                group.handle(it, Input::Tick);
                wakes += 1;
            }
        }
        group.settle();
    }
    // One wakeup every 350 ms: the majority check coincides with every second heartbeat.
    assert!((28..=30).contains(&wakes), "{wakes}");
}

#[test]
fn a_voter_is_replaced_in_one_step() {
    let mut group = Group::of(3);
    group.members.remove(&id(3));
    group.join(4, 3);
    group.change(&[(4, Kind::Learner, 3)]);
    group.change(&[(3, Kind::Removed, 0), (4, Kind::Voter, 3)]);
    assert_eq!(group.configuration(1).voters, [id(1), id(2), id(4)].into());
    assert_eq!(group.configuration(1), group.configuration(4));
}

#[test]
fn a_joint_change_is_finished_by_the_next_leader() {
    let mut group = Group::of(1);
    for number in [2, 3] {
        group.join(number, number as u8 - 1);
        group.change(&[(number, Kind::Learner, number as u8 - 1)]);
    }
    let mut change = VoterChange::default();
    change.add(id(2), Kind::Voter, 1);
    change.add(id(3), Kind::Voter, 2);
    group.handle(id(1), Input::Change(&change));
    // The old leader leaves as soon as the others are in the joint configuration.
    for _ in 0..40 {
        if group.configuration(2).is_joint() && group.configuration(3).is_joint() {
            break;
        }
        if let Some((from, to, frame)) = group.frames.pop_front() {
            group.handle(to, received(from, &frame));
        }
    }
    assert!(group.configuration(2).is_joint() && group.configuration(3).is_joint());
    let old = group.configuration(2).outgoing.clone();
    assert_eq!(old, [id(1)].into());
    // Without the one earlier voter no member can decide: it is cut off for a while, and returns.
    group.isolate_first();
    group.settle();
    group.pass(Duration::from_secs(2));
    assert!(!group.members[&id(2)].role().leads && !group.members[&id(3)].role().leads);
    group.cut.clear();
    group.pass(Duration::from_secs(3));
    for it in 1..=3 {
        assert!(
            !group.configuration(it).is_joint(),
            "{:?}",
            group.members[&id(it)]
        );
        assert_eq!(group.configuration(it).voters.len(), 3);
    }
}

#[test]
fn changes_that_are_not_possible_are_refused() {
    let mut group = Group::of(3);
    for (steps, reason) in [
        (vec![(1, Kind::Removed, 0)], "the leader hands over first"),
        (vec![], "the change has no step"),
        (
            vec![(9, Kind::Removed, 0)],
            "the removed process is not a member",
        ),
        (
            vec![(2, Kind::Learner, 5)],
            "the learner is a member already",
        ),
        (
            vec![(4, Kind::Learner, 2)],
            "two members have one voter index",
        ),
        (
            vec![(4, Kind::Voter, 5)],
            "the voter-to-be does not have the log yet",
        ),
    ] {
        group.change(&steps);
        assert!(group.said(1, &Output::Unchanged(reason)), "{reason}");
    }
    let mut change = VoterChange::default();
    change.remove(id(3));
    group.handle(id(2), Input::Change(&change));
    assert!(group.said(2, &Output::Unchanged("this member does not lead")));
}

#[test]
fn a_leader_hands_over_without_a_timeout_and_says_which_commands_were_not_begun() {
    let mut group = Group::of(3);
    group.handle(id(1), Input::Transfer(None));
    let (token, command) = (5, b"late");
    group.handle(id(1), Input::Propose { token, command });
    assert!(group.said(1, &Output::Dropped(5)));
    group.settle();
    assert!(!group.members[&id(1)].role().leads);
    assert!(group.members[&id(2)].role().leads);
    group.propose(2, b"next");
    assert_eq!(group.applied(3).last().unwrap(), b"next");
}

#[test]
fn a_leader_that_is_succeeded_with_its_own_vote_had_received_its_messages() {
    let mut group = Group::of(3);
    group.propose(1, b"a");
    let before = group.now.mono;
    group.now.mono = before + Duration::from_millis(40);
    // Together with the third member, it may have confirmed anything until now.
    group.cut = vec![(id(3), id(2)), (id(2), id(3))];
    group.handle(id(1), Input::Transfer(Some(id(2))));
    group.settle();
    let role = group.members[&id(2)].role();
    assert!(role.leads);
    assert_eq!(role.heard, Some(group.now.mono), "not {before:?}");
}

#[test]
fn followers_whose_connection_to_the_leader_closes_elect_another_one_within_20_ms() {
    let mut group = Group::of(3);
    group.propose(1, b"a");
    group.members.remove(&id(1));
    let closed = group.now.mono;
    group.handle(id(2), Input::PeerDown(id(1)));
    group.handle(id(3), Input::PeerDown(id(1)));
    group.pass(Duration::from_millis(20));
    let role = group.members[&id(2)].role();
    assert!(role.leads);
    // The last message from the leader was the commit, before the connection closed.
    assert!(role.heard.is_some_and(|heard| heard <= closed));
    group.propose(2, b"b");
    assert_eq!(group.applied(3), [b"a", b"b"]);
}

/// Agents that search for the coordinator ask in this order.
#[test]
fn the_index_after_that_of_the_leader_follows_it() {
    let mut group = Group::of(3);
    group.handle(id(1), Input::Transfer(None));
    group.settle();
    assert!(group.members[&id(2)].role().leads);
    group.members.remove(&id(2));
    group.handle(id(1), Input::PeerDown(id(2)));
    group.handle(id(3), Input::PeerDown(id(2)));
    group.pass(Duration::from_millis(20));
    assert!(group.members[&id(3)].role().leads);
}

#[test]
fn a_closed_connection_that_was_no_end_disturbs_nobody() {
    let mut group = Group::of(3);
    group.handle(id(2), Input::PeerDown(id(1)));
    group.pass(Duration::from_secs(2));
    assert!(group.members[&id(1)].role().leads);
    assert_eq!(group.members[&id(2)].role().leader, Some(id(1)));
    assert_eq!(group.members[&id(3)].role().term, 2);
}

#[test]
fn a_leader_without_a_majority_confirms_nothing_and_steps_down() {
    let mut group = Group::of(3);
    group.propose(1, b"a");
    group.isolate_first();
    group.handle(id(1), Input::Confirm(3));
    group.settle();
    assert!(!group.said(1, &Output::Confirmed(3)));
    group.pass(Duration::from_millis(1500));
    assert!(!group.members[&id(1)].role().leads);
    assert!(group.said(1, &Output::Unconfirmed(3)));
}

#[test]
fn a_note_comes_before_the_frames_that_acknowledge_its_configuration() {
    let mut group = Group::of(3);
    group.join(4, 3);
    let mut change = VoterChange::default();
    change.add(id(4), Kind::Learner, 3);
    group.handle(id(1), Input::Change(&change));
    let noted = |it: u64, group: &Group| {
        let outputs = group.outputs.iter();
        let notes =
            outputs.filter(|(who, output)| *who == id(it) && matches!(output, Output::Note(_)));
        notes.count()
    };
    assert_eq!(noted(1, &group), 1);
    let (from, to, frame) = group.frames.pop_front().unwrap();
    let now = group.now;
    let member = group.members.get_mut(&to).unwrap();
    member.handle(now, received(from, &frame));
    assert!(matches!(member.poll_output(), Some(Output::Note(_))));
    assert!(matches!(member.poll_output(), Some(Output::Send { .. })));
    while member.poll_output().is_some() {}
}

#[test]
fn the_time_of_commands_goes_on_under_another_leader() {
    let mut group = Group::of(3);
    group.pass(Duration::from_millis(700));
    group.propose(1, b"a");
    group.handle(id(1), Input::Transfer(Some(id(3))));
    group.settle();
    group.pass(Duration::from_millis(50));
    group.propose(3, b"b");
    let times: Vec<Mono> = group
        .outputs
        .iter()
        .filter(|(who, _)| *who == id(2))
        .filter_map(|(_, output)| match output {
            Output::Apply { at, .. } => Some(at.mono),
            _ => None,
        })
        .collect();
    assert_eq!(times.len(), 2);
    let passed = times[1] - times[0];
    assert!(passed <= Duration::from_millis(50), "{passed:?}");
}
