//! Failed messages, members that die, leave and return, and the end.

use super::*;

#[test]
fn a_failed_creation_is_abandoned_and_its_late_call_refused() {
    let mut town = Town::of(2);
    let (owner, caller) = (town.me(0), town.me(1));
    let (rref, fork) = town.members[1].create_on(owner).unwrap();
    let user = Handle::User(rref, fork);
    town.send(1, Input::CreationFailed(fork));
    let why = "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the \
               owner node does not exist.";
    let error = town.members[1].question(user, "to_here()").unwrap_err();
    assert_eq!(error.to_string(), why);
    let error = town.members[1].fork(town.now, user, owner).unwrap_err();
    assert_eq!(error.to_string(), why);
    town.soon();
    let refused = town.members[0].creation_arrived(caller, rref, fork);
    assert_eq!(refused, Err(ReferenceFailure::GivenUp(rref)));
    town.send(1, Input::Dropped(user));
    town.is_empty_soon();
}

#[test]
fn a_creation_whose_answer_is_lost_leaves_nothing() {
    let mut town = Town::of(2);
    let (owner, caller) = (town.me(0), town.me(1));
    let (rref, fork) = town.members[1].create_on(owner).unwrap();
    town.members[0]
        .creation_arrived(caller, rref, fork)
        .unwrap();
    town.send(1, Input::CreationFailed(fork));
    town.soon();
    town.made(0, rref);
    assert!(town.has(0, &Output::Free(rref)));
    town.send(1, Input::Dropped(Handle::User(rref, fork)));
    town.is_empty_soon();
}

#[test]
fn a_fork_in_a_message_that_was_not_sent_is_undone() {
    let (mut town, rref, user) = Town::with_value(3);
    let data = town.fork(1, user, 2);
    town.send(1, Input::NotSent(data.fork));
    town.send(1, Input::Dropped(user));
    town.soon();
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}

#[test]
fn a_fork_in_a_lost_message_is_asked_about_and_refused_later() {
    for told in [true, false] {
        let mut town = Town::of(2);
        let rref = town.members[0].create().unwrap();
        let data = town.fork(0, Handle::Owner(rref), 1);
        town.send(0, Input::Dropped(Handle::Owner(rref)));
        let patience = if told {
            town.send(0, Input::Strayed(data.fork));
            Duration::from_millis(10)
        } else {
            town.pass(Duration::from_secs(29));
            assert!(town.said().is_empty());
            Duration::from_secs(2)
        };
        town.pass(patience);
        assert_eq!(town.said(), ["0→1 ForkAsk", "1→0 ForkUnknown"]);
        assert!(town.has(0, &Output::Free(rref)));
        assert_eq!(town.adopt(1, &data), Err(ReferenceFailure::GivenUp(rref)));
        town.is_empty_soon();
    }
}

#[test]
fn a_fork_that_has_arrived_is_asked_about_once() {
    let (mut town, rref, user) = Town::with_value(2);
    town.pass(Duration::from_secs(3600));
    let mut said = town.said();
    said.retain(|message| !message.ends_with("Probe"));
    assert_eq!(said, ["0→1 ForkAsk", "1→0 ForkPresent"]);
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(1, Input::Dropped(user));
    town.is_empty_soon();
}

#[test]
fn a_message_that_is_thrown_away_unread_gives_its_forks_back() {
    let (mut town, rref, user) = Town::with_value(3);
    let data = town.fork(1, user, 2);
    town.send(2, Input::Declined(data));
    town.send(1, Input::Dropped(user));
    town.soon();
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}

#[test]
fn the_forks_of_a_dead_user_are_released_after_the_time_limit() {
    let (mut town, rref, _) = Town::with_value(2);
    let dead = town.me(1);
    town.cut.insert(dead);
    town.send(0, Input::Unreachable(dead));
    town.pass(Duration::from_millis(9_990));
    assert!(!town.has(0, &Output::Free(rref)));
    town.pass(Duration::from_millis(20));
    assert!(town.has(0, &Output::Free(rref)));
    let lost = Output::Lost {
        member: dead,
        released: 1,
    };
    assert!(town.has(0, &lost));
    assert!(town.members[0].is_empty());
}

#[test]
fn an_unreachable_user_that_is_back_in_time_keeps_its_forks() {
    let (mut town, rref, user) = Town::with_value(2);
    let away = town.me(1);
    town.cut.insert(away);
    town.send(0, Input::Unreachable(away));
    town.pass(Duration::from_secs(6));
    town.cut.clear();
    town.pass(Duration::from_secs(60));
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(1, Input::Dropped(user));
    town.is_empty_soon();
    assert!(town.has(0, &Output::Free(rref)));
}

