//! Tests of failures and of their errors.

use std::net::TcpListener;

use rdzv_rpc_proto::rref::{ForkData, ForkId, GlobalId, Input, Member, RRefId};
use rdzv_rpc_proto::worker::WorkerId;

use super::*;

#[test]
fn the_error_of_a_function_is_notified_again_and_again() {
    let agents = agents(2);
    for owner in [0, 1] {
        let reference = agents[0]
            .remote(owner, FAIL, &"no milk".to_owned())
            .unwrap();
        for _ in 0..3 {
            let error = reference.to_here(NOW).unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::Remote);
            assert_eq!(error.remote.unwrap().message, "no milk");
        }
        assert!(reference.confirmed_by_owner());
    }
    nothing_is_left(&agents);
}

#[test]
fn a_method_that_is_not_there_is_notified_by_the_reference() {
    let agents = agents(2);
    const NONE: Method<u64, u64> = Method::new("missing.number");
    // The question may arrive before or after the failure.
    for _ in 0..50 {
        let reference = agents[0].remote(1, NONE, &1).unwrap();
        for _ in 0..2 {
            let error = reference.to_here(NOW).unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::NoSuchMethod, "{error}");
            assert!(
                error.message.contains("similar names are number"),
                "{error}"
            );
        }
    }
    const NONE_OF_VALUE: ValueMethod<u64, (), u64> = ValueMethod::new("missing.value");
    let reference = agents[0].remote(1, NONE, &1).unwrap();
    let error = reference.rpc_sync(NONE_OF_VALUE, &(), NOW).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NoSuchMethod, "{error}");
    let here = agents[0].remote(0, NONE, &1).unwrap_err();
    assert_eq!(here.kind, RpcErrorKind::NoSuchMethod);
    let unknown = agents[0].remote("missing", NUMBER, &1).unwrap_err();
    assert_eq!(unknown.kind, RpcErrorKind::UnknownWorker);
    drop(reference);
    nothing_is_left(&agents);
}

#[test]
fn the_value_itself_is_only_on_the_owner() {
    let agents = agents(2);
    let user = agents[0].remote(1, NUMBER, &1).unwrap();
    let error = user.local_value().unwrap_err();
    let text = format!(
        "For {user}, can't call localValue() on user WorkerInfo(id=0, name=w0). Call it on owner \
         WorkerInfo(id=1, name=w1)"
    );
    assert_eq!(
        (error.kind, error.message),
        (RpcErrorKind::InvalidArgument, text)
    );
}

#[test]
fn a_reference_is_serialised_within_calls_of_its_agent_only() {
    let agents = agents(2);
    let reference = RRef::new(&agents[0], 1_u64).unwrap();
    let error = serde_json::to_string(&reference).unwrap_err();
    let text = "Can not pickle rref in python pickler, rref can only be pickled when using RPC";
    assert!(error.to_string().contains(text), "{error}");
    let error = agents[1].call(0, VALUE, &reference).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert!(
        error.message.contains("belongs to another agent"),
        "{error}"
    );
    drop(reference);
    nothing_is_left(&agents);
}

#[test]
fn a_reference_to_something_else_is_refused_and_given_back() {
    let agents = agents(2);
    const TEXT: Method<RRef<String>, u64> = Method::new("value");
    let reference = RRef::new(&agents[0], "text".to_owned()).unwrap();
    let error = agents[0].call(1, TEXT, &reference).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Serialization);
    assert!(error.message.contains("String, not to a u64"), "{error}");
    const NONE: Method<RRef<String>, u64> = Method::new("none");
    let error = agents[0].call(1, NONE, &reference).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NoSuchMethod);
    drop(reference);
    nothing_is_left(&agents);
}

#[test]
fn a_value_that_cannot_be_sent_says_so() {
    let agents = agents(2);
    let counter = agents[0].remote(1, COUNTER, &1).unwrap();
    let error = counter.to_here(NOW).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert!(error.message.contains("ValueMethod"), "{error}");
    let error = agents[0].call(1, COUNTER, &1).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    drop(counter);
    nothing_is_left(&agents);
}

