//! Tests of the TCP client.
//!
//! The servers are late, silent, wrong, busy or lost. Some clients are masters.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_store::{ServerOptions, Store, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer};

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(30);

fn client(port: u16, timeout: Duration) -> TcpStoreOptions {
    TcpStoreOptions {
        timeout,
        ..TcpStoreOptions::new("127.0.0.1", port)
    }
}

fn server() -> TcpStoreServer {
    TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        ..ServerOptions::default()
    })
    .unwrap()
}

/// Returns a server and a client of it.
fn served() -> (TcpStoreServer, TcpStore) {
    let server = server();
    let store = TcpStore::connect(client(server.port(), LONG)).unwrap();
    (server, store)
}

fn listening() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn master() -> TcpStoreOptions {
    TcpStoreOptions {
        is_master: true,
        bind: Some("127.0.0.1".to_owned()),
        ..client(0, LONG)
    }
}

/// Returns a port at which no server listens while the socket exists.
fn refusing() -> (socket2::Socket, u16) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let port = socket
        .local_addr()
        .unwrap()
        .as_socket_ipv4()
        .unwrap()
        .port();
    (socket, port)
}

/// Runs the scripts on the accepted connections, one after another.
/// They run on a thread that ends with the last of them.
fn scripted(scripts: Vec<fn(TcpStream)>, test: impl FnOnce(u16)) {
    let (listener, port) = listening();
    thread::scope(|scope| {
        scope.spawn(move || {
            for serve in scripts {
                serve(listener.accept().unwrap().0);
            }
        });
        test(port);
    });
}

/// Answers the preamble.
fn handshake(stream: &mut TcpStream) {
    let mut preamble = [0; 10];
    stream.read_exact(&mut preamble).unwrap();
    stream.write_all(&preamble[6..]).unwrap();
}

fn wait_for_the_end(mut stream: TcpStream) {
    let _until_the_client_is_gone = stream.read_to_end(&mut Vec::new());
}

#[test]
fn a_silent_service_is_no_store() {
    scripted(vec![wait_for_the_end], |port| {
        let started = Instant::now();
        let error = TcpStore::connect(client(port, SHORT)).unwrap_err();
        assert!(started.elapsed() < LONG);
        assert!(matches!(error, StoreError::Silent { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
        assert!(text.contains("sent nothing"), "{text}");
    });
}

#[test]
fn a_web_server_is_no_store_and_is_not_asked_again() {
    let answer = |mut stream: TcpStream| {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        wait_for_the_end(stream);
    };
    scripted(vec![answer], |port| {
        let error = TcpStore::connect(client(port, LONG))
            .unwrap_err()
            .to_string();
        assert!(error.contains("HTTP/1.1 400 Bad Request"), "{error}");
    });
}

/// Reads until the blank line that ends a request of HTTP, and then answers.
fn serve_http(mut stream: TcpStream) {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            _ => return,
        }
    }
    let _ = stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n");
}

#[test]
fn a_web_server_that_waits_for_a_whole_request_is_found_out() {
    let (listener, port) = listening();
    // This thread ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve_http(stream.unwrap()));
        }
    });
    let started = Instant::now();
    let error = TcpStore::connect(client(port, LONG)).unwrap_err();
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("an HTTP server"), "{text}");
    assert!(text.contains("404 Not Found"), "{text}");
}

#[test]
fn a_store_that_is_slow_to_answer_is_asked_in_http_and_then_waited_for() {
    let (listener, port) = listening();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut first = listener.accept().unwrap().0;
            // The HTTP request on a second connection shows that the client has waited.
            let mut request = Vec::new();
            let mut stray = listener.accept().unwrap().0;
            stray.read_to_end(&mut request).unwrap();
            assert!(request.ends_with(b"\r\n\r\n"), "{request:?}");
            handshake(&mut first);
            wait_for_the_end(first);
        });
        TcpStore::connect(client(port, LONG)).unwrap();
    });
}

#[test]
fn a_proxy_that_hangs_up_before_the_store_is_there_is_asked_again() {
    let hang_up = |stream| drop::<TcpStream>(stream);
    let work = |mut stream: TcpStream| {
        handshake(&mut stream);
        wait_for_the_end(stream);
    };
    scripted(vec![hang_up, hang_up, work], |port| {
        TcpStore::connect(client(port, LONG)).unwrap();
    });
}

