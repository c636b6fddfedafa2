//! A process that becomes a worker repeatedly.

use std::time::Instant;

use rdzv_rpc::{RpcError, current};
use serde_json::{Value, json};

use super::begin::Init;
use super::{LONG, Worker, process, references};

impl Worker {
    /// Starts, uses references of the other worker and ends, `lives` times.
    /// Returns the resources of the process after each life, and the duration of its shutdown.
    pub(crate) fn lives(&self, init: &Init, lives: usize) -> Result<Value, RpcError> {
        let threads = process::threads();
        let mut seen = Vec::new();
        for _ in 0..lives {
            self.init(init)?;
            let agent = current()?;
            let other = agent.workers()[1 - agent.me().id.0 as usize].clone();
            let other = other.name.as_str();
            let own = agent.me().name.to_string();
            let used = references::work(&agent, other, &[own, other.to_owned()])?;
            let ending = Instant::now();
            agent.shutdown(LONG)?;
            let ended = ending.elapsed().as_secs_f64();
            // The references are still held at the end, and dropping them later has no effect.
            drop(used);
            drop(agent);
            process::settle(threads, LONG);
            seen.push(json!({ "ended": ended, "process": process::measured() }));
        }
        Ok(json!({ "threads": threads, "lives": seen }))
    }
}
