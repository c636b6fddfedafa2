//! Tests of remote references between processes that are killed at random.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod killed;

use std::process::Command;
use std::time::{Duration, Instant};

use rdzv_store::{ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::Process;

/// Number of workers that run at the same time.
const WORKERS: usize = 4;

/// Far more time than a join takes.
const LONG: Duration = Duration::from_secs(120);

/// Processes that end with the test.
struct Workers {
    running: Vec<Process>,
    started: u32,
    server: TcpStoreServer,
}

impl Workers {
    fn new() -> Self {
        let options = ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            ..ServerOptions::default()
        };
        Self {
            running: Vec::new(),
            started: 0,
            server: TcpStoreServer::start(options).unwrap(),
        }
    }

    fn store(&self) -> TcpStore {
        TcpStore::connect(TcpStoreOptions::new("127.0.0.1", self.server.port())).unwrap()
    }

    fn start(&mut self, seed: u64) {
        let seed = seed + u64::from(self.started);
        self.start_with(&seed.to_string());
    }

    fn start_with(&mut self, seed: &str) {
        let number = self.started;
        self.started += 1;
        let mut command = Command::new(rdzv_testing::program("reference_worker"));
        command
            .arg(format!("127.0.0.1:{}", self.server.port()))
            .args([format!("w{number}"), number.to_string()])
            .arg(seed);
        self.running.push(Process::start(&mut command));
    }
}

fn number(store: &TcpStore, key: &str) -> i64 {
    store.add(key, 0).unwrap()
}

/// Polls for a condition, because a store can wait only for keys, not values.
fn wait_for(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs operations on four workers, and repeatedly kills and replaces one.
fn chaos(operations: i64, kill_every: Duration, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut workers = Workers::new();
    let store = workers.store();
    for _ in 0..WORKERS {
        workers.start(seed);
    }
    let joined = |store: &TcpStore, count: u32| number(store, "joined") >= i64::from(count);
    wait_for("all join", LONG, || joined(&store, 4));
    let begun = Instant::now();
    let mut kills = 0;
    let mut kill_at = begun + kill_every;
    while number(&store, "operations") < operations {
        assert!(
            begun.elapsed() < Duration::from_secs(3600),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(20));
        if Instant::now() >= kill_at {
            let mut killed = workers.running.swap_remove(random.usize(0..WORKERS));
            killed.kill();
            kills += 1;
            workers.start(seed);
            let all = workers.started;
            wait_for("the next one joins", LONG, || {
                // A worker may die before it has recorded that it joined.
                joined(&store, all)
            });
            kill_at = Instant::now() + kill_every.mul_f64(0.5 + random.f64());
        }
    }
    let took = begun.elapsed();
    store.set("stop", b"").unwrap();
    let reports = || {
        let text = if store.check(&["reports"]).unwrap() {
            store.get("reports").unwrap().to_vec()
        } else {
            Vec::new()
        };
        String::from_utf8(text).unwrap()
    };
    wait_for("all report", LONG, || reports().lines().count() >= WORKERS);
    store.set("bye", b"").unwrap();
    let reports = reports();
    let done = number(&store, "operations");
    println!("seed {seed}: {done} operations in {took:.1?}, {kills} kills\n{reports}");
    if store.check(&["violations"]).unwrap() {
        let violations = store.get("violations").unwrap();
        panic!("seed {seed}: {}", String::from_utf8_lossy(&violations));
    }
    for report in reports.lines() {
        assert!(report.contains(": empty;"), "seed {seed}: {report}");
    }
    for worker in &mut workers.running {
        assert!(worker.wait().success(), "seed {seed}");
    }
    assert!(kills > 0, "no worker was killed");
}

/// Number of operations and seed: `REFERENCE_OPERATIONS` and `REFERENCE_SEED`.
#[test]
fn nothing_leaks_and_nothing_is_freed_early_whoever_is_killed() {
    let setting = |name: &str, usual: i64| {
        let text = std::env::var(name).ok();
        text.map_or(usual, |text| text.parse().unwrap())
    };
    let operations = setting("REFERENCE_OPERATIONS", 10_000);
    let seed = setting("REFERENCE_SEED", 1);
    let kill_every = match operations {
        ..100_000 => Duration::from_millis(300),
        _ => Duration::from_secs(2),
    };
    chaos(operations, kill_every, seed.unsigned_abs());
}
