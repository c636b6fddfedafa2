//! The worker that the hostile suite of `rdzv-rpc` attacks.
//!
//! ```text
//! rpc_victim <store host:port> <job token, or - for none>
//! ```
//!
//! It is the only member of a dynamic group at first, says `ready` when it is in it, and ends when its
//! input does.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc::transport::{Token, TransportOptions};
use rdzv_rpc::{CallContext, Method, Methods, RpcAgent, RpcOptions, Tensor, blocking};
use rdzv_store::{TcpStore, TcpStoreOptions};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Answers at once.
const NOTHING: Method<(), ()> = Method::new("victim.nothing");
/// Takes a text and answers at once.
const TAKE: Method<String, ()> = Method::new("victim.take");
/// Answers when nobody waits for it any more; takes no thread.
const STALL: Method<String, ()> = Method::new("victim.stall");
/// The same with tensors.
const STALL_TENSORS: Method<Vec<Tensor>, ()> = Method::new("victim.stall_tensors");
/// The same on a thread, of which there are two.
const BLOCK: Method<String, ()> = Method::new("victim.block");
/// The same with tensors.
const BLOCK_TENSORS: Method<Vec<Tensor>, ()> = Method::new("victim.block_tensors");
/// Answers with a tensor of so many bytes.
const GIVE: Method<usize, Tensor> = Method::new("victim.give");
/// The same on a thread.
const GIVE_BLOCKING: Method<usize, Tensor> = Method::new("victim.give_blocking");

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [store, token] = &words[..] else {
        return Err("usage: see the head of this program's source".into());
    };
    // What takes more than this has no bound, and the machine is to survive that.
    let limit = Rlimit {
        current: Some(2 << 30),
        maximum: Some(2 << 30),
    };
    setrlimit(Resource::Data, limit)?;
    let (host, port) = store.rsplit_once(':').ok_or("no port")?;
    let store = TcpStore::connect(TcpStoreOptions::new(host, port.parse()?))?;
    let token = match token.as_str() {
        "-" => None,
        token => Some(Token::new(token.as_bytes())?),
    };
    let options = RpcOptions {
        num_worker_threads: 2,
        lease: Duration::from_secs(60),
        token,
        // Nobody gets in because others run out of time.
        transport: TransportOptions {
            greeting: Duration::from_secs(60),
            ..TransportOptions::default()
        },
        ..RpcOptions::default()
    };
    let builder = RpcAgent::builder("victim").rank(0).store(Arc::new(store));
    let _agent = builder.methods(methods()).options(options).connect()?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn methods() -> Methods {
    Methods::new()
        .with(NOTHING, async |()| Ok::<_, String>(()))
        .with(TAKE, async |_: String| Ok::<_, String>(()))
        .with(STALL, async |context: CallContext, kept: String| {
            context.cancellation().cancelled().await;
            drop(kept);
            Ok::<_, String>(())
        })
        .with(
            STALL_TENSORS,
            async |context: CallContext, kept: Vec<Tensor>| {
                context.cancellation().cancelled().await;
                drop(kept);
                Ok::<_, String>(())
            },
        )
        .with(
            BLOCK,
            blocking(|context: CallContext, _: String| block(&context)),
        )
        .with(
            BLOCK_TENSORS,
            blocking(|context: CallContext, _: Vec<Tensor>| block(&context)),
        )
        .with(GIVE, async |length: usize| give(length))
        .with(GIVE_BLOCKING, blocking(|length: usize| give(length)))
}

fn block(context: &CallContext) -> Result<(), String> {
    tokio::runtime::Handle::current().block_on(context.cancellation().cancelled());
    Ok(())
}

fn give(length: usize) -> Result<Tensor, String> {
    Tensor::from_vec(vec![1_u8; length], [length]).map_err(|error| error.to_string())
}
