//! Tests of the flows F1 to F9, with agents.

use super::*;

#[test]
fn a_value_is_made_elsewhere_and_comes_here() {
    let agents = agents(2);
    for owner in [0, 1] {
        let reference = agents[0].remote(owner, NUMBER, &7).unwrap();
        assert_eq!(reference.is_owner(), owner == 0);
        assert_eq!(reference.owner_name(), format!("w{owner}"));
        assert_eq!(reference.to_here(NOW).as_deref(), Ok(&7));
        let again = reference.clone();
        drop(reference);
        assert_eq!(again.to_here(NOW).as_deref(), Ok(&7));
        assert!(again.confirmed_by_owner());
    }
    nothing_is_left(&agents);
}

#[test]
fn a_slow_function_does_not_delay_the_owners_word() {
    let agents = agents(2);
    let begun = Instant::now();
    let reference = agents[0].remote(1, SLOW, &7).unwrap();
    while !reference.confirmed_by_owner() {
        assert!(begun.elapsed() < Duration::from_millis(1900));
        std::thread::yield_now();
    }
    let attempt = Timeout::After(Duration::from_millis(1));
    let early = reference.to_here(attempt).unwrap_err();
    assert_eq!(early.kind, RpcErrorKind::Deadline);
    assert_eq!(reference.to_here(NOW).as_deref(), Ok(&7));
    drop(reference);
    nothing_is_left(&agents);
}

#[test]
fn a_value_of_ones_own_is_the_value_itself() {
    let agents = agents(2);
    let reference = RRef::new(&agents[0], 5_u64).unwrap();
    assert_eq!(agents[0].references(), ReferenceCounters::default());
    let one = reference.local_value().unwrap();
    assert!(Arc::ptr_eq(&one, &reference.to_here(NOW).unwrap()));
    assert_eq!(agents[0].call(1, VALUE, &reference).wait(), Ok(5));
    let user = agents[1].remote(1, NUMBER, &6).unwrap();
    assert_eq!(agents[1].call(0, VALUE, &user).wait(), Ok(6));
    drop((reference, user, one));
    nothing_is_left(&agents);
}

#[test]
fn references_go_from_owner_to_user_to_user_and_back_and_to_oneself() {
    let agents = agents(3);
    let reference = RRef::new(&agents[0], 5_u64).unwrap();
    // Owner to user, and from there around the workers, the owner included.
    for steps in 0..7 {
        let value = agents[0].call(1, PASS, &(steps, reference.clone())).wait();
        assert_eq!(value, Ok(5), "{steps} steps");
    }
    assert_eq!(agents[0].call(0, VALUE, &reference).wait(), Ok(5));
    let user = agents[0].remote(1, NUMBER, &6).unwrap();
    for to in 0..3 {
        assert_eq!(agents[0].call(to, VALUE, &user).wait(), Ok(6));
        let back = agents[0].call(to, ECHO, &user).wait().unwrap();
        assert_eq!(back.to_here(NOW).as_deref(), Ok(&6));
    }
    drop((reference, user));
    nothing_is_left(&agents);
}

#[test]
fn a_function_sees_no_reference_that_its_owner_does_not_know() {
    let agents = agents(3);
    let user = agents[0].remote(1, NUMBER, &6).unwrap();
    let futures: Vec<_> = (0..200).map(|_| agents[0].call(2, LOOK, &user)).collect();
    for future in futures {
        assert_eq!(future.wait(), Ok((true, "w1".to_owned())));
    }
    drop(user);
    nothing_is_left(&agents);
}

#[test]
fn a_reference_that_is_not_there_yet_can_be_passed_on() {
    let agents = agents(3);
    for _ in 0..20 {
        let user = agents[0].remote(1, NUMBER, &6).unwrap();
        let values = [1, 2, 0].map(|to| agents[0].call(to, VALUE, &user));
        drop(user);
        for value in values {
            assert_eq!(value.wait(), Ok(6));
        }
    }
    nothing_is_left(&agents);
}

#[test]
fn methods_are_called_on_values_where_they_are() {
    let agents = agents(2);
    for owner in [0, 1] {
        let counter = agents[0].remote(owner, COUNTER, &10).unwrap();
        assert_eq!(counter.rpc_sync(ADD, &1, NOW), Ok(11));
        assert_eq!(counter.rpc_async(ADD, &2, NOW).wait(), Ok(13));
        assert_eq!(counter.rpc_sync(ADD_BLOCKING, &2, NOW), Ok(15));
        let sum = counter.remote(ADD, &5).unwrap();
        assert_eq!(sum.owner_name(), counter.owner_name());
        assert_eq!(sum.to_here(NOW).as_deref(), Ok(&20));
        let sum = counter.remote(ADD_BLOCKING, &1).unwrap();
        assert_eq!(sum.to_here(NOW).as_deref(), Ok(&21));
    }
    let counter = RRef::new_local(&agents[1], AtomicU64::new(1)).unwrap();
    assert_eq!(counter.rpc_sync(ADD, &1, NOW), Ok(2));
    drop(counter);
    nothing_is_left(&agents);
}
