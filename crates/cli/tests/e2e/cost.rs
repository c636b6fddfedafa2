//! What a launch costs.

use std::time::Duration;

use crate::harness::torchrun;

// A60
#[test]
fn a_launch_takes_milliseconds_and_few_megabytes() {
    // The worker's parent is the agent, and the agent's the keeper.
    let script = "read -r _ _ _ keeper _ < /proc/$PPID/stat; \
                  grep -h VmHWM /proc/$PPID/status /proc/$keeper/status";
    let ended = torchrun(["--no-python", "sh", "-c", script])
        .run()
        .expect(0);
    let peaks: Vec<u64> = ended
        .stdout
        .lines()
        .map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
        .collect();
    assert_eq!(peaks.len(), 2, "{}", ended.stdout);
    let total_kib: u64 = peaks.iter().sum();
    assert!(total_kib < 20 * 1024, "{peaks:?} KiB");
    // Other tests run at the same time, so the best of several says what it costs.
    let best = (0..20)
        .map(|_| torchrun(["--no-python", "/bin/true"]).run().expect(0).took)
        .min();
    assert!(best < Some(Duration::from_millis(50)), "{best:?}");
}
