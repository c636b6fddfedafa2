//! One rank of a group that does nothing but reduce, and exchange messages: the load for `cargo xtask bench collective`.
//!
//! ```text
//! rank <store host:port> <rank> <world size> <name of the group>
//! ```
//!
//! Rank 0 prints one line of JSON: the median seconds of one `all_reduce`, by size in bytes; and with two ranks, of a
//! message to the other one and back, as `message` and the size.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rdzv_collective::{GroupOptions, ProcessGroup, ReduceOp};
use rdzv_store::{TcpStore, TcpStoreOptions};

/// Sizes in bytes, and how often each is reduced. The peer has the same.
const ROUNDS: [(usize, usize); 3] = [(4, 3000), (64 << 10, 1000), (16 << 20, 20)];

/// How many of these do not count.
const WARM: usize = 5;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [store, rank, world_size, name] = &words[..] else {
        return Err("usage: see the head of this program's source".into());
    };
    let (host, port) = store.rsplit_once(':').ok_or("no port")?;
    let store = TcpStore::connect(TcpStoreOptions::new(host, port.parse()?))?;
    let options = GroupOptions {
        name: name.clone(),
        address: Some(Ipv4Addr::LOCALHOST.into()),
        ..GroupOptions::default()
    };
    let mut group =
        ProcessGroup::with_options(&store, rank.parse()?, world_size.parse()?, &options)?;
    let mut figures = Vec::new();
    for (bytes, rounds) in ROUNDS {
        let mut values = vec![1.0_f32; bytes / size_of::<f32>()];
        group.barrier()?;
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..WARM + rounds {
            let start = Instant::now();
            group.all_reduce(&mut values, ReduceOp::Max)?;
            times.push(start.elapsed());
        }
        let middle = median(&mut times[WARM..]);
        figures.push(format!("\"{bytes}\":{middle:.9}"));
    }
    let is_pair = group.world_size() == 2;
    // Without a copy of the values, as PyTorch's.
    let messages = group.point_to_point();
    for (bytes, rounds) in ROUNDS.into_iter().filter(|_| is_pair) {
        let mut values = vec![1.0_f32; bytes / size_of::<f32>()];
        group.barrier()?;
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..WARM + rounds {
            let start = Instant::now();
            if group.rank() == 0 {
                values = messages.send(values, 1, 0)?.wait()?;
                values = messages.receive(values, Some(1), 0)?.wait()?.buffer;
            } else {
                values = messages.receive(values, Some(0), 0)?.wait()?.buffer;
                values = messages.send(values, 0, 0)?.wait()?;
            }
            times.push(start.elapsed());
        }
        let middle = median(&mut times[WARM..]);
        figures.push(format!("\"message {bytes}\":{middle:.9}"));
    }
    group.barrier()?;
    if group.rank() == 0 {
        println!("{{{}}}", figures.join(","));
    }
    Ok(())
}

/// In seconds.
fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}
