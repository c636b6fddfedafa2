//! A crowd of agents that meet through an rdzv store server, and its timing.
//!
//! ```text
//! crowd serve                       hosts the store, and prints its port
//! crowd threads <address> <agents>  one round of agents as in programs, one thread each
//! crowd many <address> <agents>     one round of state machines over one thread's sockets
//! crowd hold <endpoints> <run> <agents> <nodes> <fence ms>
//!                                   as `many`, in a job of <nodes>, while coordinators die
//! crowd record <endpoints> <file> <agents> <seed>
//!                                   agents join, leave and close many runs, with a record
//! ```
//!
//! `hold` prints the events of its agents. `threads` and `many` print one line of JSON: seconds
//! until all agents were connected, and from then until all held their rank. Every run has a
//! separate name, so one server serves all runs.

mod connected;
mod deadlines;
mod hold;
mod many;
mod record;
mod serve;
mod threads;

use std::net::SocketAddr;
use std::time::Duration;

/// Results of a crowd.
struct Figures {
    connected: Duration,
    joined: Duration,
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    crate::raise_open_files();
    let crowd = match arguments[..] {
        ["serve"] => return serve::serve(),
        ["hold", endpoints, run, agents, nodes, fence] => {
            let (agents, nodes) = (agents.parse()?, nodes.parse()?);
            return hold::run(endpoints, run, agents, nodes, fence.parse()?);
        }
        ["record", endpoints, file, agents, seed] => {
            return record::run(endpoints, file, agents.parse()?, seed.parse()?);
        }
        ["threads", address, agents] => (threads::run as Run, address, agents),
        ["many", address, agents] => (many::run as Run, address, agents),
        _ => return Err("usage: see the head of this program's source".into()),
    };
    let (run, address, agents) = crowd;
    let agents: u32 = agents.parse()?;
    let run_id = format!("crowd-{agents}-{}", std::process::id());
    let figures = run(address.parse()?, &run_id, agents)?;
    println!(
        "{{\"connected_seconds\":{:.6},\"joined_seconds\":{:.6}}}",
        figures.connected.as_secs_f64(),
        figures.joined.as_secs_f64()
    );
    Ok(())
}

type Run = fn(SocketAddr, &str, u32) -> Result<Figures, Box<dyn std::error::Error>>;

/// Checks that each rank from 0 exists once, so that the agents agree.
fn check_ranks(mut ranks: Vec<u32>) -> Result<(), String> {
    ranks.sort_unstable();
    let agreed = ranks
        .iter()
        .enumerate()
        .all(|(index, rank)| index == *rank as usize);
    if agreed {
        Ok(())
    } else {
        Err(format!("the agents hold the ranks {ranks:?}"))
    }
}
