//! A dynamic group: one worker joins late and is killed during a call.
//!
//! ```text
//! cargo build --examples
//! rdzv run --standalone --nproc-per-node 2 --no-python target/debug/examples/dynamic_group
//! ```
//!
//! `rdzv run` starts rank 0 and rank 1. Rank 0 starts the third worker itself and later kills it.
//! Calls to the killed worker then fail with `PeerLost`; the other workers are not affected.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, ensure};
use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_rpc::{CallContext, Method, Methods, RpcAgent, RpcError, RpcErrorKind, RpcOptions};

/// Returns the square of a number.
const SQUARE: Method<u64, u64> = Method::new("worker.square");
/// Calls [`BEGUN`] on its caller and never returns.
const STALL: Method<(), ()> = Method::new("worker.stall");
/// Notifies the caller of [`STALL`] that the call has started.
const BEGUN: Method<(), ()> = Method::new("worker.begun");
/// Notifies a worker that it will receive no more calls.
const DONE: Method<(), ()> = Method::new("worker.done");

/// Longest silence of a worker before the group removes it.
const LEASE: Duration = Duration::from_secs(3);

/// Timeout for the waits in this program other than calls.
const TEST_LIMIT: Duration = Duration::from_secs(30);

fn main() -> anyhow::Result<()> {
    let met = rendezvous("env://", None, None, UrlOptions::default())?.join()?;
    // Rank 0 starts the late worker with an argument. The late worker inherits the environment of
    // rank 0.
    let (name, rank) = match std::env::args().nth(1) {
        Some(late) => (late, 2),
        None => (format!("worker-{}", met.rank), met.rank.0),
    };
    let (begun, has_begun) = channel();
    let (done, is_done) = channel();
    let agent = RpcAgent::builder(&name)
        .rank(rank)
        .store(Arc::from(met.store))
        .methods(methods(begun, done))
        .options(RpcOptions {
            lease: LEASE,
            ..RpcOptions::default()
        })
        .connect()?;
    match rank {
        0 => lead(&agent, &has_begun)?,
        _ => is_done.recv_timeout(TEST_LIMIT)?,
    }
    agent.shutdown(TEST_LIMIT)?;
    Ok(())
}

fn methods(begun: Sender<()>, done: Sender<()>) -> Methods {
    // Sending fails if this worker has dropped the receiver. That is not an error.
    let informed = |listener: Sender<()>| {
        move |()| {
            let _ = listener.send(());
            std::future::ready(Ok::<_, RpcError>(()))
        }
    };
    Methods::new()
        .with(SQUARE, async |number: u64| {
            number.checked_mul(number).ok_or("the square does not fit")
        })
        .with(STALL, async |context: CallContext, ()| {
            let caller = context.caller();
            context.agent().call(caller, BEGUN, &()).await?;
            std::future::pending::<Result<(), RpcError>>().await
        })
        .with(BEGUN, informed(begun))
        .with(DONE, informed(done))
}

/// Calls the other workers from rank 0, and starts and kills the late one.
fn lead(agent: &RpcAgent, begun: &Receiver<()>) -> anyhow::Result<()> {
    let wait_for =
        |number: usize| agent.wait_for_group(|workers| workers.len() == number, TEST_LIMIT);
    wait_for(2)?;
    let square = agent.call("worker-1", SQUARE, &6).wait()?;
    println!("worker-1 is there: 6 * 6 = {square}");

    let mut late = start("late")?;
    wait_for(3)?;
    let square = agent.call("late", SQUARE, &7).wait()?;
    println!("late has joined: 7 * 7 = {square}");

    let stalled = agent.call("late", STALL, &());
    begun
        .recv_timeout(TEST_LIMIT)
        .context("the call did not begin")?;
    late.0.kill()?;
    let error = stalled.wait().expect_err("no worker is left to answer it");
    ensure!(error.kind == RpcErrorKind::PeerLost, "{error}");
    let named = error.worker.context("the error names no worker")?;
    println!("late was killed: {:?} of {}", error.kind, named.name);

    // The group notices the loss of the worker only when its lease expires.
    wait_for(2)?;
    let square = agent.call("worker-1", SQUARE, &8).wait()?;
    println!("worker-1 is still there: 8 * 8 = {square}");
    agent.call("worker-1", DONE, &()).wait()?;
    Ok(())
}

/// Starts another worker of the group.
fn start(name: &str) -> anyhow::Result<Worker> {
    let program = std::env::current_exe()?;
    Ok(Worker(Command::new(program).arg(name).spawn()?))
}

/// A child process that is killed when this value is dropped.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // Both calls fail only if the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
