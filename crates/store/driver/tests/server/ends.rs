//! Tests of the ends of servers and connections.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_store::Limits;
use rdzv_store_proto::wire::request;

use crate::client::{Client, LONG, server};

#[test]
fn a_shutdown_lets_clients_finish_and_ends_when_they_are_gone() {
    let server = server(Limits::default());
    let address = server.local_addr();
    let mut client = Client::join(address);
    let began = Instant::now();
    let ending = thread::spawn(move || server.shutdown(LONG));
    // The server has stopped listening once a connection is refused.
    while TcpStream::connect(address)
        .map(drop)
        .map_err(|error| error.kind())
        != Err(ErrorKind::ConnectionRefused)
    {
        assert!(began.elapsed() < LONG);
    }
    client.send(|out| request::set(out, b"/k", b"v"));
    assert_eq!(client.num_keys(), 1);
    assert!(!ending.is_finished());
    drop(client);
    ending.join().unwrap();
    assert!(
        began.elapsed() < LONG,
        "it ends with the last client, not with the time"
    );
}

#[test]
fn a_shutdown_ends_in_time_when_clients_stay_and_loses_no_reply() {
    let server = server(Limits::default());
    let mut client = Client::join(server.local_addr());
    client.send(|out| request::set(out, b"/k", &[5; 100_000]));
    client.synchronize();
    // The client has not read its answer, and waits for a key that never exists.
    client.send(|out| request::get(out, b"/k"));
    client.send(|out| request::wait(out, &["/never"]));
    while server.stats().waits == 0 {
        thread::yield_now();
    }
    let began = Instant::now();
    server.shutdown(Duration::from_millis(50));
    assert!(began.elapsed() < LONG / 2);
    let received = client.receive_to_end();
    assert_eq!(received.len(), 8 + 100_000);
}

#[test]
fn a_dropped_server_closes_at_once() {
    let server = server(Limits::default());
    let mut waiter = Client::join(server.local_addr());
    waiter.send(|out| request::wait(out, &["/never"]));
    drop(server);
    assert_eq!(waiter.receive_to_end(), b"");
}

#[test]
fn whoever_says_nothing_is_closed_in_time() {
    let server = server(Limits {
        validation_timeout: Duration::from_millis(50),
        ..Limits::default()
    });
    let mut silent = Client::connect(server.local_addr());
    let mut client = Client::join(server.local_addr());
    assert_eq!(silent.receive_to_end(), b"");
    client.synchronize();
}

#[test]
fn replies_before_a_bad_request_arrive() {
    let server = server(Limits::default());
    let mut client = Client::join(server.local_addr());
    client.send(|out| {
        request::ping(out, 1);
        request::ping(out, 2);
        out.push(0x7F);
        request::ping(out, 3);
    });
    assert_eq!(client.receive_to_end(), [1, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn running_out_of_descriptors_is_survived() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // The limit applies to the whole process, so the test runs in a separate process.
    const CHILD: &str = "RDZV_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ends::running_out_of_descriptors_is_survived"])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        return assert!(status.success());
    }
    let server = server(Limits::default());
    let mut first = Client::join(server.local_addr());
    // A connection without a request would have to make room.
    first.num_keys();
    let few = Rlimit {
        current: Some(200),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut hoard: Vec<_> = std::iter::from_fn(|| first.0.try_clone().ok()).collect();
    // One descriptor is free for the client's end of a connection, and none for the server's.
    hoard.pop();
    let mut second = Client::connect(server.local_addr());
    second.send(|out| request::preamble(out, 3));
    let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (before, began) = (spent(), Instant::now());
    for _ in 0..20 {
        first.synchronize();
        second
            .0
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let waited = second.0.peek(&mut [0]).unwrap_err();
        assert_eq!(waited.kind(), ErrorKind::WouldBlock);
    }
    let (after, took) = (spent(), began.elapsed());
    let nanos = (after.tv_sec - before.tv_sec) * 1_000_000_000 + (after.tv_nsec - before.tv_nsec);
    // A server that retries without a pause would use a whole core.
    assert!(
        u128::from(nanos.unsigned_abs()) < took.as_nanos() / 2,
        "{nanos} ns of processor time in {took:?} while nothing can be accepted"
    );
    // Descriptors become free when the first client leaves.
    drop((first, hoard));
    second.0.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(second.receive(4), 3_u32.to_le_bytes());
}

#[test]
fn a_client_that_says_much_and_leaves_at_once_is_noticed() {
    let server = server(Limits::default());
    for round in 1..=300 {
        // Most rounds send more than one turn reads. Often the end arrives before the first read.
        let mut client = Client::join(server.local_addr());
        client.send(|out| {
            for _ in 0..10 * round {
                request::set(out, b"/key", &[1; 50]);
            }
        });
    }
    let began = Instant::now();
    while server.stats().connections > 0 {
        assert!(began.elapsed() < LONG, "{:?}", server.stats());
        thread::yield_now();
    }
}

#[test]
fn a_server_reports_that_it_is_alive_to_its_end() {
    let server = server(Limits::default());
    let pinger = server.pinger();
    let ask = || {
        let (alive, answers) = channel();
        pinger(alive);
        answers.recv_timeout(LONG)
    };
    assert_eq!(ask(), Ok(()));
    assert_eq!(ask(), Ok(()));
    drop(server);
    assert_eq!(ask(), Err(RecvTimeoutError::Disconnected));
}
