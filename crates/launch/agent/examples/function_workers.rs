//! Functions of this program as workers: each runs in a copy of the program.
//!
//! The agent collects the values that they return.
//!
//! ```text
//! function_workers [WORKERS]                each worker returns the square of its rank
//! function_workers [WORKERS] fail ⟨rank⟩    the worker with this rank fails, and is named
//! ```
//!
//! The program runs under a keeper, so no process stays behind even if the program is killed.

use std::process::Command;

use rdzv_agent::api::{LaunchConfig, LaunchError, WorkerEntrypoint, WorkerFunctions, launch};
use rdzv_agent::launcher::{end_like, is_kept, keep};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Input {
    exponent: u32,
    failing: Option<u64>,
}

/// Returns the power of the worker's rank, or fails on request.
fn power(input: Input) -> Result<u64, String> {
    let rank = std::env::var("RANK").map_err(|error| error.to_string())?;
    let rank: u64 = rank.parse().map_err(|_| format!("RANK is '{rank}'"))?;
    if input.failing == Some(rank) {
        return Err(format!("rank {rank} fails on request"));
    }
    Ok(rank.pow(input.exponent))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    WorkerFunctions::new()
        .register("power", power)
        .run_if_worker();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !is_kept() {
        let mut agent = Command::new(std::env::current_exe()?);
        agent.args(&words);
        end_like(keep(agent)?.status);
    }
    let workers = words.first().map_or(Ok(4), |text| text.parse())?;
    let input = Input {
        exponent: 2,
        failing: words.get(2).map(|text| text.parse()).transpose()?,
    };
    let config = LaunchConfig {
        max_restarts: 0,
        ..LaunchConfig::new(1, workers)
    };
    match launch(&config, WorkerEntrypoint::function("power", &input)?) {
        Ok(values) => {
            for (rank, value) in values {
                println!("rank {rank} returned {value}");
            }
            Ok(())
        }
        Err(LaunchError::WorkersFailed(failure)) => {
            println!("{failure}");
            for (rank, text) in failure.worker_exceptions() {
                println!("rank {rank} failed: {text}");
            }
            Err("workers failed".into())
        }
        Err(error) => Err(error.into()),
    }
}
