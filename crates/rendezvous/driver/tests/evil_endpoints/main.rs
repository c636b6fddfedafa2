//! Evil endpoints: every client must end with one sentence about the endpoint.
//!
//! The sentence names the endpoint and what it did. The client ends within its time limits, and
//! reads no more than the maximum size of a reply.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod clients;
mod coordinator;
mod etcd;
mod peer;
mod store;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clients::Client;
use rdzv_store_proto::limits::MAX_REPLY_BYTES;
use table::{Row, rows};

/// Far longer than any client waits.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes in the buffers of both kernels when a client disconnects.
const ON_THE_WAY: usize = 16 << 20;

/// Maximum memory of this process: a few replies of the greatest size.
const MOST_MEMORY: usize = 8 * MAX_REPLY_BYTES;

/// Returns the violation of a row by its client, if there is one.
fn fault(row: &Row) -> Option<String> {
    let (port, taken) = peer::listen(row.endpoint);
    let (answer, answered) = mpsc::channel();
    let client = row.client;
    thread::spawn(move || answer.send(client.complaint(port)));
    let started = Instant::now();
    let Ok(text) = answered.recv_timeout(LIMIT) else {
        return Some("it hangs, or does not fail".to_owned());
    };
    let taken = taken.load(Ordering::Relaxed);
    let mut parts = row.says.to_vec();
    let endpoint = format!("127.0.0.1:{port}");
    parts.push(&endpoint);
    if let Some(missing) = parts.iter().find(|part| !text.contains(**part)) {
        return Some(format!("{missing:?} is not in {text:?}"));
    }
    if text.replace("\nhelp: ", " ").contains('\n') || text.len() > 2048 {
        return Some(format!("that is no sentence: {text:.2048?}"));
    }
    if taken > row.most + ON_THE_WAY {
        return Some(format!(
            "it took {taken} bytes, with a bound of {}",
            row.most
        ));
    }
    println!(
        "{:?}, {}: {:.1} s, {taken} bytes: {text}",
        row.client,
        row.name,
        started.elapsed().as_secs_f32()
    );
    None
}

fn endure(clients: &[Client]) {
    let rows: Vec<&Row> = rows().filter(|row| clients.contains(&row.client)).collect();
    assert!(!rows.is_empty());
    let faults: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = rows
            .iter()
            .map(|row| scope.spawn(|| fault(row).map(|what| (*row, what))))
            .collect();
        let ended = running.into_iter().filter_map(|row| row.join().unwrap());
        ended
            .map(|(row, what)| format!("{:?}, {}: {what}", row.client, row.name))
            .collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let peak = peak_memory();
    println!("{} MiB at most", peak >> 20);
    assert!(peak <= MOST_MEMORY, "{peak}");
}

/// Returns the peak memory of this process: clients and endpoints in parallel.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<usize>().unwrap() << 10
}

#[test]
fn the_table_has_enough_rows() {
    assert!(rows().count() >= 20, "{}", rows().count());
}

#[test]
fn a_store_client_names_every_evil_endpoint_and_takes_no_more_than_its_bound() {
    endure(&[Client::Get, Client::List]);
}

#[test]
fn an_agent_names_every_evil_store() {
    endure(&[Client::C10d]);
}

#[test]
fn an_agent_names_every_evil_etcd() {
    endure(&[Client::Etcd]);
}
