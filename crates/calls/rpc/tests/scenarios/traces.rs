//! Test of one trace through several processes (SCN-S34).

use std::collections::BTreeMap;

use serde_json::json;

use super::worker::{Scenario, Worker, all_succeed};

/// Returns the fields of a written span: `key=value`, with texts in quotes.
fn fields(span: &str) -> BTreeMap<&str, &str> {
    let words = span.split(['{', '}', ' ']);
    let pairs = words.filter_map(|word| word.split_once('='));
    pairs
        .map(|(key, value)| (key, value.trim_matches('"')))
        .collect()
}

/// Returns for each span of a worker its end of the call and the other worker.
/// All spans must belong to this trace and have all measurements.
fn spans(worker: &Worker, count: usize, trace: &str) -> Vec<String> {
    let spans = worker.does(&json!({ "do": "spans", "count": count }));
    let spans: Vec<String> = serde_json::from_value(spans).unwrap();
    let mut said = Vec::new();
    for span in &spans {
        let fields = fields(span);
        assert_eq!(fields["trace"], trace, "{span}");
        assert_eq!(fields["method"], "scenario.trace", "{span}");
        for number in [
            "span",
            "bytes_out",
            "bytes_in",
            "queue_micros",
            "run_micros",
        ] {
            let number = fields
                .get(number)
                .unwrap_or_else(|| panic!("{number} in {span}"));
            number.parse::<u64>().unwrap();
        }
        let end = if span.contains("rpc.client") {
            "calls"
        } else {
            "serves"
        };
        said.push(format!("{end} {}", fields["worker"]));
    }
    said.sort();
    said
}

#[test]
fn a_trace_goes_through_three_processes_and_what_is_counted_is_what_was_called() {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b", "c"]);
    for worker in &workers {
        worker.does(&json!({ "do": "record" }));
        worker.begin_init(&json!({ "world_size": 3 }));
    }
    all_succeed(&workers);
    let [a, b, c] = &workers;
    let traces = a.calls("b", "trace", json!(["c"])).unwrap();
    let traces: Vec<String> = serde_json::from_value(traces).unwrap();
    assert_eq!(traces.len(), 2);
    assert_eq!(traces[0], traces[1]);
    assert_eq!(spans(a, 1, &traces[0]), ["calls b"]);
    assert_eq!(spans(b, 2, &traces[0]), ["calls c", "serves a"]);
    assert_eq!(spans(c, 1, &traces[0]), ["serves b"]);
    for (worker, calls, served) in [(a, 1, 0), (b, 1, 1), (c, 0, 1)] {
        let traffic = worker.does(&json!({ "do": "traffic" }));
        assert_eq!(
            (&traffic["calls"], &traffic["served"]),
            (&json!(calls), &json!(served))
        );
    }
}
