//! One worker that `cargo xtask bench rpc` controls and measures.
//!
//! ```text
//! rpc_bench default | tcp
//! ```
//!
//! Rank, world size and store come from its environment, as an agent sets it. The worker prints
//! `{}` when it is ready, and answers every line of its input with one line of JSON:
//!
//! | line | answer |
//! |---|---|
//! | `init` | joins the group: `seconds` |
//! | `calls` | calls the next worker; see below |
//! | `lent` | calls the next worker with tensors in an arena: `lent`, `lent_large`; not over TCP |
//! | `idle` | does nothing for a while: `cores` that the worker used |
//! | `shutdown` | leaves with all other workers: `seconds`, and ends |
//!
//! `calls` returns `latency_p50`, `latency_p90` and `latency_p99` (seconds), `paced_p50` (one call
//! every 10 ms), `in_flight` (calls per second, 64 at the same time), `one_way` and `echo` (bytes
//! per second). It also returns the `threads`, `descriptors` and `megabytes` that the group and the
//! first calls added. `lent` is the median time in seconds of a call with 64 MiB, and `lent_large`
//! with 1 GiB.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_rpc::tensor::DataType;
use rdzv_rpc::transport::TransportOptions;
use rdzv_rpc::{Arena, Method, Methods, RpcAgent, RpcError, RpcFuture, RpcOptions, Tensor};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde_json::{Value, json};

use crate::rpc_scenario::process;

/// Parameters of the benchmark, the same for all implementations.
const CALLS: usize = 1000;
const PACED_CALLS: usize = 100;
const CALLS_IN_FLIGHT: usize = 3000;
const IN_FLIGHT: usize = 64;
const BULK_CALLS: usize = 10;
const BULK_ELEMENTS: usize = 16 << 20;
const REGISTERED_BYTES: usize = 64 << 20;
const REGISTERED_LARGE_BYTES: usize = 1 << 30;
const WARM_CALLS: usize = 50;
const WARM_BULK_CALLS: usize = 1;
const IDLE: Duration = Duration::from_secs(5);

/// Time limit of the shutdown.
const TEST_LIMIT: Duration = Duration::from_secs(60);

const NOTHING: Method<(), ()> = Method::new("bench.nothing");
const TAKE: Method<Tensor, ()> = Method::new("bench.take");
const GIVE_BACK: Method<Tensor, Tensor> = Method::new("bench.give_back");

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let configuration = std::env::args().nth(1).ok_or("specify default or tcp")?;
    let alone = Used::now()?;
    let mut out = std::io::stdout();
    writeln!(out, "{{}}")?;
    let mut worker = None;
    for line in std::io::stdin().lock().lines() {
        let answer = match (line?.trim(), worker.take()) {
            ("init", None) => {
                let start = Instant::now();
                worker = Some(join(&configuration)?);
                json!({ "seconds": start.elapsed().as_secs_f64() })
            }
            ("calls", Some(agent)) => {
                let answer = calls(&agent, &alone)?;
                worker = Some(agent);
                answer
            }
            ("lent", Some(agent)) => {
                let answer = json!({
                    "lent": registered(&agent, REGISTERED_BYTES)?,
                    "lent_large": registered(&agent, REGISTERED_LARGE_BYTES)?,
                });
                worker = Some(agent);
                answer
            }
            ("idle", agent) => {
                worker = agent;
                json!({ "cores": process::idle(IDLE) })
            }
            ("shutdown", Some(agent)) => {
                let start = Instant::now();
                agent.shutdown(TEST_LIMIT)?;
                let answer = json!({ "seconds": start.elapsed().as_secs_f64() });
                writeln!(out, "{answer}")?;
                break;
            }
            (other, _) => return Err(format!("unknown command '{other}'").into()),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

/// Resources that a process uses.
struct Used {
    threads: f64,
    descriptors: f64,
    megabytes: f64,
}

impl Used {
    fn now() -> Result<Self, Box<dyn Error>> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse::<f64>().ok())
                .ok_or("no such line")
        };
        Ok(Self {
            threads: number("Threads:")?,
            descriptors: std::fs::read_dir("/proc/self/fd")?.count() as f64,
            megabytes: number("VmRSS:")? / 1024.0,
        })
    }
}

