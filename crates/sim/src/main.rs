//! Runs seeds of the simulated world.
//!
//! ```text
//! cargo run -p rdzv-sim -- --seeds 10000        many, from 0
//! cargo run -p rdzv-sim -- --seed 42 --trace    one, with everything that happens
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |flag: &str| {
        let place = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(place + 1)?.parse::<u64>().ok()
    };
    let trace = arguments.iter().any(|argument| argument == "--trace");
    let seeds = match (value_of("--seed"), value_of("--seeds")) {
        (Some(seed), None) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        _ => {
            eprintln!("usage: rdzv-sim --seed N [--trace] | --seeds COUNT");
            return ExitCode::from(2);
        }
    };
    let single = seeds.end - seeds.start == 1;
    for seed in seeds {
        match rdzv_sim::run(seed, trace) {
            Ok(report) if single => println!("seed {seed}: {report:?}"),
            Ok(_) => {}
            Err(violation) => {
                if !trace {
                    // Once more, to show how it came about.
                    let _ = rdzv_sim::run(seed, true);
                }
                eprintln!("seed {seed}: {}", violation.0);
                eprintln!("replay: cargo run -p rdzv-sim -- --seed {seed} --trace");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
