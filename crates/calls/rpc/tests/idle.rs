//! Measures agents that have nothing to do.
//!
//! No other test runs in this process, so that its processor time is that of the agents.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::TransportOptions;
use rdzv_rpc::{Method, Methods, RpcAgent, RpcOptions};
use rdzv_store::{HashStore, Store};
use rustix::time::{ClockId, clock_gettime};

const NOTHING: Method<(), ()> = Method::new("nothing");

const WORLD_SIZE: u32 = 4;

/// Duration of the measurement.
const MEASURED: Duration = Duration::from_secs(5);

/// Maximum use by an agent, in cores; an agent that always polls would use one.
const MOST: f64 = 0.05;

/// Returns the processor time of this process, including its ended threads.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Returns the processor use of each agent while connected agents are idle.
fn each_uses(transports: &TransportOptions) -> f64 {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let agents: Vec<RpcAgent> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..WORLD_SIZE)
            .map(|rank| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let methods = Methods::new().with(NOTHING, async |()| Ok::<_, String>(()));
                    let name = format!("w{rank}");
                    let options = RpcOptions {
                        transport: transports.clone(),
                        ..RpcOptions::default()
                    };
                    let builder = RpcAgent::builder(name).rank(rank).world_size(WORLD_SIZE);
                    let builder = builder.store(store).methods(methods).options(options);
                    builder.connect().unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for from in &agents {
        for to in 0..WORLD_SIZE {
            from.call(to, NOTHING, &()).wait().unwrap();
        }
    }
    let (begun, before) = (Instant::now(), used());
    // This sleep is the measurement itself, not a wait for an event.
    std::thread::sleep(MEASURED);
    let cores = (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    cores / f64::from(WORLD_SIZE)
}

#[test]
fn agents_with_nothing_to_do_use_no_processor() {
    let near = TransportOptions::default();
    // Over TCP, agents poll the other hosts.
    let far = TransportOptions {
        unix: false,
        ..TransportOptions::default()
    };
    for transports in [near, far] {
        let each = each_uses(&transports);
        assert!(
            each < MOST,
            "each agent used {each} of a core with {transports:?}"
        );
    }
}