#[test]
fn a_member_that_never_acknowledges_is_lost() {
    let (mut town, _, user) = Town::with_value(2);
    let gone = town.me(0);
    town.cut.insert(gone);
    town.send(1, Input::Dropped(user));
    town.pass(Duration::from_secs(23));
    let lost = Output::Lost {
        member: gone,
        released: 0,
    };
    assert!(town.has(1, &lost));
    assert!(town.members[1].is_empty());
}

#[test]
fn a_member_whose_death_nobody_notices_is_lost_by_its_silence() {
    let (mut town, rref, _) = Town::with_value(2);
    let dead = town.me(1);
    town.pass(Duration::from_secs(50));
    assert!(!town.has(0, &Output::Free(rref)));
    town.cut.insert(dead);
    town.pass(Duration::from_secs(60));
    assert!(town.has(0, &Output::Free(rref)));
}

#[test]
fn an_acknowledgement_takes_with_it_what_was_kept_back() {
    let (mut town, _, user) = Town::with_value(2);
    let (here, there) = (town.me(1), town.me(0));
    let probe = batch(there, here, vec![Control::Probe]);
    town.send(1, Input::Received(&probe));
    town.now.mono = town.now.mono + Settings::default().acknowledge_within;
    town.send(1, Input::Dropped(user));
    let sent: Vec<_> = town.network.drain(..).collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!((sent[0].received, sent[0].messages.len()), (1, 1));
}

#[test]
fn references_to_the_values_of_a_lost_owner_fail() {
    let (mut town, rref, user) = Town::with_value(3);
    let (second, _) = town.pass_on(1, user, 2);
    let owner = town.me(0);
    for who in [1, 2] {
        town.send(who, Input::Left(owner));
    }
    let lost = ReferenceFailure::OwnerLost { rref, owner };
    for (who, handle) in [(1, user), (2, second)] {
        assert!(town.has(who, &Output::Broken(fork_of(handle), lost.clone())));
        let error = town.members[who].question(handle, "to_here()").unwrap_err();
        assert_eq!(error, lost);
        town.send(who, Input::Dropped(handle));
    }
    let refused = town.members[1].create_on(owner).unwrap_err();
    assert!(matches!(refused, ReferenceFailure::OwnerLost { .. }));
    town.pass(Duration::from_secs(1));
    assert!(town.members[1].is_empty());
    assert!(town.members[2].is_empty());
}

#[test]
fn a_worker_that_starts_again_has_nothing_of_its_former_life() {
    let (mut town, rref, user) = Town::with_value(2);
    let (former, again) = (town.me(1), member(1, 2));
    town.members[1] = References::new(again, Settings::default());
    town.send(0, Input::Reachable(again));
    assert!(town.has(0, &Output::Free(rref)));
    assert!(town.members[0].is_empty());
    // A message of the former life arrives late.
    let request = Control::ForkRequest {
        rref,
        fork: fork_of(user),
        creator: Some(former),
    };
    let late = batch(former, town.me(0), vec![request]);
    town.send(0, Input::Received(&late));
    assert!(town.members[0].is_empty());
    // Then a worker requests values of that life.
    town.fetch(1, former, rref, None);
    let lost = ReferenceFailure::OwnerLost {
        rref,
        owner: former,
    };
    assert!(town.has(1, &Output::Fetched(FetchId(1), Err(lost))));
}

#[test]
fn a_member_that_was_wrongly_taken_for_lost_learns_it() {
    let (mut town, rref, user) = Town::with_value(2);
    let (owner, away) = (town.me(0), town.me(1));
    town.send(0, Input::Left(away));
    assert!(town.has(0, &Output::Free(rref)));
    town.send(0, Input::Reachable(away));
    town.soon();
    let lost = ReferenceFailure::OwnerLost { rref, owner };
    assert!(town.has(1, &Output::Broken(fork_of(user), lost)));
}

#[test]
fn a_child_whose_parent_and_value_are_gone_is_refused() {
    let (mut town, rref, user) = Town::with_value(3);
    let data = town.fork(1, user, 2);
    let parent = town.me(1);
    town.send(0, Input::Left(parent));
    town.adopt(2, &data).unwrap();
    town.soon();
    assert!(town.has(2, &Output::Broken(data.fork, ReferenceFailure::Gone(rref))));
    town.send(2, Input::Dropped(Handle::User(rref, data.fork)));
    town.send(2, Input::Left(parent));
    town.pass(Duration::from_secs(1));
    assert!(town.members[2].is_empty());
}

