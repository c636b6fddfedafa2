//! A load generator for store servers, ours or PyTorch's: one thread, so that on two processors
//! the server has one for itself.
//!
//! ```text
//! load requests <address> <server pid> <connections> <in flight> <seconds>
//! load connections <address> <server pid> <count>
//! ```
//!
//! Prints one line of JSON: what was done, the wall time, and the processor time that the server
//! process spent meanwhile.

mod connections;
mod requests;
mod server_time;

use std::net::SocketAddr;
use std::time::Duration;

/// What a run found out.
struct Figures {
    /// Requests answered or connections made.
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