/// Joins the group of all workers.
fn join(configuration: &str) -> Result<RpcAgent, Box<dyn Error>> {
    let near = configuration == "default";
    let options = RpcOptions {
        transport: TransportOptions {
            unix: near,
            shared: near,
            ..TransportOptions::default()
        },
        ..RpcOptions::default()
    };
    let methods = Methods::new()
        .with(NOTHING, async |()| Ok::<_, RpcError>(()))
        .with(TAKE, async |_: Tensor| Ok::<_, RpcError>(()))
        .with(GIVE_BACK, async |values: Tensor| Ok::<_, RpcError>(values));
    let met = rendezvous("env://", None, None, UrlOptions::default())?.join()?;
    let builder = RpcAgent::builder(format!("w{}", met.rank)).rank(met.rank.0);
    let builder = builder
        .world_size(met.world_size)
        .store(Arc::from(met.store));
    Ok(builder.methods(methods).options(options).connect()?)
}

/// Measures calls of the next worker.
fn calls(agent: &RpcAgent, alone: &Used) -> Result<Value, Box<dyn Error>> {
    let next = (agent.me().id.0 as usize + 1) % agent.workers().len();
    let peer = &agent.workers()[next];
    one_by_one(agent, peer, WARM_CALLS, Duration::ZERO)?;
    let used = Used::now()?;
    let times = one_by_one(agent, peer, CALLS, Duration::ZERO)?;
    let paced = one_by_one(agent, peer, PACED_CALLS, Duration::from_millis(10))?;
    Ok(json!({
        "threads": used.threads - alone.threads,
        "descriptors": used.descriptors - alone.descriptors,
        "megabytes": used.megabytes - alone.megabytes,
        "latency_p50": times[times.len() / 2],
        "latency_p90": times[times.len() * 9 / 10],
        "latency_p99": times[times.len() * 99 / 100],
        "paced_p50": paced[paced.len() / 2],
        "in_flight": many_at_a_time(agent, peer)?,
        "one_way": bulk(|values| agent.call(peer, TAKE, values).wait())?,
        "echo": bulk(|values| agent.call(peer, GIVE_BACK, values).wait().map(drop))?,
    }))
}

/// Returns the sorted times of empty calls in seconds.
fn one_by_one(
    agent: &RpcAgent,
    peer: &WorkerInfo,
    calls: usize,
    pause: Duration,
) -> Result<Vec<f64>, RpcError> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let start = Instant::now();
        agent.call(peer, NOTHING, &()).wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times)
}

/// Returns the number of empty calls per second.
fn many_at_a_time(agent: &RpcAgent, peer: &WorkerInfo) -> Result<f64, RpcError> {
    let mut futures: VecDeque<RpcFuture<()>> = VecDeque::with_capacity(IN_FLIGHT);
    let start = Instant::now();
    for _ in 0..CALLS_IN_FLIGHT {
        if futures.len() == IN_FLIGHT
            && let Some(first) = futures.pop_front()
        {
            first.wait()?;
        }
        futures.push_back(agent.call(peer, NOTHING, &()));
    }
    futures.into_iter().try_for_each(RpcFuture::wait)?;
    Ok(CALLS_IN_FLIGHT as f64 / start.elapsed().as_secs_f64())
}

/// Returns the bytes per second that the calls send.
fn bulk(call: impl Fn(&Tensor) -> Result<(), RpcError>) -> Result<f64, RpcError> {
    let values = Tensor::from_vec(vec![1.0_f32; BULK_ELEMENTS], [BULK_ELEMENTS])?;
    for _ in 0..WARM_BULK_CALLS {
        call(&values)?;
    }
    let start = Instant::now();
    for _ in 0..BULK_CALLS {
        call(&values)?;
    }
    let bytes = BULK_CALLS * values.meta().byte_len();
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// Returns the median time of a call with a tensor in an arena, in seconds.
fn registered(agent: &RpcAgent, bytes: usize) -> Result<f64, Box<dyn Error>> {
    let next = (agent.me().id.0 as usize + 1) % agent.workers().len();
    let peer = &agent.workers()[next];
    let arena = Arena::new(bytes)?;
    let mut block = arena.allocate(bytes).ok_or("the arena is too small")?;
    block.as_mut().fill(1);
    let values = Tensor::from_bytes(DataType::U8, [bytes], block)?;
    agent.call(peer, TAKE, &values).wait()?;
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        agent.call(peer, TAKE, &values).wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
