//! Custom agent whose workers are threads.
//!
//! Everything else (rendezvous, ranks, restarts, the exit barrier) comes from the library.
//!
//! ```text
//! own_agent [WORKERS]        the default is 4
//! ```
//!
//! The workers connect to the store that the agent hosts and add up their ranks. In the first
//! attempt the last worker fails, to show a restart.

mod threads;

use std::error::Error;

use rdzv_agent::api::{
    ElasticAgent, RunError, RunResult, SimpleElasticAgent, StartRequest, WorkerEntrypoint,
    WorkerSpec,
};
use rdzv_store::{Store, StoreConnection, TcpStore, TcpStoreOptions};
use serde_json::{Value, json};
use threads::{Stop, ThreadWorkers};

fn main() -> Result<(), Box<dyn Error>> {
    let workers = std::env::args().nth(1);
    let workers = workers.map_or(Ok(4), |text| text.parse())?;
    // Each supervisor interprets the entry point in its own way; this one ignores it.
    let spec = WorkerSpec::builder(WorkerEntrypoint::command("add up the ranks"))
        .role("adder")
        .local_world_size(workers)
        .max_restarts(1)
        .event_handler(|event: &rdzv_agent::AgentEvent| {
            if let rdzv_agent::AgentEvent::Restarting { remaining, .. } = event {
                println!("restarting, {remaining} restarts left");
            }
        })
        .build()?;
    let mut agent = SimpleElasticAgent::new(spec, ThreadWorkers::new(add_up));
    let result = agent.run("adder")?;
    say(&agent, &result)
}

fn say(agent: &impl ElasticAgent, result: &RunResult) -> Result<(), Box<dyn Error>> {
    let group = agent.worker_group("adder").ok_or("no such role")?;
    for worker in &group.workers {
        let id = worker.id.as_ref().ok_or("it was started")?;
        println!("worker {} was {id}", worker.global_rank_or_unset());
    }
    println!(
        "{} after {} restarts",
        result.state.name(),
        group.restart_count
    );
    for (rank, value) in &result.return_values {
        println!("rank {rank} returned {value}");
    }
    match result.first_failure() {
        Some(failure) => Err(RunError::from(rdzv_agent::AgentError::Plan(
            failure.to_string(),
        )))?,
        None => Ok(()),
    }
}

/// Adds up the ranks of all workers, as one of them.
fn add_up(request: &StartRequest, stop: &Stop) -> Result<Value, String> {
    let (rank, world_size) = (request.ranks.rank.0, request.ranks.world_size);
    if request.restart_count == 0 && rank + 1 == world_size {
        return Err("the first attempt always fails".to_owned());
    }
    let variable = |name: &str| {
        let found = request.environment.iter().find(|(known, _)| *known == name);
        found.map_or_else(String::new, |(_, value)| value.clone())
    };
    let port = variable("MASTER_PORT").parse().map_err(|_| "no port")?;
    let sum = || {
        let store = TcpStore::connect(TcpStoreOptions::new(variable("MASTER_ADDR"), port))?;
        if let Some(end_waits) = store.breaker() {
            stop.on_stop(move || end_waits());
        }
        store.add("sum", rank.into())?;
        store.barrier("added", world_size, None)?;
        store.add("sum", 0)
    };
    sum()
        .map(|sum| json!(sum))
        .map_err(|error| error.to_string())
}
