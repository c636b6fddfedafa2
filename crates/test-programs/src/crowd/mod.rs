//! A crowd of agents that find one another through an rdzv store server, timed.
//!
//! ```text
//! crowd serve                       hosts, and prints its port
//! crowd threads <address> <agents>  one round of agents as programs have them, a thread each
//! crowd many <address> <agents>     one round of as many agents' machines over one thread's sockets
//! crowd hold <places> <run> <agents> <nodes> <fence ms>   the same, in a job of so many nodes, over the death of a coordinator
//! crowd record <places> <file> <agents> <seed>   agents that join, leave, close and succeed in many runs, and write down what they see
//! ```
//!
//! `hold` prints what happens to it. `threads` and `many` print one line of JSON: seconds until all
//! were connected, and from then until all held their rank. Every run has a name of its own, so one
//! server serves them all.

mod connected;
mod deadlines;
mod hold;
mod many;
mod record;
mod serve;
mod threads;

use std::net::SocketAddr;
use std::time::Duration;

/// What a crowd found out.
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
        ["hold", places, run, agents, nodes, fence] => {
            let (agents, nodes) = (agents.parse()?, nodes.parse()?);
            return hold::run(places, run, agents, nodes, fence.parse()?);
        }
        ["record", places, file, agents, seed] => {
            return record::run(places, file, agents.parse()?, seed.parse()?);
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

/// All ranks from 0, each once, or the crowd has not agreed.
fn check_ranks(mut ranks: Vec<u32>) -> Result<(), String> {
    ranks.sort_unstable();
    let agreed = ranks
        .iter()
        .enumerate()
        .all(|(index, rank)| index == *rank as usize);
    match agreed {
        true => Ok(()),
        false => Err(format!("the agents hold the ranks {ranks:?}")),
    }
}
