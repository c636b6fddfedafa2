//! One rank of a process group.
//!
//! ```text
//! collective_worker <store host:port> <rank> <world size>
//! collective_worker <store host:port> <rank> <world size> <name of the group>
//! ```
//!
//! With a name, the program measures for `cargo xtask bench collective`. Rank 0 prints one line of
//! JSON with the median seconds of one `all_reduce` by size in bytes. With two ranks, the line also
//! has the median seconds of a message to the other rank and back, as `message` and the size.
//!
//! Without a name, the program executes the commands of a test. It prints `ready` when it is in the
//! group, and answers every line of its input with one line: `ok`, or the error.
//!
//! | line | action |
//! |---|---|
//! | `operations` | runs and checks most operations with several types and lengths |
//! | `barrier` | waits for all ranks |
//! | `monitored N` | waits for all ranks, for up to N ms |
//! | `receive`, `receive-any` | receives one message with tag 9 from rank 2, or from any rank |
//! | `send` | sends 100 kB with tag 9 to rank 2 |
//! | `reduce` | reduces 4 MiB until that fails; prints `reducing` after the first time |

use std::io::BufRead;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rdzv_collective::{CollectiveError, Element, GroupOptions, ProcessGroup, ReduceOp};

use crate::store_at;

/// Numbers of elements: none, one, 1 KiB of four-byte elements, an odd number.
const LENGTHS: [usize; 4] = [0, 1, 256, 1001];

/// Number of four-byte elements in 1 MiB.
const LONG: usize = 256 << 10;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [store, rank, world_size, name @ ..] = &words[..] else {
        return Err("usage: see the head of this program's source".into());
    };
    let store = store_at(store)?;
    let mut options = GroupOptions {
        timeout: Duration::from_secs(20),
        address: Some(Ipv4Addr::LOCALHOST.into()),
        ..GroupOptions::default()
    };
    if let [name] = name {
        options.name.clone_from(name);
        options.timeout = GroupOptions::default().timeout;
    }
    let mut group =
        ProcessGroup::with_options(&store, rank.parse()?, world_size.parse()?, &options)?;
    if !name.is_empty() {
        return Ok(measure(&mut group)?);
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let done = match line.split_once(' ') {
            None if line == "operations" => operations(&mut group),
            None if line == "barrier" => group.barrier(),
            None if line == "reduce" => reduce(&mut group),
            None if line == "receive" => group.receive(&mut [0_u8], Some(2), 9).map(drop),
            None if line == "receive-any" => group.receive(&mut [0_u8], None, 9).map(drop),
            None if line == "send" => group.send(&[0_u8; 100_000], 2, 9),
            Some(("monitored", limit)) => {
                group.monitored_barrier(Duration::from_millis(limit.parse()?))
            }
            _ => return Err(format!("unknown command '{line}'").into()),
        };
        match done {
            Ok(()) => println!("ok"),
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}

/// Sizes in bytes and numbers of rounds, the same as in `collective_peer.py`.
const ROUNDS: [(usize, usize); 3] = [(4, 3000), (64 << 10, 1000), (16 << 20, 20)];

/// Number of rounds that are not counted.
const WARM: usize = 5;

fn measure(group: &mut ProcessGroup) -> Result<(), CollectiveError> {
    let mut figures = Vec::new();
    for (bytes, rounds) in ROUNDS {
        let mut values = vec![1.0_f32; bytes / size_of::<f32>()];
        group.barrier()?;
        let middle = median(rounds, || group.all_reduce(&mut values, ReduceOp::Max))?;
        figures.push(format!("\"{bytes}\":{middle:.9}"));
    }
    let (rank, is_pair) = (group.rank(), group.world_size() == 2);
    for (bytes, rounds) in ROUNDS.into_iter().filter(|_| is_pair) {
        // The values are sent without a copy, as in PyTorch.
        let mut values = vec![1.0_f32; bytes / size_of::<f32>()];
        group.barrier()?;
        let messages = group.point_to_point();
        let middle = median(rounds, || {
            let mut sent = std::mem::take(&mut values);
            if rank == 0 {
                sent = messages.send(sent, 1, 0)?.wait()?;
                values = messages.receive(sent, Some(1), 0)?.wait()?.buffer;
            } else {
                sent = messages.receive(sent, Some(0), 0)?.wait()?.buffer;
                values = messages.send(sent, 0, 0)?.wait()?;
            }
            Ok(())
        })?;
        figures.push(format!("\"message {bytes}\":{middle:.9}"));
    }
    group.barrier()?;
    if rank == 0 {
        println!("{{{}}}", figures.join(","));
    }
    Ok(())
}

/// Returns the median time in seconds.
fn median(
    rounds: usize,
    mut once: impl FnMut() -> Result<(), CollectiveError>,
) -> Result<f64, CollectiveError> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..WARM + rounds {
        let start = Instant::now();
        once()?;
        times.push(start.elapsed());
    }
    let times = &mut times[WARM..];
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64())
}

/// Sums ones until an error occurs.
fn reduce(group: &mut ProcessGroup) -> Result<(), CollectiveError> {
    let sum = group.world_size();
    for round in 0_u64.. {
        let mut values = vec![1_u32; 1 << 20];
        group.all_reduce(&mut values, ReduceOp::Sum)?;
        assert!(values.iter().all(|value| *value == sum), "round {round}");
        if round == 0 {
            println!("reducing");
        }
    }
    Ok(())
}

