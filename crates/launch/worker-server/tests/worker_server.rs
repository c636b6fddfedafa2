//! Tests of the control plane of a worker, over both kinds of sockets.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use rdzv_worker_server::{Answer, WorkerServer};

const DEADLINE: Duration = Duration::from_secs(30);

/// Returns status, type and content of the answer.
fn asked(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String, String) {
    let length = body.len();
    let text = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, content) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let kind = head
        .lines()
        .find_map(|line| line.strip_prefix("content-type: "));
    (
        status,
        kind.unwrap_or_default().to_owned(),
        content.to_owned(),
    )
}

fn unix(path: &std::path::Path, method: &str, target: &str) -> (u16, String, String) {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    asked(stream, method, target, "")
}

// SCN-A53
#[test]
fn every_row_of_the_table_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0");
    let mut server = WorkerServer::new();
    server.register("echo", |request| {
        let text = String::from_utf8_lossy(&request.body);
        Answer::new(
            201,
            "text/x-echo",
            format!("{:?} {text}", request.parameters),
        )
    });
    server.register("bad", |_| panic!("out of luck"));
    let running = server.start_at(&path).unwrap();

    let get = |target: &str| unix(&path, "GET", target);
    let post = |target: &str| unix(&path, "POST", target);
    let (status, kind, page) = get("/");
    assert_eq!((status, &*kind), (200, "text/html"));
    assert!(page.contains("<h1>torch.distributed.WorkerServer</h1>"));
    assert!(page.contains("<a href=\"/handler/\">"));
    let names = r#"["bad","dump_traceback","echo","ping"]"#;
    let expected = |status, kind: &str, text: &str| (status, kind.to_owned(), text.to_owned());
    assert_eq!(get("/handler/"), expected(200, "application/json", names));
    assert_eq!(post("/handler/ping"), expected(200, "text/plain", "pong"));
    assert_eq!(
        post("/handler/echo?a=1&b=x%20y%26&a=2"),
        expected(201, "text/x-echo", "{\"a\": \"2\", \"b\": \"x y&\"} ")
    );
    let not_found = |name: &str| {
        let text = format!("Handler {name} not found: Failed to find handler {name}");
        expected(404, "text/plain", &text)
    };
    assert_eq!(post("/handler/no%20such"), not_found("no such"));
    assert_eq!(post("/handler/a%1b%0a"), not_found("a\\u{1b}\\n"));
    assert_eq!(
        post("/handler/bad"),
        expected(500, "text/plain", "Handler bad failed: out of luck")
    );
    for (method, target) in [
        ("GET", "/handler/ping"),
        ("GET", "/nothing"),
        ("POST", "/"),
        ("POST", "/handler/"),
        ("PUT", "/handler/ping"),
    ] {
        assert_eq!(
            unix(&path, method, target),
            expected(404, "", ""),
            "{method} {target}"
        );
    }
    let (status, kind, text) = post("/handler/dump_traceback");
    assert_eq!((status, &*kind), (200, "text/plain"));
    assert!(text.contains("\"worker-server\": "), "{text}");

    drop(running);
    assert!(!path.exists());
}

#[test]
fn a_handler_that_hangs_holds_up_neither_others_nor_the_end() {
    let (begun, has_begun) = channel();
    let (end, ended) = channel::<()>();
    let ended = Mutex::new(ended);
    let mut server = WorkerServer::new();
    server.register("hang", move |_| {
        begun.send(()).unwrap();
        let _ = ended.lock().unwrap().recv();
        Answer::text("")
    });
    let running = server.start_on("127.0.0.1", 0).unwrap();
    let address = running.address().unwrap();
    let mut hanging = TcpStream::connect(address).unwrap();
    hanging
        .write_all(b"POST /handler/hang HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    has_begun.recv_timeout(DEADLINE).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    let (status, _, text) = asked(stream, "POST", "/handler/ping", "");
    assert_eq!((status, &*text), (200, "pong"));
    drop(running);
    assert!(TcpStream::connect(address).is_err());
    drop(end);
}

#[test]
fn a_body_is_passed_on_up_to_its_limit() {
    let mut server = WorkerServer::new();
    server.register("length", |request| {
        Answer::text(request.body.len().to_string())
    });
    let running = server.start_on("127.0.0.1", 0).unwrap();
    let connect = || {
        let stream = TcpStream::connect(running.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    };
    let post = |body: &str| {
        let stream = connect();
        asked(stream, "POST", "/handler/length", body)
    };
    assert_eq!(post(&"x".repeat(1 << 20)).2, "1048576");
    // The server answers before it receives a body that is too long.
    let mut stream = connect();
    let length = (1 << 20) + 1;
    let head = format!("POST /handler/length HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.0 413");
}

#[test]
fn a_path_that_exists_or_is_too_long_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let taken = directory.path().join("taken");
    std::fs::write(&taken, "").unwrap();
    let long = directory.path().join("x".repeat(120));
    for path in [&taken, &long] {
        let error = WorkerServer::new().start_at(path).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
    assert!(taken.exists(), "a file of another owner stays");
}
