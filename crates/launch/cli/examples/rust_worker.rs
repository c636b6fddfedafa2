//! A Rust worker that finds its peers and averages gradients with them.
//!
//! ```text
//! cargo build --examples
//! rdzv run --standalone --nproc-per-node 4 --no-python target/debug/examples/rust_worker
//! ```

use std::env;
use std::time::Duration;

use anyhow::Context;
use rdzv_collective::{GroupOptions, ProcessGroup, ReduceOp, address_towards};
use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_worker_server::WorkerServer;

fn main() -> anyhow::Result<()> {
    // With `rdzv run --worker-server`, clients can query the state of this worker.
    let _control = WorkerServer::new().start_from_environment()?;

    // Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as `init_process_group()` does.
    let met = rendezvous("env://", None, None, UrlOptions::default())?.join()?;
    let host = env::var("MASTER_ADDR").context("MASTER_ADDR")?;
    let options = GroupOptions {
        timeout: Duration::from_secs(60),
        address: Some(address_towards(&host)?),
        ..GroupOptions::default()
    };
    let mut group = ProcessGroup::with_options(&*met.store, met.rank.0, met.world_size, &options)?;

    // Rank 0 chooses the initial weights and broadcasts them to the other ranks.
    let mut weights = vec![0.0_f32; 1000];
    if group.rank() == 0 {
        weights.fill(1.0);
    }
    group.broadcast(&mut weights, 0)?;

    // Each rank has a different gradient, and all ranks receive the mean.
    let mut gradient = vec![group.rank() as f32; weights.len()];
    group.all_reduce(&mut gradient, ReduceOp::Average)?;
    for (weight, gradient) in weights.iter_mut().zip(&gradient) {
        *weight -= 0.1 * gradient;
    }

    group.barrier()?;
    println!(
        "rank {} of {}: weight {}",
        group.rank(),
        group.world_size(),
        weights[0]
    );
    Ok(())
}
