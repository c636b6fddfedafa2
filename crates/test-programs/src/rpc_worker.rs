//! A worker that does what tests ask of it: the other processes of `tests/processes`.
//!
//! ```text
//! rpc_worker <store host:port> <name> <rank> <world size; 0: a dynamic group>
//! ```
//!
//! It says `ready` when it is in its group, and ends when its input does.

use std::error::Error;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdzv_rpc::{
    CallContext, Method, Methods, RpcAgent, RpcError, RpcErrorKind, RpcOptions, Tensor, blocking,
};
use rdzv_store::{TcpStore, TcpStoreOptions};
use tokio::sync::watch;

/// Goes on along the names; answers how many workers it has passed.
const CHAIN: Method<Vec<String>, u32> = Method::new("test.chain");
/// The same on a thread. Each worker has one.
const BLOCKING_CHAIN: Method<Vec<String>, u32> = Method::new("test.blocking_chain");
/// Never answers.
const STALL: Method<(), ()> = Method::new("test.stall");
/// Answers when so many calls stall at this worker.
const STALLED: Method<usize, ()> = Method::new("test.stalled");
/// Has so many calls stall at another worker. Answers, when all have ended, with what they ended, and
/// how long it took from the first to the last.
const FLOOD: Method<(String, usize), (Vec<Ending>, Duration)> = Method::new("test.flood");

/// Keeps a tensor for good; answers the sum of its bytes.
const KEEP: Method<Tensor, u64> = Method::new("test.keep");

/// What a call ended with: the kind of its error, and the worker that it names.
type Ending = (RpcErrorKind, Option<String>);

/// How long a worker may be silent before the others take it for dead.
const LEASE: Duration = Duration::from_secs(1);

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [store, name, rank, world_size] = &words[..] else {
        return Err("usage: see the head of this program's source".into());
    };
    let (host, port) = store.rsplit_once(':').ok_or("no port")?;
    let store = TcpStore::connect(TcpStoreOptions::new(host, port.parse()?))?;
    let world_size = Some(world_size.parse()?).filter(|size| *size > 0);
    let options = RpcOptions {
        init_deadline: Duration::from_secs(20),
        lease: LEASE,
        num_worker_threads: 1,
        ..RpcOptions::default()
    };
    let builder = RpcAgent::builder(name)
        .rank(rank.parse()?)
        .world_size(world_size);
    let builder = builder.store(Arc::new(store)).methods(methods());
    let _agent = builder.options(options).connect()?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn methods() -> Methods {
    let stalling = watch::Sender::new(0);
    let watched = stalling.subscribe();
    let kept = Arc::new(Mutex::new(Vec::new()));
    Methods::new()
        .with(KEEP, move |tensor: Tensor| {
            let sum = tensor
                .as_slice::<u8>()
                .map(|bytes| bytes.iter().map(|byte| u64::from(*byte)).sum());
            kept.lock().expect("nothing panics here").push(tensor);
            async move { sum }
        })
        .with(
            CHAIN,
            async |context: CallContext, mut names: Vec<String>| {
                let Some(next) = names.pop() else {
                    return Ok::<_, RpcError>(0);
                };
                Ok(context.agent().call(&next, CHAIN, &names).await? + 1)
            },
        )
        .with(
            BLOCKING_CHAIN,
            blocking(|context: CallContext, mut names: Vec<String>| {
                let Some(next) = names.pop() else {
                    return Ok::<_, RpcError>(0);
                };
                Ok(context.agent().call(&next, BLOCKING_CHAIN, &names).wait()? + 1)
            }),
        )
        .with(STALL, move |()| {
            stalling.send_modify(|stalling| *stalling += 1);
            std::future::pending::<Result<(), RpcError>>()
        })
        .with(STALLED, move |calls: usize| {
            let mut watched = watched.clone();
            async move {
                let there = watched.wait_for(|stalling| *stalling >= calls).await;
                there.map(drop)
            }
        })
        .with(
            FLOOD,
            async |context: CallContext, (to, calls): (String, usize)| {
                let agent = context.agent();
                let calls: Vec<_> = (0..calls).map(|_| agent.call(&to, STALL, &())).collect();
                let mut endings = Vec::new();
                let mut first = None;
                for call in calls {
                    let ended = call.await;
                    first.get_or_insert_with(Instant::now);
                    let error = ended.expect_err("nothing that stalls is answered");
                    let worker = error.worker.map(|worker| worker.name.to_string());
                    endings.push((error.kind, worker));
                }
                let took = first.map_or(Duration::ZERO, |first| first.elapsed());
                Ok::<_, RpcError>((endings, took))
            },
        )
}
