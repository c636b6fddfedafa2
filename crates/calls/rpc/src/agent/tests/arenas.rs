//! Tests of tensors in arenas.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::*;
use crate::tensor::DataType;
use crate::{Arena, Method, RpcError, Tensor};

const KEEP: Method<Tensor, ()> = Method::new("keep");
const DROP: Method<(), usize> = Method::new("drop");
const SUM: Method<Vec<Tensor>, u64> = Method::new("sum");
const MAKE: Method<usize, Tensor> = Method::new("make");
const BACK: Method<Tensor, Tensor> = Method::new("back");
const FAIL: Method<Tensor, ()> = Method::new("fail");

/// Size in bytes of a tensor that is lent instead of sent.
const LARGE: usize = 1 << 20;

/// Longest time that a test waits for an event.
const LIMIT: Duration = Duration::from_secs(60);

fn methods() -> Methods {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let dropped = Arc::clone(&kept);
    let arena = Arena::new(4 * LARGE).unwrap();
    Methods::new()
        .with(KEEP, move |tensor: Tensor| {
            kept.lock().unwrap().push(tensor);
            async { Ok::<_, RpcError>(()) }
        })
        .with(DROP, move |()| {
            let count = std::mem::take(&mut *dropped.lock().unwrap()).len();
            async move { Ok::<_, RpcError>(count) }
        })
        .with(SUM, async |tensors: Vec<Tensor>| {
            let mut sum = 0;
            for tensor in tensors {
                let bytes = tensor.as_slice::<u8>()?;
                sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            }
            Ok::<_, RpcError>(sum)
        })
        .with(MAKE, move |length: usize| {
            let made = arena.allocate(length).map(|mut block| {
                block.as_mut().fill(3);
                Tensor::from_bytes(DataType::U8, [length], block).unwrap()
            });
            async { made.ok_or_else(|| "no room".to_owned()) }
        })
        .with(BACK, async |tensor: Tensor| Ok::<_, RpcError>(tensor))
        .with(FAIL, async |_: Tensor| Err::<(), _>("it fails".to_owned()))
}

fn tensor_in(arena: &Arena, length: usize, byte: u8) -> Tensor {
    let mut block = arena.allocate(length).expect("there is room in the arena");
    block.as_mut().fill(byte);
    Tensor::from_bytes(DataType::U8, [length], block).unwrap()
}

/// Makes calls until all lent memory has been returned.
fn call_while_in_use(agent: &RpcAgent, arena: &Arena) {
    let begun = Instant::now();
    while arena.free() < arena.capacity() {
        let used = arena.capacity() - arena.free();
        assert!(begun.elapsed() < LIMIT, "{used} bytes were not given back");
        agent.call(1, SUM, &Vec::new()).wait().unwrap();
    }
}

#[test]
fn a_tensor_in_an_arena_is_shared_while_the_callee_holds_it() {
    let agents = group(2, methods);
    let arena = Arena::new(4 * LARGE).unwrap();
    let tensor = tensor_in(&arena, LARGE, 1);
    for _ in 0..3 {
        agents[0].call(1, KEEP, &tensor).wait().unwrap();
    }
    drop(tensor);
    // The calls are over, and the callee holds the tensor three times.
    agents[0].call(1, SUM, &Vec::new()).wait().unwrap();
    assert_eq!(arena.capacity() - arena.free(), LARGE);
    assert_eq!(agents[0].call(1, DROP, &()).wait(), Ok(3));
    call_while_in_use(&agents[0], &arena);
}

#[test]
fn a_result_in_an_arena_is_shared_to_the_caller() {
    let agents = group(2, methods);
    // The arena of the callee has room for four tensors.
    for _ in 0..3 {
        let held: Vec<Tensor> = (0..4)
            .map(|_| agents[0].call(1, MAKE, &LARGE).wait().unwrap())
            .collect();
        for tensor in &held {
            assert_eq!(tensor.as_slice::<u8>().unwrap(), vec![3; LARGE]);
        }
        drop(held);
        let begun = Instant::now();
        while let Err(error) = agents[0].call(1, MAKE, &(4 * LARGE)).wait() {
            assert!(error.message.contains("no room"), "{error}");
            assert!(begun.elapsed() < LIMIT, "they were not given back");
        }
        // The tensor of that size was returned as well.
        let begun = Instant::now();
        while agents[0].call(1, MAKE, &1).wait().is_err() {
            assert!(begun.elapsed() < LIMIT, "it was not given back");
        }
    }
}

#[test]
fn views_and_tensors_of_all_memories_travel_together_over_every_transport() {
    for (transports, _) in transports() {
        let made = Made::over(transports);
        let agents = super::made(2, &made, methods);
        let arena = Arena::new(4 * LARGE).unwrap();
        let other = Arena::new(4096).unwrap();
        let large = tensor_in(&arena, LARGE, 1);
        let tensors = vec![
            large.slice(0, 10..100_010).unwrap(),
            large.slice(0, 500_000..LARGE).unwrap(),
            tensor_in(&arena, 10, 2),
            tensor_in(&other, 4096, 3),
            Tensor::from_vec(vec![4_u8; LARGE], [LARGE]).unwrap(),
            Tensor::from_vec(vec![5_u8], [1]).unwrap(),
        ];
        let length = |tensor: &Tensor| tensor.as_slice::<u8>().unwrap().len() as u64;
        let sum: u64 = (tensors.iter().zip([1, 1, 2, 3, 4, 5]))
            .map(|(tensor, byte)| length(tensor) * byte)
            .sum();
        for to in [1, 0] {
            assert_eq!(agents[0].call(to, SUM, &tensors).wait(), Ok(sum));
            let back = agents[0].call(to, BACK, &tensors[0]).wait().unwrap();
            assert_eq!(back.as_slice::<u8>().unwrap(), vec![1; 100_000]);
        }
        drop((tensors, large));
        call_while_in_use(&agents[0], &arena);
        call_while_in_use(&agents[0], &other);
    }
}

#[test]
fn what_is_shared_for_a_call_that_fails_comes_back() {
    let agents = group(2, methods);
    let arena = Arena::new(4 * LARGE).unwrap();
    let tensor = tensor_in(&arena, LARGE, 1);
    assert!(agents[0].call(1, FAIL, &tensor).wait().is_err());
    let missing: Method<Tensor, ()> = Method::new("missing");
    assert!(agents[0].call(1, missing, &tensor).wait().is_err());
    let cancelled = agents[0].call(1, KEEP, &tensor);
    cancelled.cancel();
    drop((tensor, cancelled));
    agents[0].call(1, DROP, &()).wait().unwrap();
    call_while_in_use(&agents[0], &arena);
}

#[test]
fn what_is_shared_stays_when_the_agents_are_gone() {
    let mut agents = group(2, methods);
    let arena = Arena::new(4 * LARGE).unwrap();
    let tensor = tensor_in(&arena, LARGE, 7);
    let kept = agents[0].call(1, BACK, &tensor).wait().unwrap();
    agents[0].call(1, KEEP, &tensor).wait().unwrap();
    drop(tensor);
    let callee = agents.pop().unwrap();
    for agent in agents {
        agent.stop();
    }
    assert_eq!(arena.capacity() - arena.free(), LARGE, "the callee has it");
    callee.stop();
    drop(callee);
    assert_eq!(kept.as_slice::<u8>().unwrap(), vec![7; LARGE]);
    drop(kept);
    wait_for("it is given back", || arena.free() == arena.capacity());
}
