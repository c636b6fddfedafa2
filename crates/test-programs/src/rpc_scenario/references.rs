//! Remote references between processes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdzv_rpc::{
    CallContext, Method, Methods, RRef, ReferenceCounters, RpcAgent, RpcError, Timeout, blocking,
};
use serde_json::{Value, json};

/// Makes a value.
const VALUE: Method<u64, u64> = Method::new("scenario.value");
/// Passes a reference on along the names; the value behind it, as the last one gets it.
const PASS: Method<(Vec<String>, RRef<u64>), u64> = Method::new("scenario.pass");
/// Keeps a reference.
const KEEP: Method<RRef<u64>, ()> = Method::new("scenario.keep");
/// The value behind the reference that is kept.
pub(crate) const KEPT: Method<(), u64> = Method::new("scenario.kept");
/// Answers when no reference is left at this worker, and with what is left after a second.
const LEFT: Method<(), Option<String>> = Method::new("scenario.left");

/// How soon after the last reference was dropped everybody must have let go.
const SOON: Duration = Duration::from_secs(15);

pub(crate) fn with_methods(methods: Methods) -> Methods {
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let lock = |kept: &Mutex<Option<RRef<u64>>>| {
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone()
    };
    methods
        .with(KEEP, move |value: RRef<u64>| {
            let mut kept = keeps.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(value);
            async { Ok::<_, RpcError>(()) }
        })
        .with(KEPT, move |()| {
            let kept = lock(&kept);
            async move {
                let kept = kept.ok_or("nothing is kept")?;
                let value = kept.fetch(Timeout::Default).await;
                value.map(|value| *value).map_err(|error| error.to_string())
            }
        })
        .with(VALUE, async |value: u64| Ok::<_, RpcError>(value))
        .with(
            PASS,
            async |context: CallContext, (mut names, value): (Vec<String>, RRef<u64>)| match names
                .pop()
            {
                Some(next) => context.agent().call(&next, PASS, &(names, value)).await,
                None => value.fetch(Timeout::Default).await.map(|value| *value),
            },
        )
        .with(
            LEFT,
            blocking(|context: CallContext, ()| Ok::<_, RpcError>(left(context.agent()))),
        )
}

/// References that are left after a while, if any are.
pub(crate) fn left(agent: &RpcAgent) -> Option<String> {
    let begun = Instant::now();
    // Nothing tells when the last word was acknowledged: only tests want to know.
    while agent.references() != ReferenceCounters::default() {
        if begun.elapsed() > SOON {
            return Some(format!("{}: {:?}", agent.me(), agent.references()));
        }
        std::thread::yield_now();
    }
    None
}

/// Has another worker keep a reference of a value of this one.
pub(crate) fn lend(agent: &RpcAgent, to: &str) -> Result<Value, RpcError> {
    let own = RRef::new(agent, 9_u64)?;
    agent.call(to, KEEP, &own).wait()?;
    Ok(Value::Null)
}

/// A value of this worker and one of another, and what was used of them along the names.
pub(crate) fn work(
    agent: &RpcAgent,
    to: &str,
    along: &[String],
) -> Result<([RRef<u64>; 2], Vec<u64>), RpcError> {
    let references = [agent.remote(to, VALUE, &8)?, RRef::new(agent, 9_u64)?];
    let mut values = Vec::new();
    for reference in &references {
        values.push(*reference.to_here(Timeout::Default)?);
        for end in 0..along.len() {
            let argument = (along[end..].to_vec(), reference.clone());
            values.push(agent.call(to, PASS, &argument).wait()?);
        }
    }
    Ok((references, values))
}

/// The same; then nothing may be left at anybody.
pub(crate) fn pass(agent: &RpcAgent, to: &str, along: &[String]) -> Result<Value, RpcError> {
    let (references, values) = work(agent, to, along)?;
    drop(references);
    let mut remains = vec![left(agent)];
    for worker in agent.workers() {
        remains.push(agent.call(&worker, LEFT, &()).wait()?);
    }
    let remains: Vec<String> = remains.into_iter().flatten().collect();
    Ok(json!({ "values": values, "remains": remains }))
}