#[test]
fn a_server_that_starts_late_is_waited_for() {
    let (socket, port) = refusing();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| TcpStore::connect(client(port, LONG)));
        let server = TcpStoreServer::start(ServerOptions {
            listeners: vec![socket.into()],
            ..ServerOptions::default()
        });
        connecting.join().unwrap().unwrap().set("k", b"v").unwrap();
        drop(server);
    });
}

#[test]
fn nobody_there_names_address_attempts_and_time() {
    let (_socket, port) = refusing();
    let error = TcpStore::connect(client(port, SHORT)).unwrap_err();
    let StoreError::Connect {
        peer,
        attempts,
        elapsed,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(*peer, format!("127.0.0.1:{port}"));
    assert!(*attempts >= 2, "{attempts}");
    assert!((SHORT..LONG).contains(elapsed), "{elapsed:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn both_addresses_of_a_name_are_tried() {
    let server = server();
    let options = TcpStoreOptions {
        timeout: LONG,
        ..TcpStoreOptions::new("localhost", server.port())
    };
    let store = TcpStore::connect(options).unwrap();
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), "v");
    assert_eq!((store.host(), store.port()), ("localhost", server.port()));
}

#[test]
fn a_server_that_ends_is_named_and_the_client_stays_dead() {
    let (server, store) = served();
    thread::scope(|scope| {
        let (about_to_wait, is_about_to_wait) = mpsc::channel();
        let store = &store;
        let waiting = scope.spawn(move || {
            about_to_wait.send(()).unwrap();
            store.get("never").unwrap_err()
        });
        is_about_to_wait.recv().unwrap();
        let address = server.local_addr().to_string();
        drop(server);
        let error = waiting.join().unwrap();
        assert!(matches!(error, StoreError::Disconnected { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("cannot get key never"), "{text}");
        assert!(text.contains(&address), "{text}");
        let again = store.num_keys().unwrap_err().to_string();
        assert!(again.contains(&text), "{again}");
    });
}

#[test]
fn adding_to_text_says_what_closing_the_connection_may_mean() {
    let (_server, store) = served();
    store.set("text", b"apples").unwrap();
    let error = store.add("text", 1).unwrap_err().to_string();
    assert!(
        error.contains("the value of the key is not a number"),
        "{error}"
    );
}

#[test]
fn what_a_server_would_refuse_fails_itself_and_is_not_sent() {
    let (_server, store) = served();
    // The server counts the leading slash.
    let (longest, long) = ("k".repeat(8191), "k".repeat(8192));
    let big = vec![0; (8 << 20) + 1];
    store.set(&longest, b"v").unwrap();
    store.barrier(&longest[1..], 1, Some(LONG)).unwrap();
    let many: Vec<String> = (0..131_073).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let pairs: Vec<(&str, &[u8])> = many.iter().map(|key| (*key, &b""[..])).collect();
    let refused = [
        store.set(&long, b"v"),
        store.set("key", &big),
        store.append(&long, b"v"),
        store.append("key", &big),
        store.get(&long).map(drop),
        store.add(&long, 1).map(drop),
        store.compare_set(&long, b"", b"").map(drop),
        store.compare_set("key", b"", &big).map(drop),
        store.compare_set("key", &big, b"").map(drop),
        store.check(&["key", &long]).map(drop),
        store.check(&many).map(drop),
        store.wait(&[&long], Some(LONG)),
        store.wait(&many, Some(LONG)),
        store.multi_get(&[&long]).map(drop),
        store.multi_get(&many).map(drop),
        store.multi_set(&[("key", b"v"), (&long, b"v")]),
        store.multi_set(&[("key", &big)]),
        store.multi_set(&pairs),
        store.delete_key(&long).map(drop),
        store.queue_push(&long, b"v"),
        store.queue_push("key", &big),
        store.queue_pop(&long, false).map(drop),
        store.queue_len(&long).map(drop),
        store.barrier(&long, 1, Some(LONG)),
        store.begin_wait(&[&long], Some(LONG)).map(drop),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        let error = refused.expect_err(&format!("call {number}"));
        assert!(
            matches!(error, StoreError::Argument(_)),
            "call {number}: {error}"
        );
        let text = error.to_string();
        assert!(
            ["8191", "8388608", "131072"]
                .iter()
                .any(|limit| text.contains(limit)),
            "call {number}: {text}"
        );
        assert!(text.len() < 300, "call {number}: {} bytes", text.len());
    }
    // Nothing was sent, and the connection is still usable.
    assert!(!store.check(&["key"]).unwrap());
    store.set("key", b"v").unwrap();
    assert_eq!(store.get("key").unwrap(), "v");
}

#[test]
fn long_keys_are_cut_in_errors() {
    let (_server, store) = served();
    let key = "k".repeat(8191);
    let many: Vec<String> = (0..1000)
        .map(|number| format!("{number}{}", "k".repeat(500)))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for error in [
        store.wait(&[&key], Some(Duration::ZERO)).unwrap_err(),
        store.wait(&many, Some(Duration::ZERO)).unwrap_err(),
        store.barrier(&key, 2, Some(Duration::ZERO)).unwrap_err(),
        rdzv_store::HashStore::new()
            .wait(&[&key], Some(Duration::ZERO))
            .unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.len() < 12_000, "{} bytes: {text:.400}", text.len());
        assert!(text.contains("kkkk"), "{text}");
    }
}

#[test]
fn an_answer_that_cannot_be_ends_the_use_of_the_connection() {
    let nonsense = |mut stream: TcpStream| {
        handshake(&mut stream);
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(b"\x07").unwrap();
        wait_for_the_end(stream);
    };
    scripted(vec![nonsense], |port| {
        let store = TcpStore::connect(client(port, LONG)).unwrap();
        let error = store.wait(&["k"], None).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("0x07"), "{error}");
        store.check(&["k"]).unwrap_err();
    });
}

