//! Test of `--explain`, which starts nothing.

use crate::harness::{rdzv, torchrun};

#[test]
fn an_explained_launch_starts_nothing() {
    let job = || rdzv(["run", "--nproc-per-node", "2", "--log-dir", "logs"]);
    let ended = job()
        .args(["--explain", "--no-python", "touch", "started"])
        .expect(0);
    for part in ["touch started", "--nproc-per-node", "WORLD_SIZE", "logs"] {
        ended.assert_stdout(part);
    }
    let left: Vec<_> = std::fs::read_dir(ended.path("")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let ended = job()
        .args(["--explain=json", "--no-python", "touch", "started"])
        .expect(0);
    let explained: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(explained["version"], 1);
}

#[test]
fn a_line_that_cannot_be_run_is_not_explained() {
    let ended = torchrun(["--explain", "--nnodes", "0", "s.py"]).expect(1);
    assert!(ended.last_error_line().starts_with("AssertionError: "));
    assert_eq!(ended.stdout, "");
    let ended = torchrun(["--explain=xml", "s.py"]).expect(2);
    ended.assert_last_error("", &["invalid choice: 'xml' (choose from 'table', 'json')"]);
    torchrun(["--explain"]).expect(2);
}

#[test]
fn the_script_may_have_a_flag_of_that_name() {
    let ended = torchrun(["--no-python", "echo", "--explain"]).expect(0);
    assert_eq!(ended.stdout, "--explain\n");
}
