use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use rdzv_agent::event::WorkerIdentity;
use rdzv_agent_proto::restart::{RestartCause, RestartTimes};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Wall;

use super::*;

fn facts() -> RunFacts {
    RunFacts {
        run_id: "r".to_owned(),
        role: "default".to_owned(),
        host: rdzv_agent::launcher::host::HostName::Given("h".to_owned()),
        backend: "static".to_owned(),
        entry_point: "python".to_owned(),
        max_restarts: 3,
        local_world_size: 1,
    }
}

/// Returns the metrics of a node whose single worker is this process.
fn text() -> String {
    let mut report = NodeReport::new(&facts());
    let output = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(output.path(), "step 1\n").unwrap();
    report.workers.push(WorkerStatus {
        identity: WorkerIdentity {
            pid: std::process::id(),
            ..WorkerIdentity::default()
        },
        stdout: Some(output.path().to_owned()),
        ..WorkerStatus::default()
    });
    report.round = Some(0);
    report.group_rank = Some(0);
    report.group_world_size = Some(1);
    let beats = Beats::default();
    beats.record(LocalRank(0), Wall::from_unix_micros(1), Some(7));
    let report = Arc::new(Mutex::new(report));
    let (registry, mut counters) = metrics(&facts(), report, beats, GroupStatus::default());
    let at = Wall::default();
    let exited = AgentEvent::WorkerExited {
        at,
        worker: WorkerIdentity::default(),
        exit: Exit::Signal(9),
        stopped_by_agent: false,
    };
    let restart = RestartTimes {
        reason: RestartCause::Failure,
        detect: Duration::ZERO,
        failure_detected: at,
        worker_terminated: None,
        rendezvous_started: at + Duration::from_secs(2),
        rendezvous_completed: at + Duration::from_secs(3),
        worker_start_started: at + Duration::from_secs(3),
        worker_start_completed: at + Duration::from_secs(7),
    };
    let restart = Box::new(restart);
    for event in [exited, AgentEvent::Restarted { at, restart }] {
        counters.record(&event);
    }
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// Returns the names at the beginning of the lines with values.
fn names(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect()
}

/// Returns every name of a metric in a text.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("rdzv_")).collect()
}

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn a_worker_and_a_node_have_their_values() {
    let text = text();
    for (name, labels, value) in [
        ("build_info", ",version=\"0.1.0\"", "1"),
        ("worker_step", ",local_rank=\"0\",rank=\"0\"", "7.0"),
        ("worker_exit_codes_total", ",exit_code=\"-9\"", "1"),
        ("restart_seconds_total", ",span=\"stop\"", "2.0"),
        ("restart_seconds_total", ",span=\"start\"", "4.0"),
    ] {
        let line =
            format!("rdzv_{name}{{run_id=\"r\",role=\"default\",node=\"h\"{labels}}} {value}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    for name in [
        "rdzv_worker_cpu_seconds_total",
        "rdzv_worker_resident_memory_bytes",
        "rdzv_worker_progress_age_seconds",
        "rdzv_wall_time_seconds",
        "rdzv_goodput_ratio",
    ] {
        assert!(names(&text).contains(name), "{name} is not in\n{text}");
    }
}

#[test]
fn the_dashboard_names_only_metrics_that_exist() {
    let (text, dashboard) = (text(), file("examples/grafana.json"));
    let (exist, used) = (names(&text), mentioned(&dashboard));
    assert!(used.len() > 10, "{used:?}");
    let unknown: Vec<_> = used.difference(&exist).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_documentation_names_every_metric() {
    let (text, page) = (text(), file("docs/events.md"));
    let documented = mentioned(&page);
    let without = |name: &str| {
        let ends = ["_bucket", "_count", "_sum"];
        ends.iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name)
            .to_owned()
    };
    let missing = names(&text).into_iter().map(without);
    let missing: Vec<String> = missing
        .filter(|name| !documented.contains(&**name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
