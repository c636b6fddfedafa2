//! References between agents of one process.

mod failures;
mod flows;
mod lives;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::agent::tests::{LONGEST, Made, group, made, within};
use crate::agent::{CallOptions, RpcAgent, Timeout};
use crate::{CallContext, Method, Methods, RpcError, RpcErrorKind};

/// A number that is not there at once.
const SLOW: Method<u64, u64> = Method::new("slow");
const NUMBER: Method<u64, u64> = Method::new("number");
const FAIL: Method<String, u64> = Method::new("fail");
/// The value of a reference.
const VALUE: Method<RRef<u64>, u64> = Method::new("value");
/// Whether a reference that came is confirmed, and who owns it.
const LOOK: Method<RRef<u64>, (bool, String)> = Method::new("look");
/// A reference comes back as it went.
const ECHO: Method<RRef<u64>, RRef<u64>> = Method::new("echo");
/// A reference is passed on to the next worker, so many times, and its value comes back.
const PASS: Method<(u32, RRef<u64>), u64> = Method::new("pass");
const COUNTER: Method<u64, AtomicU64> = Method::new("counter");
const ADD: ValueMethod<AtomicU64, u64, u64> = ValueMethod::new("counter.add");
const ADD_BLOCKING: ValueMethod<AtomicU64, u64, u64> = ValueMethod::new("counter.add_blocking");

const NOW: Timeout = Timeout::OfAgent;

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
        .with(NUMBER, async |_: CallContext, number| {
            Ok::<_, RpcError>(number)
        })
        .with_blocking(SLOW, |_, number| {
            // Stands for work.
            std::thread::sleep(Duration::from_millis(200));
            Ok::<_, RpcError>(number)
        })
        .with(FAIL, async |_: CallContext, why: String| Err::<u64, _>(why))
        .with(VALUE, async |_: CallContext, reference: RRef<u64>| {
            reference.fetch(NOW).await.map(|value| *value)
        })
        .with(LOOK, async |_: CallContext, reference: RRef<u64>| {
            let owner = reference.owner_name().to_owned();
            Ok::<_, RpcError>((reference.confirmed_by_owner(), owner))
        })
        .with(ECHO, async |_: CallContext, reference| {
            Ok::<_, RpcError>(reference)
        })
        .with(PASS, pass)
        .with_kept(COUNTER, async |_: CallContext, start| {
            Ok::<_, RpcError>(AtomicU64::new(start))
        })
        .with_value(
            ADD,
            async |_: CallContext, counter: Arc<AtomicU64>, more| {
                Ok::<_, RpcError>(counter.fetch_add(more, Ordering::SeqCst) + more)
            },
        )
        .with_blocking_value(ADD_BLOCKING, |_, counter, more| {
            Ok::<_, RpcError>(counter.fetch_add(more, Ordering::SeqCst) + more)
        })
}

fn agents(size: u32) -> Vec<RpcAgent> {
    group(size, methods)
}

/// Within a second after the last reference was dropped nothing is left.
fn nothing_is_left(agents: &[RpcAgent]) {
    let until = Instant::now() + Duration::from_secs(1);
    for agent in agents {
        let is_clean = || {
            agent.references() == ReferenceCounters::default()
                && agent.core().references.values() == 0
        };
        while !is_clean() {
            assert!(
                Instant::now() < until,
                "{agent:?}: {:?}",
                agent.references()
            );
            std::thread::yield_now();
        }
    }
}
