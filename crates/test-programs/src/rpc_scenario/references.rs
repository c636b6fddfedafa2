//! Remote references between processes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdzv_rpc::{
    CallContext, Method, Methods, RRef, ReferenceCounters, RpcAgent, RpcError, Timeout, blocking,
};
use serde_json::{Value, json};

/// Creates a value.
const VALUE: Method<u64, u64> = Method::new("scenario.value");
/// Passes a reference along the names; returns the value that the last gets.
const PASS: Method<(Vec<String>, RRef<u64>), u64> = Method::new("scenario.pass");
/// Keeps a reference.
const KEEP: Method<RRef<u64>, ()> = Method::new("scenario.keep");
/// Returns the value behind the kept reference.
pub(crate) const KEPT: Method<(), u64> = Method::new("scenario.kept");
/// Waits until no reference is left here; otherwise returns what is left.
const LEFT: Method<(), Option<String>> = Method::new("scenario.left");

/// Time after the last drop by which all workers must have released.
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

/// Returns the references that are left after a time limit, if any.
pub(crate) fn left(agent: &RpcAgent) -> Option<String> {
    let begun = Instant::now();
    // No event reports the last acknowledgement, because only tests need it.
    while agent.references() != ReferenceCounters::default() {
        if begun.elapsed() > SOON {
            return Some(format!("{}: {:?}", agent.me(), agent.references()));
        }
        std::thread::yield_now();
    }
    None
}

/// Makes another worker keep a reference to a value of this one.
pub(crate) fn lend(agent: &RpcAgent, to: &str) -> Result<Value, RpcError> {
    let own = RRef::new(agent, 9_u64)?;
    agent.call(to, KEEP, &own).wait()?;
    Ok(Value::Null)
}

/// Creates two values, here and elsewhere, and reads them along the names.
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

/// Does [`work`]; then no references may be left at any worker.
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
