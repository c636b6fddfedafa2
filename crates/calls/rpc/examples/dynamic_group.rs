//! A group that workers join and leave: one joins late, and is killed in the middle of a call.
//!
//! ```text
//! cargo build --examples
//! rdzv run --standalone --nproc-per-node 2 --no-python target/debug/examples/dynamic_group
//! ```
//!
//! Rank 0 and rank 1 are started by `rdzv run`. Rank 0 starts the third worker itself, and kills
//! it, which concerns nobody else: calls to it fail and say so, and the others go on.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, ensure};
use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_rpc::{CallContext, Method, Methods, RpcAgent, RpcError, RpcErrorKind, RpcOptions};

/// The square of a number.
const SQUARE: Method<u64, u64> = Method::new("worker.square");
/// Calls [`BEGUN`] on its caller, and never ends.
const STALL: Method<(), ()> = Method::new("worker.stall");
/// The other side of [`STALL`].
const BEGUN: Method<(), ()> = Method::new("worker.begun");
/// Nothing more will be asked of this worker.
const DONE: Method<(), ()> = Method::new("worker.done");

/// How long a worker may be silent before the others take it for dead.
const LEASE: Duration = Duration::from_secs(3);

/// How long this program waits for anything.
const TEST_LIMIT: Duration = Duration::from_secs(30);

fn main() -> anyhow::Result<()> {
    let met = rendezvous("env://", None, None, UrlOptions::default())?.join()?;
    // The worker that is started later has an argument, and the environment of the one that starts
    // it.
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
    // Nobody listens if this is not the worker that waits for it: that is its business.
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

/// What rank 0 does with the others.
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
    let error = stalled.wait().expect_err("nobody is left to answer it");
    ensure!(error.kind == RpcErrorKind::PeerLost, "{error}");
    let named = error.worker.context("the error names no worker")?;
    println!("late was killed: {:?} of {}", error.kind, named.name);

    // Nobody but its lease says that it is gone.
    wait_for(2)?;
    let square = agent.call("worker-1", SQUARE, &8).wait()?;
    println!("worker-1 is still there: 8 * 8 = {square}");
    agent.call("worker-1", DONE, &()).wait()?;
    Ok(())
}

/// Another worker of the group.
fn start(name: &str) -> anyhow::Result<Worker> {
    let program = std::env::current_exe()?;
    Ok(Worker(Command::new(program).arg(name).spawn()?))
}

/// Ends with this, if it has not been killed before.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
