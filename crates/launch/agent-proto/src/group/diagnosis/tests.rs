use super::*;

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn silent(exit: Exit) -> Evidence {
    Evidence {
        exit: Some(exit),
        ..Evidence::default()
    }
}

fn recorded(text: &str) -> Option<ErrorFile> {
    let json = serde_json::json!({ "message": text }).to_string();
    Some(ErrorFile::parse("error.json".into(), &json))
}

#[test]
fn what_says_most_counts() {
    let hang = Cause::NodeLost {
        node: "b".to_owned(),
    };
    let out_of_memory = |exit| Evidence {
        out_of_memory: Some("1 kill".to_owned()),
        ..silent(exit)
    };
    let with_file = |exit, text| Evidence {
        error_file: recorded(text),
        ..silent(exit)
    };
    let stopped = |evidence: Evidence| Evidence {
        stopped_by_agent: true,
        ..evidence
    };
    let failed = Exit::Code(1);
    let torch = "torch.OutOfMemoryError: CUDA out of memory. Tried";
    let disk = "OSError: [Errno 28] No space left on device";
    let hung = Evidence {
        kill_cause: Some(hang),
        ..with_file(Exit::Signal(9), "ValueError: x")
    };
    let raised = with_file(Exit::Signal(15), "ValueError: x");
    let cases = [
        (silent(Exit::Code(7)), "exit_code"),
        (silent(Exit::Signal(11)), "signal"),
        (out_of_memory(Exit::Signal(9)), "out_of_memory"),
        (out_of_memory(Exit::Signal(11)), "signal"),
        (stopped(out_of_memory(Exit::Signal(9))), "stopped_by_agent"),
        (stopped(raised), "exception"),
        (hung, "node_lost"),
        (with_file(failed, "MemoryError"), "out_of_memory"),
        (with_file(failed, torch), "out_of_memory"),
        (with_file(failed, disk), "disk_full"),
    ];
    for (evidence, kind) in cases {
        let cause = diagnose(evidence.exit.unwrap(), &evidence);
        assert_eq!(cause.kind(), kind, "{evidence:?}");
    }
}

#[test]
fn last_words_are_understood() {
    let cases = [
        (
            1,
            "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\nValueError: boom\n",
            "exception: ValueError: boom",
        ),
        (
            1,
            "Traceback (most recent call last):\n  File \"a.py\"\nModuleNotFoundError: No module named 'x'\nbye",
            "exception: ModuleNotFoundError: No module named 'x'",
        ),
        (
            1,
            "Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  y\nmy.pkg.Error: b\n",
            "exception: my.pkg.Error: b",
        ),
        (
            1,
            "[rank12]: Traceback (most recent call last):\n[rank12]:   File \"a.py\", line 1\n[rank12]: RuntimeError: NCCL error\n",
            "exception: RuntimeError: NCCL error",
        ),
        (
            1,
            "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1\n  | ExceptionGroup: both (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"a.py\", line 2\n    | ValueError: a\n    +---------------- 2 ----------------\n    | TypeError: b\n    +------------------------------------\n",
            "exception: ExceptionGroup: both (2 sub-exceptions)",
        ),
        (
            2,
            "/usr/bin/python3: can't open file '/x/none.py': [Errno 2] No such file or directory",
            "not_started: could not be started: /usr/bin/python3: can't open file '/x/none.py': [Errno 2] No such file or directory",
        ),
        (
            1,
            "/usr/bin/python3: No module named nothing",
            "not_started: could not be started: /usr/bin/python3: No module named nothing",
        ),
        (
            101,
            "\nthread 'main' panicked at src/main.rs:2:5:\nboom\nnote: run with `RUST_BACKTRACE=1`",
            "exception: thread 'main' panicked at src/main.rs:2:5: boom",
        ),
        (
            134,
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom",
            "exception: terminate called after throwing an instance of 'std::runtime_error': boom",
        ),
        (
            134,
            "a: a.c:3: main: Assertion `x' failed.",
            "exception: a: a.c:3: main: Assertion `x' failed.",
        ),
        (
            134,
            "malloc(): corrupted top size",
            "exception: malloc(): corrupted top size",
        ),
        (
            1,
            "cp: write error: No space left on device",
            "disk_full: no space left on a file system: cp: write error: No space left on device",
        ),
        (
            3,
            "some warning\nanother",
            "exit_code: exited with code 3; its last line: another",
        ),
    ];
    for (code, text, expected) in cases {
        let evidence = Evidence {
            stderr_tail: lines(text),
            ..Evidence::default()
        };
        let cause = diagnose(Exit::Code(code), &evidence);
        assert_eq!(format!("{}: {cause}", cause.kind()), expected);
    }
}

#[test]
fn before_a_signal_nobody_puts_the_end_into_words() {
    let evidence = Evidence {
        stderr_tail: lines(
            "Traceback (most recent call last):\n  x\nKeyError: 'handled'\ngoing on",
        ),
        ..Evidence::default()
    };
    for (signal, kind) in [(11, "signal"), (9, "signal"), (6, "exception")] {
        let cause = diagnose(Exit::Signal(signal), &evidence);
        assert_eq!(cause.kind(), kind, "{signal}");
    }
}

#[test]
fn a_stopped_worker_counts_if_its_last_words_are_an_exception() {
    let head = "Traceback (most recent call last):\n  x\n";
    let words =
        |text: &str| own_exception(&lines(&format!("{head}{text}"))).map(|cause| cause.to_string());
    assert_eq!(
        words("ValueError: boom"),
        Some("ValueError: boom".to_owned())
    );
    assert_eq!(words("KeyboardInterrupt"), None);
    let long_ago = "ValueError: handled\n".to_owned() + &"step\n".repeat(20);
    assert_eq!(words(&long_ago), None);
}
