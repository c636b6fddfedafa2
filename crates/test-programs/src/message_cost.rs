//! What it costs to make a message of a value, and a value of a message.
//!
//! `cargo run --release --package rdzv-rpc --example message_cost` prints the median and the best of
//! many rounds, each long enough for the clock.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rdzv_rpc::device::CpuOnly;
use rdzv_rpc::message::{Incoming, Outgoing, decode, encode};
use rdzv_rpc::tensor::Tensor;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use serde::{Deserialize, Serialize};

/// The arguments of an ordinary call.
#[derive(Serialize, Deserialize)]
struct Push {
    step: u64,
    learning_rate: f32,
    name: String,
    shards: Vec<u32>,
}

const ROUNDS: usize = 101;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let peer = WorkerInfo {
        id: WorkerId(1),
        name: WorkerName::new("peer")?,
    };
    let backend = CpuOnly::shared();
    let push = Push {
        step: 1_234_567,
        learning_rate: 0.001,
        name: "layers.12.weight".to_owned(),
        shards: vec![0, 1, 2, 3],
    };
    let numbers = vec![1.0_f32; 16 << 20];
    let address = numbers.as_ptr();
    let large = Tensor::from_vec(numbers, [4096, 4096])?;
    let gaps = large.slice(1, 0..2048)?;

    let encoded = encode(&push, &mut Outgoing::request(&peer))?;
    measure("encode a small struct", 10_000, || {
        black_box(encode(&push, &mut Outgoing::request(&peer)).is_ok());
    });
    measure("decode a small struct", 10_000, || {
        let value = decode::<Push>(&encoded, &mut Incoming::new(&peer, &backend));
        black_box(value.is_ok_and(|push| push.step == 1_234_567));
    });

    let encoded = encode(&large, &mut Outgoing::request(&peer))?;
    let arrived: Tensor = decode(&encoded, &mut Incoming::new(&peer, &backend))?;
    let same = arrived.as_slice::<f32>()?.as_ptr() == address;
    println!("64 MiB tensor: the memory that arrives is that which was sent: {same}");
    measure("encode a tensor of 64 MiB", 1_000, || {
        black_box(encode(&large, &mut Outgoing::request(&peer)).is_ok());
    });
    measure("decode a tensor of 64 MiB", 1_000, || {
        let value = decode::<Tensor>(&encoded, &mut Incoming::new(&peer, &backend));
        black_box(value.is_ok());
    });
    measure("encode half of its columns (32 MiB, a copy)", 1, || {
        black_box(encode(&gaps, &mut Outgoing::request(&peer)).is_ok());
    });
    Ok(())
}

/// Times `work`, so many times a round.
fn measure(what: &str, times: u32, mut work: impl FnMut()) {
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..times {
                work();
            }
            begin.elapsed() / times
        })
        .collect();
    rounds.sort();
    let (median, best) = (rounds[ROUNDS / 2], rounds[0]);
    println!("{what}: median {median:?}, best {best:?}");
}
