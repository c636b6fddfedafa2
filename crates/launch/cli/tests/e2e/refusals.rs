//! Tests of refused command lines: message and exit code.

use crate::harness::{rdzv, run_shell, torchrun};

// SCN-A9
#[test]
fn more_virtual_ranks_than_devices_are_refused() {
    let ended = run_shell("--virtual-local-rank --nproc-per-node 2", "true")
        .env("CUDA_VISIBLE_DEVICES", "4")
        .expect(1);
    assert_eq!(
        ended.last_error_line(),
        "ValueError: local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4"
    );
}

// SCN-A12
#[test]
fn a_flag_in_the_environment_must_be_a_number() {
    let ended = run_shell("", "true").env("PET_STANDALONE", "abc").expect(1);
    assert_eq!(
        ended.stderr,
        "ValueError: invalid literal for int() with base 10: 'abc'\n"
    );
}

// SCN-A14
#[test]
fn wrong_lines_are_answered_once_with_the_usage() {
    for (line, problem) in [
        (
            &["--nproc", "2", "w"][..],
            "ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node",
        ),
        (&["--bogus", "w"], "unrecognized arguments: --bogus"),
        (
            &[],
            "the following arguments are required: training_script, training_script_args",
        ),
    ] {
        let ended = torchrun(line).expect(2);
        assert_eq!(ended.stdout, "");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{}", ended.stderr);
        assert!(lines[0].starts_with("usage: torchrun "), "{}", lines[0]);
        assert_eq!(lines[1], format!("torchrun: error: {problem}"));
    }
}

// SCN-A15; the tests of `resolve` contain the whole table, without processes.
#[test]
fn impossible_values_end_with_the_class_and_text_of_torchrun() {
    for (flags, variable, last) in [
        (
            "--nnodes 1:2:3",
            None,
            "RuntimeError: nnodes=1:2:3 is not in \"MIN:MAX\" format",
        ),
        (
            "--nproc-per-node gpu",
            Some(("CUDA_VISIBLE_DEVICES", "")),
            "ValueError: Cuda is not available.",
        ),
        (
            "--rdzv-backend foo",
            None,
            "ValueError: The rendezvous backend 'foo' is not registered. Did you forget to call \
             `register`?",
        ),
        (
            "--rdzv-backend=c10d --rdzv-conf=join_timeout=soon",
            None,
            "ValueError: The rendezvous configuration option 'join_timeout' does not represent a \
             valid integer value.",
        ),
        (
            "--rdzv-backend=c10d --nnodes=2 --rdzv-conf=read_timeout=0",
            None,
            "ValueError: The read timeout must be a positive integer.",
        ),
        ("--event-log-handler bogus", None, "KeyError: 'bogus'"),
        (
            "--log-dir taken",
            None,
            "NotADirectoryError: log_dir: taken is a file",
        ),
        (
            "",
            Some(("LOGLEVEL", "bogus")),
            "ValueError: Unknown level: 'bogus'",
        ),
        (
            "--shutdown-timeout -1",
            None,
            "ValueError: shutdown_timeout must be non-negative, got -1",
        ),
    ] {
        let mut job = run_shell(flags, "echo started").file("taken", "");
        if let Some((name, value)) = variable {
            job = job.env(name, value);
        }
        let ended = job.expect(1);
        assert_eq!(ended.last_error_line(), last, "{flags:?}");
        assert_eq!(ended.stdout, "", "{flags:?}");
    }
}

#[test]
fn a_refusal_is_left_in_the_error_file_that_was_asked_for() {
    let job = run_shell("--rdzv-backend foo", "true");
    let ended = job
        .env("TORCHELASTIC_ERROR_FILE", "launcher.json")
        .expect(1);
    let content = ended.json("launcher.json");
    let message = content["message"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("ValueError: The rendezvous backend 'foo'"),
        "{message}"
    );
    assert!(content["message"]["extraInfo"]["timestamp"].is_string());
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let ended = rdzv(["run", "--no-python", "no-such-program"]).expect(1);
    assert_eq!(
        ended.last_error_line(),
        "FileNotFoundError: [Errno 2] No such file or directory: 'no-such-program'"
    );
}

#[test]
fn an_unknown_signal_is_warned_about_and_an_impossible_one_refused() {
    let line = ["--signals-to-handle", "SIGFOO", "--no-python", "true"];
    let ended = torchrun(line).expect(0);
    ended.assert_last_error("", &["Failed to register signal handler for SIGFOO"]);
    let ended = rdzv(["run"]).args(line).expect(2);
    ended.assert_last_error("", &["signal 'SIGFOO' does not exist"]);
    let ended = run_shell("--signals-to-handle SIGKILL", "true").expect(1);
    assert_eq!(
        ended.last_error_line(),
        "OSError: [Errno 22] Invalid argument"
    );
}

#[test]
fn bad_input_for_our_own_commands_is_answered_in_one_sentence() {
    for (line, problem) in [
        (&["bogus"][..], "unrecognized subcommand 'bogus'"),
        (&["store", "--port", "x"], "invalid value 'x' for '--port"),
        (
            &["store", "--max-memory", "4GB"],
            "a size is a number of bytes",
        ),
    ] {
        let ended = rdzv(line).expect(2);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        ended.assert_stderr(problem);
    }
}