#[test]
fn a_reply_over_the_limit_names_key_size_and_remedy_and_ends_the_connection() {
    let (listener, port) = listening();
    thread::scope(|scope| {
        let taken = scope.spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            handshake(&mut stream);
            stream.read_exact(&mut [0; 1 + 8 + 8 + 2]).unwrap();
            stream.write_all(&[0]).unwrap();
            stream.write_all(&(1_u64 << 40).to_le_bytes()).unwrap();
            let mut taken = 0_usize;
            while let Ok(count) = stream.write(&[0; 64 << 10]) {
                taken += count;
            }
            taken
        });
        let options = TcpStoreOptions {
            max_reply_bytes: 1 << 20,
            ..client(port, LONG)
        };
        let store = TcpStore::connect(options).unwrap();
        let error = store.get("k").unwrap_err();
        assert!(matches!(error, StoreError::ReplyTooLong { .. }), "{error}");
        let text = error.to_string();
        for part in [
            "get key k",
            &format!("127.0.0.1:{port}"),
            "1099511627",
            "1048576",
            "max_reply_bytes",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The client has stopped reading, so the server could send only what the kernel buffers.
        let taken = taken.join().unwrap();
        assert!(taken < 32 << 20, "{taken}");
        let again = store.check(&["k"]).unwrap_err().to_string();
        assert!(again.contains("limit of 1048576"), "{again}");
    });
}

#[test]
fn a_value_under_the_limit_that_was_appended_to_is_read() {
    let (_server, store) = served();
    for _ in 0..3 {
        store.append("k", &[7; 5 << 20]).unwrap();
    }
    assert_eq!(store.get("k").unwrap().len(), 15 << 20);
}

#[test]
fn a_pop_that_lost_the_race_waits_again() {
    let race = |mut stream: TcpStream| {
        handshake(&mut stream);
        let mut wait = [0; 1 + 8 + 8 + 2];
        let mut pop = [0; 1 + 8 + 2];
        for answer in [
            &b"\0\0\0\0\0\0\0\0"[..],
            b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0v",
        ] {
            stream.read_exact(&mut wait).unwrap();
            stream.write_all(&[0]).unwrap();
            stream.read_exact(&mut pop).unwrap();
            stream.write_all(answer).unwrap();
        }
        wait_for_the_end(stream);
    };
    scripted(vec![race], |port| {
        let store = TcpStore::connect(client(port, LONG)).unwrap();
        assert_eq!(store.queue_pop("q", true).unwrap(), "v");
    });
}

#[test]
fn one_object_serves_many_threads() {
    let (_server, store) = served();
    thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..50 {
                    let key = format!("{thread} {round}");
                    store.set(&key, key.as_bytes()).unwrap();
                    assert_eq!(store.get(&key).unwrap(), key.as_bytes());
                    store.add("n", 1).unwrap();
                }
            });
        }
    });
    assert_eq!(store.get("n").unwrap(), "200");
}

#[test]
fn a_world_of_nobody_is_refused() {
    let mut options = client(1, LONG);
    options.world_size = Some(0);
    let error = TcpStore::connect(options).unwrap_err().to_string();
    assert_eq!(error, "TCPStore world size cannot be 0");
}

