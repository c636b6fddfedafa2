//! Tests of gathers and barriers.

use std::thread;
use std::time::Instant;

use crate::{Destination, Method, Methods, RpcError, RpcErrorKind, Tensor, blocking};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// Runs `work` on all agents at the same time and returns the results.
fn all<T: Send>(agents: &[RpcAgent], work: impl Fn(&RpcAgent) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = agents
            .iter()
            .map(|agent| scope.spawn(move || work(agent)))
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn everybody_gets_the_values_of_all_again_and_again() {
    for size in [1, 2, 5] {
        let agents = group(size, Methods::new);
        let got = all(&agents, |agent| {
            let me = agent.me().id.0;
            let rounds = (0..20).map(|round| agent.all_gather(&(me, round), None, LONG));
            rounds.collect::<Result<Vec<_>, RpcError>>().unwrap()
        });
        for rounds in got {
            for (round, values) in (0..20).zip(rounds) {
                let expected: Vec<_> = (0..size)
                    .map(|id| (format!("w{id}"), (id, round)))
                    .collect();
                let values: Vec<_> = values
                    .into_iter()
                    .map(|(name, value)| (name.to_string(), value))
                    .collect();
                assert_eq!(values, expected);
            }
        }
    }
}

#[test]
fn tensors_of_any_number_and_size_are_gathered() {
    let agents = group(3, Methods::new);
    let tensors = |id: u32| -> Vec<Tensor> {
        let sizes = [0, 10, 300_000];
        let made = (0..id).map(|number| {
            let size = sizes[number as usize];
            Tensor::from_vec(vec![id as f32; size], [size]).unwrap()
        });
        made.collect()
    };
    let got = all(&agents, |agent| {
        agent
            .all_gather(&tensors(agent.me().id.0), None, LONG)
            .unwrap()
    });
    for values in got {
        for (id, tensors_of_one) in (0..).zip(values.into_values()) {
            for (got, sent) in tensors_of_one.iter().zip(tensors(id)) {
                assert_eq!(got.as_slice::<f32>(), sent.as_slice::<f32>());
            }
            assert_eq!(tensors_of_one.len(), id as usize);
        }
    }
}

#[test]
fn who_is_missing_is_named_at_the_deadline_and_the_next_one_succeeds() {
    let agents = group(4, Methods::new);
    let within = Duration::from_secs(2);
    // First the leader is missing, then another member.
    for absent in [0, 2] {
        let begun = Instant::now();
        let errors = all(&agents, |agent| {
            (agent.me().id.0 != absent).then(|| agent.all_gather(&1, None, within).unwrap_err())
        });
        let took = begun.elapsed();
        assert!(took >= within && took < LONG / 2, "{took:?}");
        for error in errors.into_iter().flatten() {
            assert_eq!(error.kind, RpcErrorKind::Deadline, "{error}");
            let text = format!("w{absent} did not report (3 of 4 did)");
            assert!(error.message.contains(&text), "{error}");
        }
        // A member that comes too late gets the same error immediately.
        let begun = Instant::now();
        let late = agents[absent as usize]
            .all_gather(&1, None, LONG)
            .unwrap_err();
        assert!(late.message.contains("did not report"), "{late}");
        assert!(begun.elapsed() < LONG / 2);
        for result in all(&agents, |agent| agent.barrier(None, LONG)) {
            result.unwrap();
        }
    }
}

#[test]
fn one_that_stops_meanwhile_ends_it_for_all() {
    for gone in [0_usize, 3] {
        let agents = group(4, Methods::new);
        all(&agents, |agent| agent.barrier(None, LONG).unwrap());
        let begun = Instant::now();
        let errors = thread::scope(|scope| {
            let waiting: Vec<_> = agents
                .iter()
                .enumerate()
                .filter(|(id, _)| *id != gone)
                .map(|(_, agent)| scope.spawn(|| agent.barrier(None, LONG).unwrap_err()))
                .collect();
            agents[gone].stop();
            let over = waiting.into_iter();
            over.map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        for error in errors {
            assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
            assert!(error.message.contains(&format!("w{gone}")), "{error}");
        }
    }
}

#[test]
fn some_members_gather_among_themselves() {
    let agents = group(3, Methods::new);
    let some: [Destination<'_>; 2] = ["w2".into(), agents[1].me().into()];
    let got = all(&agents[1..], |agent| {
        agent
            .all_gather(&agent.me().id.0, Some(&some), LONG)
            .unwrap()
    });
    for values in got {
        assert_eq!(values.into_values().collect::<Vec<_>>(), [1, 2]);
    }
    let error = agents[0].all_gather(&0, Some(&some), LONG).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert!(error.message.contains("not among the members"), "{error}");
    let unauthenticated = agents[1].barrier(Some(&["w1".into(), "w9".into()]), LONG);
    let unauthenticated = unauthenticated.unwrap_err();
    assert_eq!(unauthenticated.kind, RpcErrorKind::UnknownWorker);
    assert!(unauthenticated.message.contains("w9"), "{unauthenticated}");
    let error = agents[1].barrier(None, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
}

#[test]
fn gathers_are_for_functions_that_may_block() {
    const MEET: Method<(), u64> = Method::new("meet");
    const STEP: Method<(), u64> = Method::new("step");
    let agents = group(2, || {
        let meet = |context: crate::CallContext| {
            let values = context.agent().all_gather(&7_u64, None, LONG)?;
            Ok::<_, RpcError>(values.into_values().sum())
        };
        Methods::new()
            .with(
                MEET,
                blocking(move |context: crate::CallContext, ()| meet(context)),
            )
            .with(STEP, move |context: crate::CallContext, ()| {
                std::future::ready(meet(context))
            })
    });
    let calls: Vec<_> = (0..2_u32).map(|id| agents[0].call(id, MEET, &())).collect();
    for call in calls {
        assert_eq!(call.wait(), Ok(14));
    }
    let error = agents[0].call("w1", STEP, &()).wait().unwrap_err();
    assert!(error.message.contains("must not block"), "{error}");
}
