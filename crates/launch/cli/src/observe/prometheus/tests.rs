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

/// Parses the labels of a sample, and returns the rest of the line.
fn after_labels(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix('{') else {
        return text;
    };
    let mut known = BTreeSet::new();
    loop {
        let (name, value) = rest.split_once("=\"").unwrap();
        assert!(is_name(name) && known.insert(name), "{text}");
        let mut end = 0;
        while !value[end..].starts_with('"') {
            let is_escape = value[end..].starts_with('\\');
            assert!(!is_escape || matches!(value.as_bytes()[end + 1], b'\\' | b'"' | b'n'));
            end += 1 + usize::from(is_escape);
        }
        rest = &value[end + 1..];
        match rest.split_at(1) {
            (",", more) => rest = more,
            ("}", more) => return more,
            _ => panic!("{text}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_';
    name.bytes().all(is_letter) && name.starts_with(|first: char| !first.is_ascii_digit())
}

/// Asserts that a text is valid OpenMetrics, as a strict parser reads it.
fn assert_is_open_metrics(text: &str) {
    let body = text
        .strip_suffix("# EOF\n")
        .expect("the last line is # EOF");
    let (mut families, mut samples) = (BTreeSet::new(), BTreeSet::new());
    let (mut family, mut described, mut kind) = ("", "", "");
    // Cumulative value of the last bucket.
    let mut bucket: Option<f64> = None;
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (what, name, rest) = (words.next(), words.next().unwrap(), words.next().unwrap());
            assert!(is_name(name), "{line}");
            if name != described {
                assert!(families.insert(name), "{name} is in two places");
                (described, kind) = (name, "");
            }
            match what {
                Some("HELP") => assert!(!rest.is_empty(), "{line}"),
                Some("UNIT") => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                Some("TYPE") => (family, kind, bucket) = (name, rest, None),
                _ => panic!("{line}"),
            }
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap();
        assert_eq!(family, described, "{line} has no type");
        let suffix = name
            .strip_prefix(family)
            .unwrap_or_else(|| panic!("{line}"));
        let value = after_labels(&line[name.len()..]).strip_prefix(' ').unwrap();
        let labels = &line[..line.len() - value.len()];
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(samples.insert(labels), "{line} is a second value");
        match (kind, suffix) {
            ("gauge", "") => {}
            ("info", "_info") => assert!(value == 1.0, "{line}"),
            ("counter", "_total") | ("histogram", "_sum") => assert!(value >= 0.0, "{line}"),
            ("histogram", "_bucket") => {
                assert!(bucket.is_none_or(|before| before <= value), "{line}");
                bucket = Some(value);
            }
            ("histogram", "_count") => {}
            _ => panic!("{line}: {kind}"),
        }
    }
    assert!(samples.len() > 20, "{text}");
}

#[test]
fn the_whole_page_is_valid_open_metrics() {
    assert_is_open_metrics(&text());
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
