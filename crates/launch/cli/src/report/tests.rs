use std::path::PathBuf;

use rdzv_agent::outcome::{Cause, ErrorFile};
use rdzv_core::rank::{GroupRank, LocalRank, Rank};
use rdzv_core::time::Wall;
use serde_json::json;

use super::*;

fn failure(rank: u32, exit: Exit) -> Failure {
    Failure {
        cause: Cause::ExitCode {
            code: 7,
            last_line: None,
        },
        evidence: Evidence {
            host: "node-a.example".to_owned(),
            group_rank: Some(GroupRank(0)),
            role: "default".to_owned(),
            rank: Some(Rank(rank)),
            local_rank: Some(LocalRank(rank - 4)),
            pid: Some(4238 + rank),
            exit: Some(exit),
            seen: Some(Wall::from_unix_micros(1_936_854_489_900_000)),
            ..Evidence::default()
        },
    }
}

fn with_file(content: Result<Value, String>) -> Failure {
    let mut failure = failure(5, Exit::Code(1));
    failure.evidence.error_file = Some(ErrorFile {
        path: PathBuf::from("/logs/none_abc/attempt_0/1/error.json"),
        content,
    });
    failure
}

fn rendered(failures: &[Failure], root_cause: usize) -> String {
    // A trailing blank is part of the layout, but editors would remove it from a snapshot.
    let text = render("train.py", failures, root_cause, &TimeZone::UTC);
    text.replace(" \n", " ¶\n")
}

#[test]
fn the_root_cause_stands_apart_from_those_it_took_along() {
    let mut stopped = failure(4, Exit::Signal(15));
    stopped.evidence.stopped_by_agent = true;
    insta::assert_snapshot!(rendered(&[failure(5, Exit::Code(7)), stopped], 0));
}

#[test]
fn a_recorded_exception_is_indented() {
    insta::assert_snapshot!(rendered(
        &[with_file(Ok(json!({"message": {
            "message": "ValueError: boom",
            "extraInfo": {
                "py_callstack": "Traceback (most recent call last):\n  File \"train.py\", line 4\nValueError: boom\n",
                "timestamp": "1936854489"
            }
        }})))],
        0
    ));
}

#[test]
fn an_unreadable_error_file_is_mentioned() {
    insta::assert_snapshot!(rendered(
        &[with_file(Err(
            "EOF while parsing a string at line 1 column 6".to_owned()
        ))],
        0
    ));
}

#[test]
fn plain_text_is_shown_as_it_is() {
    let text = rendered(&[with_file(Ok(json!({"message": "a\nb"})))], 0);
    assert!(text.contains("  traceback : a\nb\n==="), "{text}");
}

#[test]
fn short_reports_have_short_rules() {
    let text = render(
        "t",
        &[with_file(Ok(json!({"message": "m"})))],
        0,
        &TimeZone::UTC,
    );
    let longest = "  error_file: /logs/none_abc/attempt_0/1/error.json".len();
    assert_eq!(text.lines().nth(1), Some("=".repeat(longest).as_str()));
}

#[test]
fn signals_without_a_name_get_none() {
    let text = rendered(&[failure(4, Exit::Signal(40))], 0);
    assert!(text.contains("exitcode  : -40 (pid: 4242)  ¶\n") || text.contains("(pid: 4242) ¶\n"));
    assert!(text.contains("Signal 40 (<N/A>) received by PID 4242"));
}
