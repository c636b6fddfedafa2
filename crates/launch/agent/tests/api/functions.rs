//! Tests whose workers are functions of this test program.

use rdzv_agent::api::{
    ElasticAgent, LaunchConfig, LaunchError, LocalElasticAgent, WorkerEntrypoint, WorkerFunctions,
    launch,
};
use rdzv_agent::outcome::Cause;
use rdzv_core::rank::Rank;
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;

use crate::{in_turn, quiet, to_files};

/// Does nothing in a run of the tests; in a worker, it runs the function.
#[test]
fn worker() {
    WorkerFunctions::new()
        .register("add_rank", |number: u64| {
            Ok::<u64, String>(number + variable("RANK"))
        })
        .register("odd_fails", |(): ()| match variable("RANK") % 2 {
            0 => Ok(0),
            _ => Err(OddRank),
        })
        .register("panics", |text: String| -> Result<(), String> {
            panic!("on purpose: {text}")
        })
        .register("second_attempt", |(): ()| {
            match variable("TORCHELASTIC_RESTART_COUNT") {
                0 => Err("the first attempt"),
                count => Ok(count),
            }
        })
        .register("leaves", |(): ()| -> Result<u32, String> {
            std::process::exit(0)
        })
        .run_if_worker();
}

#[derive(Debug, Serialize)]
struct OddRank;

impl std::fmt::Display for OddRank {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an odd rank")
    }
}

fn variable(name: &str) -> u64 {
    std::env::var(name).unwrap().parse().unwrap()
}

fn function(name: &str, input: &impl Serialize) -> WorkerEntrypoint {
    WorkerEntrypoint::function(name, input)
        .unwrap()
        .in_test("functions::worker")
}

fn run(name: &str, input: &impl Serialize, restarts: u32) -> rdzv_agent::api::RunResult {
    let (_turn, directory) = in_turn();
    let spec = quiet(function(name, input), &directory)
        .local_world_size(2)
        .max_restarts(restarts);
    LocalElasticAgent::new(spec.build().unwrap())
        .run("default")
        .unwrap()
}

#[test]
fn return_values_come_back_by_global_rank() {
    let result = run("add_rank", &100, 0);
    assert_eq!(result.return_value::<u64>(Rank(0)).unwrap(), Some(100));
    assert_eq!(result.return_value::<u64>(Rank(1)).unwrap(), Some(101));
    assert_eq!(result.return_values.len(), 2);
}

#[test]
fn an_error_is_the_cause_of_the_failure() {
    let result = run("odd_fails", &(), 0);
    let first = result.first_failure().unwrap();
    assert_eq!(first.rank, Rank(1));
    assert_eq!(first.cause, Cause::exception("an odd rank"));
    let held = first.error.as_ref().unwrap();
    assert_eq!(held["message"]["message"], json!("an odd rank"));
}

#[test]
fn a_panic_is_the_cause_of_the_failure() {
    let result = run("panics", &"here", 0);
    let text = result.first_failure().unwrap().cause.to_string();
    assert_eq!(text, "'panics' panicked: on purpose: here");
}

#[test]
fn values_are_those_of_the_last_attempt() {
    let result = run("second_attempt", &(), 1);
    assert_eq!(
        result.return_values,
        [(Rank(0), json!(1)), (Rank(1), json!(1))].into()
    );
}

#[test]
fn a_function_that_never_returns_has_no_value() {
    let result = run("leaves", &(), 0);
    assert!(!result.is_failed());
    assert!(result.return_values.is_empty());
}

#[test]
fn a_name_that_is_not_registered_is_said() {
    let result = run("forgotten", &(), 0);
    let text = result.first_failure().unwrap().cause.to_string();
    assert!(
        text.contains("function 'forgotten' is not registered"),
        "{text}"
    );
}

fn config(directory: &TempDir) -> LaunchConfig {
    LaunchConfig {
        max_restarts: 0,
        signals: Vec::new(),
        logs: to_files(directory),
        ..LaunchConfig::new(1, 2)
    }
}

#[test]
fn launch_returns_the_values() {
    let (_turn, directory) = in_turn();
    let values = launch(&config(&directory), function("add_rank", &5)).unwrap();
    assert_eq!(values, [(Rank(0), json!(5)), (Rank(1), json!(6))].into());
}

#[test]
fn launch_names_the_failure() {
    let (_turn, directory) = in_turn();
    let error = launch(&config(&directory), function("odd_fails", &())).unwrap_err();
    let LaunchError::WorkersFailed(failure) = error else {
        panic!("{error}");
    };
    assert_eq!(failure.name, "odd_fails");
    assert_eq!(failure.first_failure().unwrap().rank, Rank(1));
    assert!(failure.to_string().contains("an odd rank"), "{failure}");
}