#[test]
fn a_value_that_is_awaited_from_a_lost_creator_never_comes() {
    let mut town = Town::of(3);
    let owner = town.me(0);
    let (rref, fork) = town.members[1].create_on(owner).unwrap();
    let (second, _) = town.pass_on(1, Handle::User(rref, fork), 2);
    town.soon();
    let creator = town.me(1);
    town.fetch(0, owner, rref, Some(creator));
    town.send(0, Input::Left(creator));
    let never = Output::Fetched(FetchId(1), Err(ReferenceFailure::CreationFailed));
    assert!(town.has(0, &never));
    town.send(2, Input::Dropped(second));
    town.send(2, Input::Left(creator));
    town.pass(Duration::from_secs(1));
    assert!(town.members[0].is_empty() && town.members[2].is_empty());
}

#[test]
fn a_value_that_nobody_will_ask_for_again_is_not_awaited_for_ever() {
    let mut town = Town::of(2);
    let (rref, fork) = town.create_on(1, 0);
    town.made(0, rref);
    town.send(1, Input::Dropped(Handle::User(rref, fork)));
    town.soon();
    let (owner, creator) = (town.me(0), Some(town.me(1)));
    town.fetch(0, owner, rref, creator);
    town.soon();
    let gone = Output::Fetched(FetchId(1), Err(ReferenceFailure::Gone(rref)));
    assert!(town.has(0, &gone));
    town.is_empty_soon();
}

#[test]
fn a_shutdown_releases_everything_and_says_when_it_is_done() {
    let (mut town, _, user) = Town::with_value(3);
    town.pass_on(1, user, 2);
    let (made, _) = town.create_on(2, 1);
    town.made(1, made);
    for who in 0..3 {
        town.send(who, Input::Shutdown);
    }
    // In a shutdown, acknowledgements are immediate.
    town.pass(Duration::from_millis(2));
    for who in 0..3 {
        assert!(town.has(who, &Output::Drained), "worker {who}");
        assert!(town.members[who].is_empty(), "worker {who}");
        town.send(who, Input::End);
        assert!(town.has(who, &Output::Ended(Vec::new())));
    }
    let error = town.members[1].question(user, "to_here()").unwrap_err();
    let text = format!("{user} has been deleted. Cannot call to_here() on it after deletion.");
    assert_eq!(error.to_string(), text);
    let to = town.me(2);
    let error = town.members[1].fork(town.now, user, to).unwrap_err();
    let text = format!("{user} has been deleted. Cannot call fork on it after deletion.");
    assert_eq!(error.to_string(), text);
}

#[test]
fn who_rests_keeps_what_it_holds_for_others_to_the_end() {
    let (mut town, rref, user) = Town::with_value(3);
    let (made, _) = town.create_on(2, 1);
    for who in 0..3 {
        town.send(who, Input::Quiesce);
    }
    town.soon();
    for who in [0, 2] {
        assert!(town.has(who, &Output::Drained), "worker {who}");
    }
    // Quiescing waits for a function that creates a value.
    assert!(!town.has(1, &Output::Drained));
    // A called function passes on a reference that 1 holds, although 1 only waits for the end.
    let (passed, _) = town.pass_on(1, user, 2);
    assert!(town.members[2].question(passed, "to_here()").is_ok());
    assert!(!town.has(0, &Output::Free(rref)));
    town.made(1, made);
    town.soon();
    assert!(town.has(1, &Output::Drained));
    for who in 0..3 {
        town.send(who, Input::End);
        assert!(town.members[who].is_empty(), "worker {who}");
    }
    assert!(town.has(0, &Output::Free(rref)) && town.has(1, &Output::Free(made)));
}

#[test]
fn what_is_left_at_the_end_is_listed() {
    let (mut town, rref, user) = Town::with_value(2);
    town.send(0, Input::Shutdown);
    town.soon();
    // It does not wait until the user releases its fork.
    assert!(town.has(0, &Output::Drained));
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(0, Input::End);
    let Some((0, Output::Ended(leaks))) = town.outputs.last() else {
        panic!("{:?}", town.outputs.last())
    };
    let fork = fork_of(user);
    let lines: Vec<_> = leaks.iter().map(Leak::to_string).collect();
    assert_eq!(lines, [format!("Leaking RRef {rref} with fork Id {fork}")]);
    assert!(town.has(0, &Output::Free(rref)));
}
