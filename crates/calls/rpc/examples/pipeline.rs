//! A two-stage pipeline: two workers each run one layer of a model.
//!
//! ```text
//! cargo build --examples
//! rdzv run --standalone --nproc-per-node 2 --no-python target/debug/examples/pipeline
//! ```
//!
//! Rank 0 runs the first layer, and rank 1 runs the second. While rank 1 processes one micro-batch,
//! rank 0 processes the next one. Rank 0 waits only after it has sent the last micro-batch.
//! Micro-batches are views of one tensor, so slicing copies nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rdzv_rendezvous::url::{UrlOptions, rendezvous};
use rdzv_rpc::{Method, Methods, RpcAgent, RpcError, RpcFuture, Tensor, blocking};

/// Applies the second layer to the activations of the first layer.
const FORWARD: Method<Tensor, Tensor> = Method::new("stage.forward");

const ROWS: usize = 64;
const MICRO_BATCH: usize = 8;
/// Numbers per row: in the input, between the stages and in the output.
const WIDTHS: [usize; 3] = [32, 64, 16];

fn main() -> anyhow::Result<()> {
    let met = rendezvous("env://", None, None, UrlOptions::default())?.join()?;
    let rank = met.rank.0;
    let methods = match rank {
        // This stage is CPU-bound, so each call runs on a separate thread.
        1 => Methods::new().with(FORWARD, blocking(|rows: Tensor| second(&rows))),
        _ => Methods::new(),
    };
    let agent = RpcAgent::builder(format!("stage-{rank}"))
        .rank(rank)
        .world_size(met.world_size)
        .store(Arc::from(met.store))
        .methods(methods)
        .connect()?;
    if rank == 0 {
        let batch = matrix(ROWS, WIDTHS[0], 1)?;
        let output = through_the_pipeline(&agent, &batch)?;
        let at_once = second(&first(&batch)?)?;
        ensure!(
            output == *at_once.as_slice::<f32>()?,
            "the pipeline computed something else than its stages"
        );
        let sum: f32 = output.iter().sum();
        println!(
            "{} micro-batches through 2 stages: {} numbers, their sum is {sum}",
            ROWS / MICRO_BATCH,
            output.len()
        );
    }
    agent.shutdown(Duration::from_secs(60))?;
    Ok(())
}

fn through_the_pipeline(agent: &RpcAgent, batch: &Tensor) -> anyhow::Result<Vec<f32>> {
    let mut calls = Vec::new();
    for start in (0..ROWS).step_by(MICRO_BATCH) {
        let micro_batch = batch.slice(0, start..start + MICRO_BATCH)?;
        calls.push(agent.call("stage-1", FORWARD, &first(&micro_batch)?));
    }
    let outputs = RpcFuture::collect(calls)
        .context("no micro-batches")?
        .wait()?;
    let mut whole = Vec::with_capacity(ROWS * WIDTHS[2]);
    for output in outputs {
        whole.extend_from_slice(&output?.as_slice::<f32>()?);
    }
    Ok(whole)
}

/// Applies the first layer and its activation function.
fn first(rows: &Tensor) -> Result<Tensor, RpcError> {
    layer(rows, &matrix(WIDTHS[0], WIDTHS[1], 2)?, |sum| sum.max(0.0))
}

/// Applies the second layer.
fn second(rows: &Tensor) -> Result<Tensor, RpcError> {
    layer(rows, &matrix(WIDTHS[1], WIDTHS[2], 3)?, |sum| sum)
}

fn layer(rows: &Tensor, weights: &Tensor, activation: fn(f32) -> f32) -> Result<Tensor, RpcError> {
    let width = weights.shape()[1];
    let (inputs, weights) = (rows.as_slice::<f32>()?, weights.as_slice::<f32>()?);
    let mut outputs = Vec::with_capacity(rows.shape()[0] * width);
    for row in inputs.chunks_exact(rows.shape()[1]) {
        for column in 0..width {
            let weights = weights[column..].iter().step_by(width);
            let products = row
                .iter()
                .zip(weights)
                .map(|(input, weight)| input * weight);
            outputs.push(activation(products.sum()));
        }
    }
    Tensor::from_vec(outputs, [rows.shape()[0], width])
}

/// Returns pseudorandom small multiples of 0.5, whose products sum exactly.
fn matrix(rows: usize, columns: usize, seed: u32) -> Result<Tensor, RpcError> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 29) as f32 - 3.5
    };
    Tensor::from_vec((0..rows * columns).map(next).collect(), [rows, columns])
}
