//! Faults: what can go wrong in a job, and that the verdict names who it was and why.
//!
//! `table.txt` has one row per fault, `scripts/` what breaks. Every row is a real launch with
//! `--report`; the report's first failure is compared with what a user would say. The score is
//! printed, with every row that was not named rightly; it may not fall below 39 of 40.
//!
//! | file | what it holds |
//! |---|---|
//! | `table` | the rows, and the words in them |
//! | `settings` | what surrounds a launch: other nodes, a small disk, a limit of memory, a taken port |
//! | `launch` | one node from its start to its report |
//! | `verdict` | what was reported, against what was expected |
//!
//! `FAULT=words cargo test -p rdzv --test faults` runs only rows whose name contains the words, and
//! prints everything about them.

// All of this crate is tests; the lint's exception knows only functions marked as such.
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

/// Launches mostly wait, so there may be more of them than processors.
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
