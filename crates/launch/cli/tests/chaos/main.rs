//! Chaos tests: jobs of real processes under random faults.
//!
//! A seed decides which processes are killed or stopped, which connections are cut, and when. The
//! invariants must hold in every run.
//!
//! | file | contents |
//! |---|---|
//! | `plan` | the plan of a run: nodes, acts of all workers, faults with their times |
//! | `draw` | generation of a plan from a seed |
//! | `job` | execution of a plan: starts the nodes, causes the faults, waits for the end |
//! | `observer` | starts and exits of processes in the kernel's order, without code of rdzv |
//! | `proxy` | the link between an agent and the store, which can be cut and stalled |
//! | `record` | the observations of a run |
//! | `checks` | exit statuses, restart budget (INV-G1), no process left (INV-G2, INV-A9) |
//! | `cause` | the report names the first failure (INV-G3, INV-A10) |
//! | `flood` | logs do not delay heartbeats (INV-A7) |
//!
//! `CHAOS_RUNS=500 cargo test -p rdzv --test chaos` runs 500 seeds. `CHAOS_SEED=N` runs one seed
//! and prints everything about it. `CHAOS_FIRST=N` sets the first seed, and `CHAOS_PARALLEL=N` the
//! number of parallel runs. The same seed always yields the same plan, but the kernel's timing
//! differs, so a rare failure may need several tries.

// This crate contains only tests, but the lint's exception applies only to `#[test]` functions.
#![allow(clippy::unwrap_used)]

mod cause;
mod checks;
mod draw;
mod flood;
mod job;
mod observer;
mod plan;
mod proxy;
mod record;
#[path = "../store_process/mod.rs"]
mod store_process;

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Number of runs in the everyday test, about half a minute on two cores.
const RUNS: u64 = 36;
/// Number of parallel runs.
///
/// Runs mostly wait, so there may be more runs than processors.
const PARALLEL: u64 = 4;

#[test]
fn whatever_breaks_nothing_is_left_nothing_hangs_and_the_first_cause_is_reported() {
    if let Some(seed) = number("CHAOS_SEED") {
        let complaints = one(seed, true);
        assert!(complaints.is_empty(), "seed {seed}: {complaints:#?}");
        return;
    }
    let first = number("CHAOS_FIRST").unwrap_or(0);
    let runs = number("CHAOS_RUNS").unwrap_or(RUNS);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..number("CHAOS_PARALLEL").unwrap_or(PARALLEL) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + runs {
                        break;
                    }
                    if !one(seed, false).is_empty() {
                        failed.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!(
        "{} of {runs} runs held, in {:.0} s",
        runs - failed.len() as u64,
        began.elapsed().as_secs_f64()
    );
    assert!(
        failed.is_empty(),
        "seeds {failed:?} failed: replay with CHAOS_SEED"
    );
}

/// Runs a seed's plan, and returns the violations.
///
/// If there are violations, it prints the plan and the record.
fn one(seed: u64, always_print: bool) -> Vec<String> {
    let plan = draw::plan(seed);
    let record = job::run(&plan);
    let mut complaints = record.complaints.clone();
    complaints.extend(checks::all(&plan, &record));
    complaints.extend(cause::all(&plan, &record));
    if always_print || !complaints.is_empty() {
        println!("==== CHAOS_SEED={seed}\n{plan}\n{record}");
        for complaint in &complaints {
            println!("!!!! seed {seed}: {complaint}");
        }
    }
    complaints
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap())
}
