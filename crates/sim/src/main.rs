//! Runs seeds of a simulated world.
//!
//! ```text
//! cargo run -p rdzv-sim -- --seeds 10000                  the store server: many, from 0
//! cargo run -p rdzv-sim -- rendezvous --seeds 10000       agents that meet
//! cargo run -p rdzv-sim -- rendezvous --seed 42 --trace   one, with everything that happens
//! cargo run -p rdzv-sim -- rendezvous --agents 1000       so many agents, without faults
//! ```

use std::fmt::Debug;
use std::process::ExitCode;

use rdzv_sim::{Violation, rendezvous};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(place + 1)?.parse::<u64>().ok()
    };
    let trace = arguments.iter().any(|argument| argument == "--trace");
    let agents = value_of("--agents").and_then(|agents| usize::try_from(agents).ok());
    let world = match arguments.first().map(String::as_str) {
        Some("rendezvous") => "rendezvous",
        _ => "store",
    };
    let seeds = match (value_of("--seed"), value_of("--seeds")) {
        (Some(seed), None) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) if agents.is_some() => 0..1,
        _ => {
            eprintln!(
                "usage: rdzv-sim [rendezvous [--agents N]] --seed N [--trace] | --seeds COUNT"
            );
            return ExitCode::from(2);
        }
    };
    let replay = format!("cargo run -p rdzv-sim -- {world}");
    match (world, agents) {
        ("rendezvous", Some(agents)) => run(seeds, trace, &replay, |seed, trace| {
            rendezvous::run_many(agents, seed, trace)
        }),
        ("rendezvous", None) => run(seeds, trace, &replay, rendezvous::run),
        _ => run(seeds, trace, &replay, rdzv_sim::run),
    }
}

fn run<R: Debug>(
    seeds: std::ops::Range<u64>,
    trace: bool,
    replay: &str,
    world: impl Fn(u64, bool) -> Result<R, Violation>,
) -> ExitCode {
    let single = seeds.end - seeds.start == 1;
    for seed in seeds {
        match world(seed, trace) {
            Ok(report) if single => println!("seed {seed}: {report:?}"),
            Ok(_) => {}
            Err(violation) => {
                if !trace {
                    // Once more, to show how it came about.
                    let _ = world(seed, true);
                }
                eprintln!("seed {seed}: {}", violation.0);
                eprintln!("replay: {replay} --seed {seed} --trace");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
