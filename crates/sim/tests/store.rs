//! The store server in simulated worlds.

#[test]
fn no_seed_breaks_an_invariant() {
    let (mut answers, mut operations, mut resets, mut pauses) = (0, 0, 0, 0);
    for seed in 0..200 {
        match rdzv_sim::run(seed, false) {
            Ok(report) => {
                answers += report.answers;
                operations += report.operations;
                resets += report.resets;
                pauses += report.pauses;
            }
            Err(violation) => panic!(
                "seed {seed}: {}; replay: cargo run -p rdzv-sim -- --seed {seed} --trace",
                violation.0
            ),
        }
    }
    assert!(
        answers > 200 * 1000,
        "only {answers} answers were looked at"
    );
    assert!(
        operations > 200 * 100,
        "the order of only {operations} operations was looked for"
    );
    assert!(resets > 200, "only {resets} connections broke");
    assert!(
        pauses > 200,
        "only {pauses} connections were not read from for a time"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(rdzv_sim::run(5, false), rdzv_sim::run(5, false));
}
