//! Functions that attackers call.

use rdzv_rpc::{CallContext, Method, Methods, Tensor, blocking};

/// Answers immediately.
const NOTHING: Method<(), ()> = Method::new("victim.nothing");
/// Takes a text and answers immediately.
const TAKE: Method<String, ()> = Method::new("victim.take");
/// Answers when it is cancelled; uses no thread.
const STALL: Method<String, ()> = Method::new("victim.stall");
/// Same as `STALL`, with tensors.
const STALL_TENSORS: Method<Vec<Tensor>, ()> = Method::new("victim.stall_tensors");
/// Same as `STALL`, on a thread.
const BLOCK: Method<String, ()> = Method::new("victim.block");
/// Same as `BLOCK`, with tensors.
const BLOCK_TENSORS: Method<Vec<Tensor>, ()> = Method::new("victim.block_tensors");
/// Answers with a tensor of this many bytes.
const GIVE: Method<usize, Tensor> = Method::new("victim.give");
/// Same as `GIVE`, on a thread.
const GIVE_BLOCKING: Method<usize, Tensor> = Method::new("victim.give_blocking");

pub(crate) fn with_methods(methods: Methods) -> Methods {
    methods
        .with(NOTHING, async |()| Ok::<_, String>(()))
        .with(TAKE, async |_: String| Ok::<_, String>(()))
        .with(STALL, stall)
        .with(STALL_TENSORS, stall)
        .with(BLOCK, blocking(block))
        .with(BLOCK_TENSORS, blocking(block))
        .with(GIVE, async |length: usize| give(length))
        .with(GIVE_BLOCKING, blocking(give))
}

async fn stall<Kept>(context: CallContext, kept: Kept) -> Result<(), String> {
    context.cancellation().cancelled().await;
    drop(kept);
    Ok(())
}

fn block<Kept>(context: CallContext, _kept: Kept) -> Result<(), String> {
    tokio::runtime::Handle::current().block_on(context.cancellation().cancelled());
    Ok(())
}

fn give(length: usize) -> Result<Tensor, String> {
    Tensor::from_vec(vec![1_u8; length], [length]).map_err(|error| error.to_string())
}
