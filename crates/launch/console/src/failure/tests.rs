use rdzv_agent_proto::group::{Cause, Evidence, Exit, Failure, Finality};
use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;

use super::*;

pub(crate) fn failure(rank: u32, host: &str, number: i32, cause: &Cause) -> Failure {
    Failure {
        cause: cause.clone(),
        evidence: Evidence {
            host: host.to_owned(),
            rank: Some(Rank(rank)),
            local_rank: Some(LocalRank(rank)),
            pid: Some(100 + rank),
            exit: Some(Exit::from_number(number)),
            seen: Some(Wall::from_unix_micros(1_935_817_688_125_001)),
            ..Evidence::default()
        },
    }
}

fn here(failures: &[Failure]) -> Failed<'_> {
    Failed {
        failures,
        here: true,
        stderr_seen: true,
        ..Failed::default()
    }
}

fn text(lines: &[Line]) -> String {
    let lines: Vec<String> = lines.iter().map(Line::text).collect();
    lines.join("\n")
}

fn boom_and_its_consequences() -> Vec<Failure> {
    let stopped = Cause::StoppedByAgent { number: -15 };
    let mut failures = vec![failure(
        5,
        "node-a",
        1,
        &Cause::exception("ValueError: boom"),
    )];
    failures.extend([4, 0, 2, 1, 3, 7].map(|rank| failure(rank, "node-a", -15, &stopped)));
    let lost = Cause::exception("ConnectionResetError: gone");
    failures.push(failure(6, "node-a", 1, &lost));
    failures
}

#[test]
fn general_advice_is_only_for_an_error_without_advice() {
    let advice = |text| error(text, None).len() - 1;
    assert_eq!(advice("no answer: Connection refused"), 1);
    let lines = text(&error(
        "no answer: Connection refused\nhelp: start it",
        None,
    ));
    assert_eq!(lines.matches("help: ").count(), 1, "{lines}");
}

