//! Tests that the verdict on a faulty job names the right rank and cause.
//!
//! `table.txt` has one row per fault, and `scripts/` contains the faulty workers. Every row is a
//! real launch with `--report`. The test compares the first failure of the report with the row. It
//! prints the score and every wrong verdict. The score may not fall below 39 of 40.
//!
//! | file | contents |
//! |---|---|
//! | `table` | the rows and their words |
//! | `settings` | the environment of a launch: other nodes, small disk, memory limit, used port |
//! | `launch` | one node from its start to its report |
//! | `verdict` | the comparison of the report with the row |
//!
//! `FAULT=words cargo test -p rdzv --test faults` runs only rows whose name contains the words, and
//! prints everything about these rows.

// This crate contains only tests, but the lint's exception applies only to `#[test]` functions.
#![allow(clippy::unwrap_used)]

mod launch;
mod settings;
#[path = "../store_process/mod.rs"]
mod store_process;
mod table;
mod verdict;

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::table::Row;
use crate::verdict::Named;

/// Number of parallel launches.
///
/// They mostly wait, so there may be more launches than processors.
const PARALLEL: usize = 6;

#[test]
fn the_verdict_names_the_rank_and_the_cause_of_what_goes_wrong() {
    let only = env::var("FAULT").ok();
    let rows: Vec<Row> = table::rows()
        .into_iter()
        .filter(|row| only.as_ref().is_none_or(|words| row.name.contains(words)))
        .collect();
    assert!(!rows.is_empty(), "no fault has {only:?} in its name");
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let untested = AtomicUsize::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match named(row, only.is_some()) {
                        Named::Rightly => {}
                        Named::Wrongly(how) => wrong.lock().unwrap().push((row.line, how)),
                        Named::NotTested(why) => {
                            println!("NOT TESTED: {}: {why}", row.name);
                            untested.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    wrong.sort();
    for (_, how) in &wrong {
        println!("{how}");
    }
    let tested = rows.len() - untested.into_inner();
    let right = tested - wrong.len();
    println!(
        "{right} of {tested} faults named rightly, in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    assert!(
        right * 40 >= tested * 39,
        "only {right} of {tested} faults were named rightly"
    );
}

fn named(row: &Row, print: bool) -> Named {
    let nodes = match settings::run_row(row) {
        Ok(nodes) => nodes,
        Err(why) => return Named::NotTested(why),
    };
    if print {
        for node in &nodes {
            println!("==== {}\n{node}", row.name);
        }
    }
    verdict::compare(row, &nodes)
}
