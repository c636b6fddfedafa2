//! Tests of references between agents of one process.

mod failures;
mod flows;
mod lives;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::agent::tests::{LONGEST, Made, group, made, wait_for, within};
use crate::runtime::call::{CallOptions, Timeout};
use crate::runtime::core::RpcAgent;
use crate::{CallContext, Method, Methods, RpcError, RpcErrorKind, blocking, kept};

/// Returns its number after some time.
const SLOW: Method<u64, u64> = Method::new("slow");
const NUMBER: Method<u64, u64> = Method::new("number");
const FAIL: Method<String, u64> = Method::new("fail");
/// Returns the value of a reference.
const VALUE: Method<RRef<u64>, u64> = Method::new("value");
/// Returns `true` if a received reference is confirmed, and its owner's name.
const LOOK: Method<RRef<u64>, (bool, String)> = Method::new("look");
/// Returns the reference that it receives.
const ECHO: Method<RRef<u64>, RRef<u64>> = Method::new("echo");
/// Passes a reference along a number of workers, and returns its value.
const PASS: Method<(u32, RRef<u64>), u64> = Method::new("pass");
const COUNTER: Method<u64, AtomicU64> = Method::new("counter");
const ADD: ValueMethod<AtomicU64, u64, u64> = ValueMethod::new("counter.add");
const ADD_BLOCKING: ValueMethod<AtomicU64, u64, u64> = ValueMethod::new("counter.add_blocking");

const NOW: Timeout = Timeout::Default;

async fn pass(context: CallContext, (steps, reference): (u32, RRef<u64>)) -> Result<u64, RpcError> {
    if steps == 0 {
        return reference.fetch(NOW).await.map(|value| *value);
    }
    let agent = context.agent();
    let next = (agent.me().id.0 + 1) % u32::try_from(agent.workers().len()).unwrap();
    agent.call(next, PASS, &(steps - 1, reference)).await
}

fn methods() -> Methods {
    Methods::new()
        .with(NUMBER, async |number: u64| Ok::<_, RpcError>(number))
        .with(
            SLOW,
            blocking(|number: u64| {
                // The sleep stands for work.
                std::thread::sleep(Duration::from_secs(2));
                Ok::<_, RpcError>(number)
            }),
        )
        .with(FAIL, async |why: String| Err::<u64, _>(why))
        .with(VALUE, async |reference: RRef<u64>| {
            reference.fetch(NOW).await.map(|value| *value)
        })
        .with(LOOK, async |reference: RRef<u64>| {
            let owner = reference.owner_name().to_owned();
            Ok::<_, RpcError>((reference.confirmed_by_owner(), owner))
        })
        .with(ECHO, async |reference: RRef<u64>| {
            Ok::<_, RpcError>(reference)
        })
        .with(PASS, pass)
        .with(
            COUNTER,
            kept(async |start: u64| Ok::<_, RpcError>(AtomicU64::new(start))),
        )
        .with(ADD, async |counter: Arc<AtomicU64>, more: u64| {
            Ok::<_, RpcError>(counter.fetch_add(more, Ordering::SeqCst) + more)
        })
        .with(
            ADD_BLOCKING,
            blocking(|counter: Arc<AtomicU64>, more: u64| {
                Ok::<_, RpcError>(counter.fetch_add(more, Ordering::SeqCst) + more)
            }),
        )
}

fn agents(size: u32) -> Vec<RpcAgent> {
    group(size, methods)
}

/// Checks that nothing is left soon after the last reference was dropped.
fn nothing_is_left(agents: &[RpcAgent]) {
    for agent in agents {
        wait_for("no reference and no value is left", || {
            agent.references() == ReferenceCounters::default()
                && Register::of(agent.core()).values() == 0
        });
    }
}
