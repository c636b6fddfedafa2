//! Agents that have nothing to do. Nothing else is in this process, so that its use of the processor
//! is theirs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::TransportOptions;
use rdzv_rpc::{Method, Methods, RpcAgent, RpcOptions};
use rdzv_store::{HashStore, Store};
use rustix::time::{ClockId, clock_gettime};

const NOTHING: Method<(), ()> = Method::new("nothing");

const WORLD_SIZE: u32 = 4;

/// How long it is measured.
const MEASURED: Duration = Duration::from_secs(5);

/// The most that an agent may use, of one core. One that looks all the time would use all of it.
const MOST: f64 = 0.05;

/// How long this process has been running on a processor, with threads that have ended.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Agents that are connected with one another in this way, and what each of them uses.
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
    // This is the measurement itself; nothing is waited for.
    std::thread::sleep(MEASURED);
    let cores = (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64();
    cores / f64::from(WORLD_SIZE)
}

#[test]
fn agents_with_nothing_to_do_use_no_processor() {
    let near = TransportOptions::default();
    // Where hosts are asked whether they are there.
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
