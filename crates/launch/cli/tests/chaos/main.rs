//! Chaos: jobs of real processes in which everything is killed, stopped and cut, at times and places
//! that a seed decides; and what must hold all the same.
//!
//! | file | what it holds |
//! |---|---|
//! | `plan` | what a run will be: shape, what every worker does, which faults come when |
//! | `draw` | a plan out of a seed |
//! | `job` | carries a plan out: starts the nodes, brings about the faults, waits for the end |
//! | `observer` | who began and who ended, in the kernel's order; told by no code of ours |
//! | `proxy` | the link between an agent and the store, which can be cut and stalled |
//! | `record` | what was seen of a run |
//! | `checks` | what must hold: ends, exit statuses, restart budget (INV-G1), nothing left (INV-G2, INV-A9) |
//! | `cause` | the first failure is the one that is reported (INV-G3, INV-A10) |
//! | `flood` | logs do not hold up heartbeats (INV-A7) |
//!
//! `CHAOS_RUNS=500 cargo test -p rdzv --test chaos` runs so many seeds, `CHAOS_SEED=N` runs one
//! again and prints everything about it, `CHAOS_FIRST=N` begins with another seed,
//! `CHAOS_PARALLEL=N` says how many runs there are at a time. A plan is the same for the same seed;
//! what the kernel makes of its times is not, so a rare failure may need some tries.

// All of this crate is tests; the lint's exception knows only functions marked as such.
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

/// In the everyday test run. Together they take about half a minute on two cores.
const RUNS: u64 = 36;
/// Runs mostly wait, so there may be more of them than processors.
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

/// Carries out the run of this seed and says what did not hold, having printed what is needed to
/// understand it.
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
