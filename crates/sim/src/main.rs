//! Runs seeds of a simulated world.
//!
//! ```text
//! cargo run -p rdzv-sim -- --seeds 10000                  the store server: many seeds, from 0
//! cargo run -p rdzv-sim -- rendezvous --seeds 10000       agents that meet over a store
//! cargo run -p rdzv-sim -- rendezvous --seed 42 --trace   one seed, with all events
//! cargo run -p rdzv-sim -- rendezvous --agents 1000       this number of agents, without faults
//! cargo run -p rdzv-sim -- rendezvous --agents 1000 --seed 7    the same with the faults of a seed
//! cargo run -p rdzv-sim -- native --seeds 10000           agents that meet at a coordinator
//! cargo run -p rdzv-sim -- restarts --seeds 10000         the same, and the coordinator is killed
//! cargo run -p rdzv-sim -- references --seeds 10000       workers that refer to remote values
//! cargo run -p rdzv-sim -- consensus --seeds 10000        a group of voters, and counting clients
//! cargo run -p rdzv-sim -- consensus --seed 5 --break LeadersHandOver    with a broken rule
//! cargo run -p rdzv-sim -- fence --seeds 10000            voters and agents that are cut off
//! cargo run -p rdzv-sim -- recovery --seeds 10000         workers that recover in their processes
//! cargo run -p rdzv-sim -- consensus --from 500 --seeds 100    100 seeds, from 500
//! cargo run -p rdzv-sim -- history FILE                   check a recorded history of real clients
//! ```

use std::process::ExitCode;

use rdzv_core::rules::Rules;
use rdzv_sim::agents::plan::{Medium, Plan};
use rdzv_sim::history::lines;
use rdzv_sim::rules::CONSENSUS;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents, consensus, fence, recovery, references};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word_after = |flag: &str| {
        let medium = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(medium + 1)
    };
    let value_of = |flag: &str| word_after(flag)?.parse::<u64>().ok();
    if let [word, file] = &arguments[..]
        && word == "history"
    {
        return history(file);
    }
    let agents = value_of("--agents").and_then(|agents| usize::try_from(agents).ok());
    let seeds = match (value_of("--seed"), value_of("--seeds")) {
        (Some(seed), None) => seed..seed + 1,
        (None, Some(count)) => {
            let from = value_of("--from").unwrap_or(0);
            from..from + count
        }
        (None, None) if agents.is_some() => 0..1,
        _ => {
            eprintln!(
                "usage: rdzv-sim [consensus [--break RULE] | fence | recovery | references | rendezvous | native | restarts [--agents N]] (--seed N [--trace] | [--from N] --seeds COUNT), or history FILE"
            );
            return ExitCode::from(2);
        }
    };
    let is_calm = value_of("--seed").is_none() && value_of("--seeds").is_none();
    let everything = arguments.iter().any(|argument| argument == "--trace");
    let world = arguments.first().filter(|word| !word.starts_with("--"));
    let broken = word_after("--break").map(|name| {
        let mut all = CONSENSUS.into_iter();
        all.find(|rule| format!("{rule:?}") == *name).ok_or(name)
    });
    let broken = match broken.transpose() {
        Ok(broken) => broken,
        Err(name) => {
            eprintln!("--break: {name} is none of the rules {CONSENSUS:?}");
            return ExitCode::from(2);
        }
    };
    // Returns the report of a seed, and the number of operations that were checked for their order.
    let run = |seed: u64, trace: Trace| -> Result<(String, u64), Violation> {
        let medium = match world.map(String::as_str) {
            Some("rendezvous") => Medium::Store,
            Some("native") => Medium::Coordinator,
            Some("restarts") => Medium::Restartable,
            Some("consensus") => {
                let mut plan = consensus::plan::Plan::of_seed(seed);
                plan.rules = broken.map_or_else(Rules::default, Rules::without);
                let report = consensus::run(plan, seed, trace)?;
                return Ok((format!("{report:?}"), report.operations));
            }
            Some("fence") => {
                let world = fence::world::World::new(fence::Plan::of_seed(seed), seed, trace);
                return Ok((format!("{:?}", world.run()?), 0));
            }
            Some("recovery") => {
                let world = recovery::world::World::new(recovery::Plan::of_seed(seed), seed, trace);
                return Ok((format!("{:?}", world.run()?), 0));
            }
            Some("references") => return Ok((format!("{:?}", references::run(seed, trace)?), 0)),
            _ => {
                let report = rdzv_sim::run(seed, trace)?;
                return Ok((format!("{report:?}"), report.operations));
            }
        };
        let plan = match agents {
            Some(agents) if is_calm => Plan::of_many(agents, medium),
            Some(agents) => Plan::of_seed_for(agents, seed, medium),
            None => Plan::of_seed(seed, medium),
        };
        let report = agents::run(plan, seed, trace)?;
        Ok((format!("{report:?}"), report.ordered))
    };
    let count = seeds.end - seeds.start;
    let trace = if everything {
        Trace::All
    } else {
        Trace::Nothing
    };
    let mut operations = 0;
    for seed in seeds {
        match run(seed, trace) {
            Ok((report, _)) if count == 1 => println!("seed {seed}: {report}"),
            Ok((_, ordered)) => operations += ordered,
            Err(violation) => {
                if !everything {
                    // Run the seed again, to show the last events.
                    let _ = run(seed, Trace::Last);
                }
                eprintln!("seed {seed}: {}", violation.0);
                let agents = agents.map(|agents| format!("--agents {agents}"));
                let seed = (!is_calm).then(|| format!("--seed {seed}"));
                let words = world.cloned().into_iter().chain(agents).chain(seed);
                let words = words.collect::<Vec<_>>().join(" ");
                eprintln!("replay: cargo run -p rdzv-sim -- {words} --trace");
                return ExitCode::FAILURE;
            }
        }
    }
    if count != 1 {
        println!(
            "{count} seeds: no invariant was broken, and {operations} operations are linearizable"
        );
    }
    ExitCode::SUCCESS
}

/// Prints the size of a recorded history, if it is linearizable.
fn history(file: &str) -> ExitCode {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| Violation(format!("failed to read {file}: {error}")));
    match text.and_then(|text| lines::check(&text)) {
        Ok((operations, runs)) => {
            println!("{operations} operations in {runs} runs are linearizable");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            eprintln!("{}", violation.0);
            ExitCode::FAILURE
        }
    }
}
