//! Test of the example worker in Rust under `rdzv run`.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::process::Command;

#[test]
fn the_example_of_a_worker_in_rust_runs_as_its_text_says() {
    let rdzv = env!("CARGO_BIN_EXE_rdzv");
    let worker = rdzv_testing::example("rdzv", "rust_worker");
    let output = Command::new(rdzv)
        .args([
            "run",
            "--standalone",
            "--nproc-per-node",
            "4",
            "--no-python",
        ])
        .arg(worker)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut printed: Vec<&str> = printed.lines().collect();
    printed.sort_unstable();
    // The weight is 1 minus a tenth of the mean of 0, 1, 2 and 3.
    let expected = [0, 1, 2, 3].map(|rank| format!("rank {rank} of 4: weight 0.85"));
    assert_eq!(printed, expected, "{errors}");
}