#[test]
fn only_the_master_waits_for_all_to_join() {
    let options = master();
    let (listener, port) = listening();
    let master = TcpStoreOptions {
        world_size: Some(3),
        port,
        listener: Some(listener),
        ..options
    };
    let member = || TcpStoreOptions {
        world_size: Some(3),
        ..client(port, LONG)
    };
    thread::scope(|scope| {
        let hosting = scope.spawn(|| TcpStore::connect(master).unwrap());
        let first = TcpStore::connect(member()).unwrap();
        assert!(!hosting.is_finished());
        let second = TcpStore::connect(member()).unwrap();
        let master = hosting.join().unwrap();
        assert!(master.server().is_some() && first.server().is_none());
        assert_eq!(second.num_keys().unwrap(), 1, "init/ is counted");
        assert!(second.list_keys().unwrap().is_empty(), "and not listed");
    });
}

#[test]
fn a_master_that_nobody_joins_says_how_many_came() {
    let options = TcpStoreOptions {
        world_size: Some(2),
        timeout: SHORT,
        ..master()
    };
    let error = TcpStore::connect(options).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Join {
                joined: 1,
                expected: 2,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("1/2 clients joined."),
        "{error}"
    );
}

#[test]
fn a_client_that_need_not_wait_is_not_counted() {
    let options = TcpStoreOptions {
        world_size: Some(2),
        wait_for_workers: false,
        ..master()
    };
    assert_eq!(TcpStore::connect(options).unwrap().num_keys().unwrap(), 0);
}

#[test]
fn a_taken_port_is_an_error_unless_an_agent_hosts() {
    let agent = server();
    let taken = || TcpStoreOptions {
        port: agent.port(),
        ..master()
    };
    let error = TcpStore::connect(taken()).unwrap_err();
    assert!(matches!(error, StoreError::Listen { .. }), "{error}");
    assert!(
        error
            .to_string()
            .to_lowercase()
            .contains("address already in use"),
        "{error}"
    );
    let holder = format!("process {} (", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
    let options = TcpStoreOptions {
        agent_hosts: true,
        world_size: Some(2),
        ..taken()
    };
    let store = TcpStore::connect(options).unwrap();
    assert!(store.server().is_none(), "and so it does not wait");
}

#[test]
fn masters_of_one_process_share_a_server_if_they_want_to() {
    let tenant = |port| TcpStoreOptions {
        port,
        multi_tenant: true,
        ..master()
    };
    let first = TcpStore::connect(tenant(0)).unwrap();
    let port = first.port();
    let second = TcpStore::connect(tenant(port)).unwrap();
    first.set("k", b"v").unwrap();
    drop(first);
    assert_eq!(
        second.get("k").unwrap(),
        "v",
        "it lives until the last store object is dropped"
    );
    let error = TcpStore::connect(TcpStoreOptions { port, ..master() }).unwrap_err();
    assert!(matches!(error, StoreError::Listen { .. }), "{error}");
}

#[test]
fn a_clone_keeps_the_server_alive() {
    let store = TcpStore::connect(master()).unwrap();
    store.set("k", b"v").unwrap();
    let clone = store.try_clone().unwrap();
    drop(store);
    assert_eq!(clone.get("k").unwrap(), "v");
}

#[test]
fn a_wait_can_be_ended_from_outside_without_harm_to_other_handles() {
    let store = TcpStore::connect(master()).unwrap();
    let waiting = store.try_clone().unwrap();
    let end = waiting.connection().and_then(|it| it.breaker()).unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| waiting.wait(&["never"], Some(Duration::MAX)));
        // A clone can be made while a call is in progress.
        drop(waiting.try_clone().unwrap());
        end();
        let error = wait.join().unwrap().unwrap_err();
        assert!(matches!(error, StoreError::Disconnected { .. }), "{error}");
    });
    store.set("k", b"v").unwrap();
}

#[test]
fn an_address_may_have_brackets() {
    let options = |port| TcpStoreOptions {
        bind: Some("[::1]".to_owned()),
        ..TcpStoreOptions::new("[::1]", port)
    };
    let first = TcpStore::connect(TcpStoreOptions {
        is_master: true,
        ..options(0)
    });
    let first = first.unwrap();
    assert_eq!(first.host(), "::1");
    let second = TcpStore::connect(options(first.port())).unwrap();
    assert_eq!(second.host(), "::1");
    let error = TcpStore::connect(TcpStoreOptions {
        is_master: true,
        ..options(first.port())
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains(&format!("[::1]:{}", first.port())),
        "{error}"
    );
}
