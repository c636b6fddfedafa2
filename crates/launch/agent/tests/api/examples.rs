//! Tests that the examples do what their first lines describe.

use std::process::{Command, Output};

fn example(name: &str, arguments: &[&str]) -> Output {
    Command::new(rdzv_testing::example("rdzv-agent", name))
        .args(arguments)
        .output()
        .unwrap()
}

fn said(output: &Output) -> Vec<&str> {
    std::str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .collect()
}

#[test]
fn an_agent_of_ones_own_with_threads() {
    let output = example("own_agent", &["3"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        said(&output),
        [
            "restarting, 0 restarts left",
            "worker 0 was thread adder/0",
            "worker 1 was thread adder/1",
            "worker 2 was thread adder/2",
            "SUCCEEDED after 1 restarts",
            "rank 0 returned 3",
            "rank 1 returned 3",
            "rank 2 returned 3",
        ]
    );
}

#[test]
fn functions_as_workers() {
    let output = example("function_workers", &["3"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        said(&output),
        [
            "rank 0 returned 0",
            "rank 1 returned 1",
            "rank 2 returned 4"
        ]
    );
    let output = example("function_workers", &["3", "fail", "1"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        said(&output)[0].contains("rank 1 fails on request"),
        "{output:?}"
    );
}
