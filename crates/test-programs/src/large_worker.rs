//! A worker that takes and makes tensors of more than 4 GiB: the other process of `tests/large/`.
//!
//! ```text
//! large_worker <store host:port> <path>
//! ```
//!
//! The paths are those of [`Path`]. It says `ready` when it is in its group, and ends when its input does.

#[path = "../../calls/rpc/tests/large/shared.rs"]
mod shared;

use std::error::Error;
use std::io::Read as _;
use std::sync::Arc;

use rdzv_rpc::{Methods, RpcAgent, RpcError, Tensor, blocking};
use rdzv_store::{TcpStore, TcpStoreOptions};

use shared::{EXAMINE, MAKE, Marks, Path, WORLD_SIZE, examined, options, tensor};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [store, path] = &words[..] else {
        return Err("usage: see the head of this program's source".into());
    };
    let path: Path = serde_json::from_str(path)?;
    let (host, port) = store.rsplit_once(':').ok_or("no port")?;
    let store = TcpStore::connect(TcpStoreOptions::new(host, port.parse()?))?;
    let methods = Methods::new()
        .with(EXAMINE, blocking(|tensor: Tensor| examined(&tensor)))
        .with(
            MAKE,
            blocking(move |(length, marks): (u64, Marks)| {
                Ok::<_, RpcError>(tensor(path, length, &marks))
            }),
        );
    let builder = RpcAgent::builder("other").rank(1).world_size(WORLD_SIZE);
    let builder = builder.store(Arc::new(store)).methods(methods);
    let _agent = builder.options(options(path)).connect()?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