#[test]
fn after_the_end_references_say_that_they_are_deleted() {
    let agents = agents(2);
    let user = agents[0].remote(1, NUMBER, &1).unwrap();
    let own = RRef::new(&agents[0], 1_u64).unwrap();
    assert_eq!(user.to_here(NOW).as_deref(), Ok(&1));
    agents[0].stop();
    for reference in [&user, &own] {
        let error = reference.to_here(NOW).unwrap_err();
        let text =
            format!("{reference} has been deleted. Cannot call to_here() on it after deletion.");
        assert_eq!((error.kind, error.message), (RpcErrorKind::Stopping, text));
    }
    assert!(RRef::new(&agents[0], 1_u64).is_err());
    assert!(agents[0].remote(1, NUMBER, &1).is_err());
}

#[test]
fn the_values_of_a_worker_that_stops_are_lost_and_its_forks_released() {
    let attempt = ReferenceSettings {
        lost_after: Duration::from_millis(300),
        ..ReferenceSettings::default()
    };
    let settings = Made {
        references: attempt,
        ..Made::default()
    };
    let agents = made(3, &settings, methods);
    let owned = agents[0].remote(1, NUMBER, &1).unwrap();
    let counter = agents[0].remote(1, COUNTER, &1).unwrap();
    let shared = RRef::new(&agents[0], 2_u64).unwrap();
    let held = agents[1].remote(0, NUMBER, &3).unwrap();
    assert_eq!(owned.to_here(NOW).as_deref(), Ok(&1));
    assert_eq!(counter.rpc_sync(ADD, &1, NOW), Ok(2));
    assert_eq!(held.to_here(NOW).as_deref(), Ok(&3));
    assert_eq!(agents[0].call(2, VALUE, &shared).wait(), Ok(2));
    agents[1].stop();
    let error = owned.to_here(NOW).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    let error = counter.rpc_sync(ADD, &1, NOW).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    drop((owned, counter, shared, held));
    for agent in [&agents[0], &agents[2]] {
        wait_for("no reference is left", || {
            agent.references() == ReferenceCounters::default()
        });
    }
    assert_eq!(Register::of(agents[0].core()).values(), 0);
}

#[test]
fn a_creation_that_is_late_before_there_is_a_connection_fails() {
    let agents = agents(2);
    // The listener accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut members = (*agents[0].core().members()).clone();
    let peer_address = &mut members.get_mut(&WorkerId(1)).unwrap().peer_address;
    peer_address.address = silent.local_addr().unwrap();
    peer_address.unix = None;
    agents[0].core().set_members(members);
    let soon = CallOptions::new().timeout(Timeout::After(Duration::from_millis(50)));
    within(LONGEST, "a creation that is late", move || {
        let reference = agents[0].remote_with(soon, 1, NUMBER, &1).unwrap();
        wait_for("no user is pending", || {
            agents[0].references().num_pending_users == 0
        });
        let error = reference.to_here(NOW).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Deadline);
        assert!(
            error.message.contains("no connection to the worker"),
            "{error}"
        );
    });
}

#[test]
fn who_asks_whether_a_reference_is_known_after_its_owner_was_lost_is_notified() {
    let agents = agents(1);
    let core = agents[0].core();
    let member = |id| Member {
        id: WorkerId(id),
        incarnation: 9,
    };
    let id = |local_id| GlobalId {
        created_on: WorkerId(2),
        local_id,
    };
    let (rref, fork) = (RRefId(id(0)), ForkId(id(1)));
    let data = ForkData {
        owner: member(1),
        rref,
        fork,
        parent: member(2),
        creator: None,
    };
    let register = Register::of(core);
    register
        .with(core, |machine, now| machine.adopt(now, &data))
        .unwrap();
    register.tell(core, Input::Left(member(1)));
    let error = register.confirmation(fork).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
}
