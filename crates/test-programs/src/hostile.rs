//! An honest client of a store server beside one attack of the hostile suite.
//!
//! ```text
//! hostile list                     the names of the attacks, one a line
//! hostile none <address>           nobody attacks
//! hostile <name> <address>         one attack
//! ```
//!
//! Prints one line of JSON: how many requests the client had answered, and the median and the 99th
//! percentile of the time that an answer took, in seconds. The client's connection is never made
//! again.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rdzv_store::{Store as _, TcpStore, TcpStoreOptions};
use rdzv_testing::hostile::{Attacker, attacks};
use serde_json::json;

/// The shortest time for which the client asks.
const LEAST: Duration = Duration::from_secs(1);

pub(crate) fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["list"] => {
            attacks().for_each(|attack| println!("{}", attack.name));
            Ok(())
        }
        [name, address] => beside(name, address.parse()?),
        _ => anyhow::bail!("usage: see the head of this program's source"),
    }
}

fn beside(name: &str, address: SocketAddr) -> anyhow::Result<()> {
    let attack = attacks().find(|attack| attack.name == name);
    ensure!(attack.is_some() || name == "none", "no attack '{name}'");
    let store = TcpStore::connect(TcpStoreOptions::new(
        address.ip().to_string(),
        address.port(),
    ))?;
    let mut attacker = Attacker::new(address, Some([127, 0, 0, 2].into()));
    let times = thread::scope(|scope| {
        let running = attack.map(|attack| scope.spawn(move || (attack.run)(&mut attacker)));
        let over = || running.as_ref().is_none_or(|running| running.is_finished());
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < LEAST || !over() {
            times.push(ask(&store, times.len())?);
        }
        anyhow::Ok(times)
    })?;
    let mut times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{}",
        json!({ "answers": times.len(), "p50": at(0.5), "p99": at(0.99) })
    );
    Ok(())
}

/// The time of a write and a read.
fn ask(store: &TcpStore, number: usize) -> anyhow::Result<Duration> {
    let key = format!("honest/{}", number % 100);
    let start = Instant::now();
    store.set(&key, b"here").context("the write was refused")?;
    let value = store.get(&key).context("the read was not answered")?;
    ensure!(value == "here", "{key} holds {value:?}");
    Ok(start.elapsed())
}
