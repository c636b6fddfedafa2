//! Tests of every sentence about a run, at 80 and at 120 columns.

use std::time::Duration;

use rdzv_agent_proto::group::{Cause, Evidence, Exit, Failure};
use rdzv_console::event::{Regrouped, Restart};
use rdzv_console::stop::{self, Stop};
use rdzv_console::success::Success;
use rdzv_console::{Line, failure};
use rdzv_core::rank::{LocalRank, Rank};

fn sentences(width: usize) -> String {
    let width = Some(width);
    let failure = Failure {
        cause: Cause::exception(
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x1024 and 512x1024)",
        ),
        evidence: Evidence {
            host: "node-b.cluster.example".to_owned(),
            rank: Some(Rank(5)),
            local_rank: Some(LocalRank(1)),
            exit: Some(Exit::Code(1)),
            ..Evidence::default()
        },
    };
    let restart = |failure| Restart {
        number: 1,
        most: 3,
        failure,
        kept: &[],
    };
    let regrouped = |reason, nodes| {
        let is_in_process = false;
        Regrouped {
            reason,
            nodes,
            is_in_process,
        }
        .lines(width)
    };
    let ranks: Vec<u32> = (0..24).filter(|rank| rank % 3 != 1).collect();
    let stop = |request, seconds| {
        let stop = Stop {
            signal: 2,
            request,
            ranks: &ranks,
            left: Duration::from_secs(seconds),
            shutdown_timeout: Duration::from_secs(30),
        };
        stop.lines(width)
    };
    let success = |restarts: &[&str], changes: &[&str]| {
        let success = Success {
            took: Duration::from_secs(7_380),
            workers: 8,
            nodes: 2,
            restarts: restarts.iter().map(|text| (*text).to_owned()).collect(),
            changes: changes.iter().map(|text| (*text).to_owned()).collect(),
        };
        success.lines(width)
    };
    let lost = "node node-c.cluster.example_4242_0 is lost: its connection was closed";
    let lines: Vec<Line> = [
        restart(Some(&failure)).lines(width),
        restart(None).lines(width),
        regrouped(lost, Some(3)),
        regrouped("node node-d_7_0 waits to join", Some(4)),
        regrouped("node node-b_7_0 joins again", Some(4)),
        stop(1, 30),
        stop(2, 7),
        stop(3, 0),
        stop::killed(&ranks, width),
        stop::ended(15, Duration::from_secs(95), 24, 2, width),
        success(&[], &[]),
        success(
            &[
                "rank 5: out of memory",
                "rank 2: ValueError: boom",
                "a",
                "b",
            ],
            &["node-b is lost (killed)"],
        ),
        failure::error(
            "[Errno 98] Address already in use: node 0 has to host the store at 127.0.0.1:29500",
            width,
        ),
    ]
    .concat();
    let lines: Vec<String> = lines.iter().map(Line::text).collect();
    let widest = lines.iter().map(|line| line.chars().count()).max();
    assert!(widest <= width, "{lines:?}");
    lines.join("\n")
}

#[test]
fn at_80_columns() {
    insta::assert_snapshot!(sentences(80));
}

#[test]
fn at_120_columns() {
    insta::assert_snapshot!(sentences(120));
}
