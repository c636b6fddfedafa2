//! Tests of F1 to F9: the messages and their order.

use super::*;

#[test]
fn f1_a_remote_creation_is_confirmed_before_its_function_ends() {
    let mut town = Town::of(2);
    let (rref, fork) = town.create_on(1, 0);
    assert!(town.has(1, &Output::Confirmed(fork)));
    assert!(town.members[1].user(fork).unwrap().confirmed);
    town.soon();
    assert!(town.said().is_empty());
    town.made(0, rref);
    town.soon();
    assert_eq!(town.said(), ["0→1 Completed"]);
    let failed = false;
    assert!(town.has(1, &Output::Completed { fork, failed }));
    town.send(1, Input::Dropped(Handle::User(rref, fork)));
    town.soon();
    assert_eq!(town.said(), ["1→0 UserDelete"]);
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}

#[test]
fn f2_a_creation_on_oneself_says_nothing() {
    let mut town = Town::of(1);
    let me = town.me(0);
    let (rref, fork) = town.members[0].create_on(me).unwrap();
    assert_eq!(rref.0, fork.0);
    assert_eq!(town.members[0].counters().num_forks, 1);
    town.made(0, rref);
    assert_eq!(town.members[0].counters().num_forks, 0);
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(0, Input::Dropped(Handle::Owner(rref)));
    assert!(town.has(0, &Output::Free(rref)));
    assert!(town.said().is_empty());
    town.is_empty_soon();
}

#[test]
fn f3_an_owner_gives_a_fork_and_says_nothing() {
    let mut town = Town::of(2);
    let rref = town.members[0].create().unwrap();
    assert_eq!(town.members[0].counters(), Counters::default());
    let (user, confirmed) = town.pass_on(0, Handle::Owner(rref), 1);
    assert!(confirmed);
    assert_eq!(town.members[0].counters().num_owner_rrefs, 1);
    town.send(0, Input::Dropped(Handle::Owner(rref)));
    town.soon();
    assert!(town.said().is_empty());
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(1, Input::Dropped(user));
    town.soon();
    assert_eq!(town.said(), ["1→0 UserDelete"]);
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}

#[test]
fn f4_a_user_gives_a_fork_and_keeps_its_own_before_the_owner_knows() {
    let (mut town, rref, first) = Town::with_value(3);
    let data = town.fork(1, first, 2);
    town.send(1, Input::Dropped(first));
    town.soon();
    assert!(
        town.said().is_empty(),
        "the parent lives as long as the child is unknown"
    );
    let adopted = town.adopt(2, &data).unwrap();
    let Adopted::User {
        fork, confirmed, ..
    } = adopted
    else {
        panic!("{adopted:?}")
    };
    // F9: a function that has the reference as an argument must wait.
    assert!(!confirmed);
    assert_eq!(town.members[2].counters().num_pending_users, 1);
    assert!(!town.has(2, &Output::Confirmed(fork)));
    town.soon();
    assert!(town.has(2, &Output::Confirmed(fork)));
    assert_eq!(
        town.said(),
        [
            "2→0 ForkRequest",
            "0→2 ForkAck",
            "2→1 ChildAccept",
            "1→0 UserDelete"
        ]
    );
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(2, Input::Dropped(Handle::User(rref, fork)));
    town.soon();
    assert_eq!(town.said(), ["2→0 UserDelete"]);
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}

#[test]
fn f5_a_user_gives_a_fork_back_to_the_owner() {
    let (mut town, rref, user) = Town::with_value(2);
    let data = town.fork(1, user, 0);
    town.send(1, Input::Dropped(user));
    assert_eq!(town.adopt(0, &data).unwrap(), Adopted::Owner(rref));
    town.soon();
    assert_eq!(town.said(), ["0→1 ChildAccept", "1→0 UserDelete"]);
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(0, Input::Dropped(Handle::Owner(rref)));
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}

#[test]
fn f6_an_owner_gives_a_fork_to_itself() {
    let mut town = Town::of(1);
    let rref = town.members[0].create().unwrap();
    let data = town.fork(0, Handle::Owner(rref), 0);
    town.send(0, Input::Dropped(Handle::Owner(rref)));
    assert_eq!(town.members[0].counters().num_forks, 1);
    assert_eq!(town.adopt(0, &data).unwrap(), Adopted::Owner(rref));
    assert_eq!(town.members[0].counters().num_forks, 0);
    town.send(0, Input::Dropped(Handle::Owner(rref)));
    assert!(town.has(0, &Output::Free(rref)));
    assert!(town.said().is_empty());
    town.is_empty_soon();
}

#[test]
fn f7_many_deletes_go_in_one_batch() {
    let mut town = Town::of(2);
    let users: Vec<_> = (0..100).map(|_| town.value_used_by_1().1).collect();
    for user in users {
        town.send(1, Input::Dropped(user));
    }
    assert!(town.network.is_empty());
    town.now.mono = town.now.mono + Duration::from_millis(1);
    town.send(1, Input::Tick);
    assert_eq!(town.network.len(), 1);
    assert_eq!(town.network[0].messages.len(), 100);
    town.is_empty_soon();
    let frees = town
        .outputs
        .iter()
        .filter(|(_, output)| matches!(output, Output::Free(_)));
    assert_eq!(frees.count(), 100);
}

#[test]
fn f8_a_question_is_answered_when_the_value_exists() {
    let mut town = Town::of(2);
    let (rref, fork) = town.create_on(1, 0);
    let question = town.members[1]
        .question(Handle::User(rref, fork), "to_here()")
        .unwrap();
    let ask = |fetch| Input::Fetch(FetchId(fetch), question);
    town.send(0, ask(1));
    town.send(0, ask(2));
    town.send(0, Input::FetchCancelled(rref, FetchId(2)));
    assert!(town.outputs.iter().all(|(who, _)| *who != 0));
    town.send(0, Input::Made { rref, failed: true });
    town.send(0, ask(3));
    let answers: Vec<_> = town.outputs.iter().filter(|(who, _)| *who == 0).collect();
    assert_eq!(
        answers,
        [
            &(0, Output::Fetched(FetchId(1), Ok(()))),
            &(0, Output::Fetched(FetchId(3), Ok(())))
        ]
    );
}

#[test]
fn what_is_made_of_a_creation_that_is_on_its_way_waits_for_it() {
    let mut town = Town::of(3);
    let owner = town.me(0);
    let (rref, fork) = town.members[1].create_on(owner).unwrap();
    let first = Handle::User(rref, fork);
    // The creator passes it on to 2 and back to the owner; both arrive before the call.
    let (second, _) = town.pass_on(1, first, 2);
    let (back, _) = town.pass_on(1, first, 0);
    town.send(1, Input::Dropped(first));
    town.soon();
    assert!(town.said().contains(&"0→1 CreationAsk".to_owned()));
    let creator = Some(town.me(1));
    town.fetch(0, owner, rref, creator);
    let from = town.me(1);
    town.members[0].creation_arrived(from, rref, fork).unwrap();
    town.send(1, Input::Accepted(fork));
    town.made(0, rref);
    assert!(town.has(0, &Output::Fetched(FetchId(1), Ok(()))));
    town.soon();
    town.send(2, Input::Dropped(second));
    town.soon();
    assert!(!town.has(0, &Output::Free(rref)));
    town.send(0, Input::Dropped(back));
    assert!(town.has(0, &Output::Free(rref)));
    town.is_empty_soon();
}
