//! Tests of the spans that a collector receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::harness::{DEADLINE, run_shell};

/// Starts a collector; returns its URL and the bodies of the requests.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            loop {
                let (mut line, mut length) = (String::new(), 0);
                while stream.read_line(&mut line).unwrap_or(0) > 2 {
                    let (name, value) = line.split_once(": ").unwrap_or_default();
                    if name.eq_ignore_ascii_case("content-length") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                if length == 0 || stream.read_exact(&mut body).is_err() {
                    break;
                }
                let _ = sender.send(serde_json::from_slice(&body).unwrap());
                let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                              Content-Length: 2\r\n\r\n{}";
                let _ = stream.get_mut().write_all(answer.as_bytes());
            }
        }
    });
    (url, bodies)
}

/// Returns the spans that the collector has.
fn spans(bodies: &Receiver<Value>) -> Vec<Value> {
    let spans = bodies.try_iter().flat_map(|body| {
        let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        spans.as_array().unwrap().clone()
    });
    spans.collect()
}

#[test]
fn a_collector_has_all_spans_of_an_agent_that_has_ended() {
    for (last, code) in [("exit 0", 0), ("exit 3", 1)] {
        let (url, bodies) = collector();
        let worker = format!(
            "echo step 1 > $RDZV_HEARTBEAT; sleep 0.3\n\
             [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; {last}"
        );
        let flags = [
            "--max-restarts=1",
            "--heartbeat-timeout=step=100",
            "--otlp",
            &url,
        ];
        run_shell(&flags[..], &worker).expect(code);
        let spans = spans(&bodies);
        let names: Vec<&str> = spans
            .iter()
            .map(|span| span["name"].as_str().unwrap())
            .collect();
        let expected = [
            "restart",
            "detect",
            "stop",
            "rendezvous",
            "start",
            "first_step",
            "run",
        ];
        assert_eq!(names, expected);
        let (restart, run) = (&spans[0], &spans[6]);
        assert_eq!(restart["parentSpanId"], run["spanId"]);
        for span in &spans[1..6] {
            assert_eq!(span["parentSpanId"], restart["spanId"]);
            assert_eq!(span["traceId"], run["traceId"]);
        }
        let at = |span: &Value, key: &str| -> u64 { span[key].as_str().unwrap().parse().unwrap() };
        assert_eq!(
            at(restart, "endTimeUnixNano"),
            at(&spans[4], "endTimeUnixNano")
        );
        let events = restart["events"].as_array().unwrap();
        assert_eq!(events.len(), 6);
        assert_eq!(events[0]["name"], "failure_detected");
    }
}

#[test]
fn a_url_with_tls_is_refused() {
    let ended = run_shell("--otlp=https://127.0.0.1:4318", "true").expect(2);
    ended.assert_stderr("--otlp: 'https://127.0.0.1:4318' does not begin with http://\n");
}

#[test]
fn a_collector_that_does_not_answer_holds_an_agent_up_for_a_limited_time() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let flags = ["--max-restarts=1", "--otlp", &url];
    let ended = run_shell(&flags[..], "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3").expect(0);
    ended.assert_stderr("--otlp: ");
    assert!(ended.took < DEADLINE);
}