#[test]
fn what_followed_is_folded() {
    let failures = boom_and_its_consequences();
    insta::assert_snapshot!(text(&verdict(&here(&failures), None)), @r"
    rdzv: first failure: rank 5 (local rank 5, pid 105, exit code 1) on node-a at 2031-05-06T07:08:08.125001Z: ValueError: boom
    rdzv: 6 more: ranks 0-4, 7: exit code -15 (SIGTERM), stopped by the agent
    rdzv: 1 more: rank 6: exit code 1, ConnectionResetError: gone
    ");
}

#[test]
fn stderr_that_nobody_has_seen_is_shown() {
    let cause = Cause::ExitCode {
        code: 7,
        last_line: None,
    };
    let mut first = failure(0, "node-a", 7, &cause);
    first.evidence.stderr_tail = (0..12).map(|line| format!("line {line}")).collect();
    let failures = [first];
    let mut run = here(&failures);
    assert!(!text(&verdict(&run, None)).contains("line"));
    run.stderr_seen = false;
    let shown = text(&verdict(&run, None));
    assert!(shown.contains("of its stderr:\n    line 2\n"), "{shown}");
    assert!(shown.ends_with("\n    line 11"), "{shown}");
    assert_eq!(verdict(&run, Some(80)).len(), 2 + 1 + 4);
}

#[test]
fn what_is_not_there_is_said_without_an_errno() {
    let missing = "[Errno 2] No such file or directory";
    for (reason, said) in [
        (
            format!("/venv/bin/python3: can't open file '/job/train.py': {missing}"),
            "No such file or directory: '/job/train.py'",
        ),
        (
            format!("{missing}: 'train'"),
            "No such file or directory: 'train'",
        ),
        (
            "/venv/bin/python3: can't open file '/job/train.py': [Errno 13] Permission denied"
                .to_owned(),
            "/venv/bin/python3: can't open file '/job/train.py': [Errno 13] Permission denied",
        ),
    ] {
        let failures = [failure(0, "node-a", 2, &Cause::NotStarted { reason })];
        let text = text(&verdict(&here(&failures), None));
        assert!(
            text.ends_with(&format!(": could not be started: {said}")),
            "{text}"
        );
    }
}

#[test]
fn the_end_of_restarts_is_explained_where_there_were_to_be_any() {
    for (finality, last) in [
        (
            Finality::BudgetUsed { max_restarts: 2 },
            Some("rdzv: no restart: exceeded max_restarts=2"),
        ),
        (
            Finality::NotRetryable { number: 3 },
            Some("rdzv: no restart: exit code 3 is not retryable"),
        ),
        (Finality::BudgetUsed { max_restarts: 0 }, None),
    ] {
        let failures = [failure(0, "node-a", 3, &Cause::exception("boom"))];
        let mut run = here(&failures);
        run.finality = Some(finality);
        let text = text(&verdict(&run, None));
        assert_eq!(text.lines().nth(1), last, "{text}");
    }
}

#[test]
fn a_failure_elsewhere_is_the_jobs() {
    let failures = [failure(1, "node-a", -9, &Cause::Signal { signal: 9 })];
    let mut run = here(&failures);
    run.here = false;
    assert_eq!(
        text(&verdict(&run, None)),
        "rdzv: first failure of the job: rank 1 (local rank 1, pid 101, SIGKILL) on node-a at \
         2031-05-06T07:08:08.125001Z: killed by SIGKILL, which the agent did not send"
    );
    assert_eq!(text(&verdict(&Failed::default(), None)), "");
}

/// Returns failures and attempts with everything that a summary can show.
fn whole() -> (Vec<Failure>, Vec<Attempt>) {
    let mut failures = boom_and_its_consequences();
    let cause = Cause::exception(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. \
         port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    );
    failures[0].cause = cause;
    failures[0].evidence.traceback = Some(
        "Traceback (most recent call last):\n  File \"/home/me/train.py\", line 60, in <module>\n    main()\n  \
         File \"/home/me/train.py\", line 41, in main\n    dist.init_process_group(\"gloo\", \
         init_method=\"tcp://127.0.0.1:29500\", rank=rank)\n  File \
         \"/venv/lib/python3.11/site-packages/torch/distributed/c10d.py\", line 7, in f\n    x()\n\
         torch.distributed.DistNetworkError: EADDRINUSE"
            .to_owned(),
    );
    let memory = Cause::OutOfMemory {
        evidence: "memory.events of /sys/fs/cgroup/job counts 1 more oom_kill".to_owned(),
    };
    let attempts = vec![
        Attempt {
            number: 1,
            failure: Some(failure(2, "node-a", -9, &memory)),
        },
        Attempt {
            number: 2,
            failure: None,
        },
    ];
    (failures, attempts)
}

fn whole_summary(width: usize) -> Vec<Line> {
    let (failures, attempts) = whole();
    let run = Failed {
        finality: Some(Finality::BudgetUsed { max_restarts: 2 }),
        attempts: &attempts,
        logs: Some("/tmp/torchelastic_ab12cd34/none_x1/attempt_2".to_owned()),
        report: Some("report.json".to_owned()),
        ..here(&failures)
    };
    summary(&run, Some(width))
}

#[test]
fn a_summary_on_80_columns() {
    insta::assert_snapshot!(text(&whole_summary(80)));
}

#[test]
fn a_summary_on_120_columns() {
    insta::assert_snapshot!(text(&whole_summary(120)));
}

#[test]
fn the_longest_summary_fits_on_24_rows_of_80_columns() {
    let (mut failures, attempts) = whole();
    let word = "word ".repeat(120);
    failures[0].cause = Cause::exception(&format!("NCCL error: {word}"));
    for (index, failure) in failures.iter_mut().enumerate().skip(1) {
        failure.cause = Cause::exception(&format!("{index}: {word}"));
    }
    let run = Failed {
        finality: Some(Finality::BudgetUsed { max_restarts: 2 }),
        attempts: &[&attempts[..], &attempts[..], &attempts[..]].concat(),
        logs: Some(format!("/tmp/{}", "x".repeat(70))),
        report: Some("report.json".to_owned()),
        ..here(&failures)
    };
    let lines = summary(&run, Some(80));
    assert!(lines.len() <= 23, "{}\n{}", lines.len(), text(&lines));
    for line in &lines {
        // The path of the logs is one word, which is never broken.
        let line = line.text();
        assert!(
            line.chars().count() <= 80 || line.contains("/tmp/x"),
            "{line}"
        );
    }
}
