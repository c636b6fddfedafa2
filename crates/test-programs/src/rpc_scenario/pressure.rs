//! More data than a worker accepts.

use std::sync::Arc;
use std::thread::JoinHandle;

use rdzv_rpc::{Method, Methods, RpcAgent, RpcError, RpcFuture, Tensor, blocking};
use serde_json::Value;

use super::LONG;
use super::counts::EventCounts;

/// Blocks a thread with a tensor until `OPEN`, like `HOLD`: `swallowed`.
pub(crate) const SWALLOW: Method<Tensor, ()> = Method::new("scenario.swallow");

pub(crate) fn with_methods(methods: Methods, counts: &Arc<EventCounts>) -> Methods {
    let counts = Arc::clone(counts);
    methods.with(
        SWALLOW,
        blocking(move |_: Tensor| {
            counts.wait_blocking("open", 1, LONG);
            counts.add("swallowed");
            Ok::<_, RpcError>(())
        }),
    )
}

/// Calls that wait for credit, on a thread.
pub(crate) struct Offering(JoinHandle<Result<(), RpcError>>);

/// Creates a tensor of this many bytes, in separate memory.
pub(crate) fn piece(bytes: usize) -> Tensor {
    Tensor::from_vec(vec![1_u8; bytes], [bytes]).expect("the shape is that of the numbers")
}

impl Offering {
    /// Offers pieces to a worker; counts `offered` when there was credit for one.
    pub(crate) fn begin(
        agent: RpcAgent,
        counts: Arc<EventCounts>,
        to: String,
        pieces: usize,
        bytes: usize,
    ) -> Self {
        Self(std::thread::spawn(move || {
            let mut calls = Vec::new();
            for _ in 0..pieces {
                calls.push(agent.call(&to, SWALLOW, &piece(bytes)));
                counts.add("offered");
            }
            calls.into_iter().try_for_each(RpcFuture::wait)
        }))
    }

    /// Waits until all calls were answered, which depends on the callee.
    pub(crate) fn taken(self) -> Result<Value, RpcError> {
        self.0.join().expect("nothing panics there")?;
        Ok(Value::Null)
    }
}
