//! A load generator for store servers of rdzv or PyTorch.
//!
//! It uses one thread, so that the server has one of two processors alone.
//!
//! ```text
//! load requests <address> <server pid> <connections> <in flight> <seconds>
//! load connections <address> <server pid> <count>
//! ```
//!
//! Prints one line of JSON: the number of operations, the wall time, and the processor time of the
//! server process during the run.

mod connections;
mod requests;
mod server_time;

use std::net::SocketAddr;
use std::time::Duration;

/// Results of a run.
struct Figures {
    /// Number of answered requests, or of connections.
    done: u64,
    wall: Duration,
    server: Duration,
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    crate::raise_open_files();
    let figures = match arguments[..] {
        ["requests", address, pid, connections, in_flight, seconds] => requests::run(
            address.parse::<SocketAddr>()?,
            pid.parse()?,
            connections.parse()?,
            in_flight.parse()?,
            Duration::from_secs_f64(seconds.parse()?),
        )?,
        ["connections", address, pid, count] => {
            connections::run(address.parse::<SocketAddr>()?, pid.parse()?, count.parse()?)?
        }
        _ => return Err("usage: see the head of this program's source".into()),
    };
    println!(
        "{{\"done\":{},\"wall_seconds\":{:.6},\"server_cpu_seconds\":{:.6}}}",
        figures.done,
        figures.wall.as_secs_f64(),
        figures.server.as_secs_f64()
    );
    Ok(())
}