fn operations(group: &mut ProcessGroup) -> Result<(), CollectiveError> {
    for length in LENGTHS {
        exact(group, length, |number| number as i32)?;
        exact(group, length, i64::from)?;
        exact(group, length, |number| number as f32)?;
        exact(group, length, f64::from)?;
        averages(group, length)?;
    }
    exact(group, LONG, |number| number as f32)?;
    objects(group)
}

/// Value of a rank at an index; small, so that sums and products are exact.
fn value(rank: u32, index: usize) -> u32 {
    (rank + (index % 5) as u32) % 3 + 1
}

fn values<T>(rank: u32, length: usize, to: impl Fn(u32) -> T) -> Vec<T> {
    (0..length).map(|index| to(value(rank, index))).collect()
}

/// Combination of two values.
type Combine = fn(u32, u32) -> u32;

/// Checks the operations whose results are equal for all types.
fn exact<T: Element + PartialEq + std::fmt::Debug>(
    group: &mut ProcessGroup,
    length: usize,
    to: impl Fn(u32) -> T + Copy,
) -> Result<(), CollectiveError> {
    let (me, size) = (group.rank(), group.world_size());
    let own = values(me, length, to);
    let each: Vec<Vec<T>> = (0..size).map(|rank| values(rank, length, to)).collect();
    let reduced = |how: Combine| -> Vec<T> {
        let at = |index| (0..size).map(|rank| value(rank, index)).reduce(how);
        (0..length)
            .map(|index| to(at(index).unwrap_or(0)))
            .collect()
    };
    let reductions: [(ReduceOp, Combine); 4] = [
        (ReduceOp::Sum, |a, b| a + b),
        (ReduceOp::Product, |a, b| a * b),
        (ReduceOp::Min, u32::min),
        (ReduceOp::Max, u32::max),
    ];
    for (reduce, how) in reductions {
        let expected = reduced(how);
        let mut all = own.clone();
        group.all_reduce(&mut all, reduce)?;
        assert_eq!(all, expected, "all_reduce {reduce:?} of {length}");
        let mut parts = own.clone();
        let mine = group.reduce_scatter(&mut parts, reduce)?;
        assert_eq!(
            parts[mine.clone()],
            expected[mine],
            "reduce_scatter {reduce:?}"
        );
        let root = size - 1;
        let mut at_root = own.clone();
        group.reduce(&mut at_root, reduce, root)?;
        if me == root {
            assert_eq!(at_root, expected, "reduce {reduce:?} of {length}");
        }
    }
    for root in [0, size - 1] {
        let mut sent = own.clone();
        group.broadcast(&mut sent, root)?;
        assert_eq!(sent, each[root as usize], "broadcast from {root}");
        let gathered = group.gather(&own, root)?;
        let expected = (me == root).then(|| each.concat());
        assert_eq!(gathered, expected, "gather to {root}");
        let mut scattered = values(size, length, to);
        let all = if me == root {
            each.concat()
        } else {
            Vec::new()
        };
        group.scatter(&all, &mut scattered, root)?;
        assert_eq!(scattered, own, "scatter from {root}");
    }
    let mut all = values(size, length * size as usize, to);
    group.all_gather(&own, &mut all)?;
    assert_eq!(all, each.concat(), "all_gather");
    let unequal = group.all_gather_unequal(&own[..length.min(me as usize)])?;
    for (rank, list) in unequal.iter().enumerate() {
        assert_eq!(
            list[..],
            each[rank][..length.min(rank)],
            "all_gather_unequal"
        );
    }
    let mut target = values(size, length * size as usize, to);
    let source = own.repeat(size as usize);
    group.all_to_all(&source, &mut target)?;
    assert_eq!(target, each.concat(), "all_to_all");
    if size > 1 {
        let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
        let mut received = values(size, length, to);
        // All ranks send first, without waiting.
        let sent = group.point_to_point().send(own.clone(), next, 3)?;
        let from = group.receive(&mut received, None, 3)?;
        assert_eq!((from, sent.wait()?), (previous, own), "from any rank");
        assert_eq!(received, each[previous as usize], "send and receive");
    }
    Ok(())
}

fn averages(group: &mut ProcessGroup, length: usize) -> Result<(), CollectiveError> {
    let size = group.world_size();
    let mut own = values(group.rank(), length, f64::from);
    group.all_reduce(&mut own, ReduceOp::Average)?;
    for (index, average) in own.into_iter().enumerate() {
        let sum: u32 = (0..size).map(|rank| value(rank, index)).sum();
        let expected = f64::from(sum) / f64::from(size);
        assert!(
            (average - expected).abs() < 1e-12,
            "{average} for {expected}"
        );
    }
    Ok(())
}

fn objects(group: &mut ProcessGroup) -> Result<(), CollectiveError> {
    let own = (group.rank(), format!("rank {}", group.rank()));
    let all = group.all_gather_objects(&own)?;
    let expected: Vec<_> = (0..group.world_size())
        .map(|rank| (rank, format!("rank {rank}")))
        .collect();
    assert_eq!(all, expected);
    Ok(())
}
