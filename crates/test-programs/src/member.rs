//! A rendezvous node, for tests together with other implementations.
//!
//! Usage: `member BACKEND ENDPOINT RUN_ID MIN:MAX [OPTIONS] [LOCAL_ADDR]`, with `OPTIONS` as for
//! `--rdzv-conf`. Each line on standard input is a command. Each line on standard output is an
//! answer or a change:
//!
//! | command | answer |
//! |---|---|
//! | `join` | `joined ROUND RANK WORLD_SIZE MASTER_ADDR MASTER_PORT`, or `failed TEXT` |
//! | `leave`, `close`, `shutdown` | `left`, `closed`, `shut down`, or `failed TEXT` |
//! | `waiting`, `is-closed` | a number; `true` or `false` |
//! | `set KEY VALUE`, `get KEY` | `set`; `value VALUE` (the store of the round) |
//! | `fail TEXT` | `reported` |
//!
//! Changes are `membership ROUND TEXT`, `peer-failed NODE TEXT`, `closed-by-other`, `lease ROUND`,
//! `losses-known SECONDS` and `lost TEXT`. The program ends with its standard input.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::sync::Arc;

use rdzv_rendezvous::{
    BackendRegistry, Change, JoiningAgent, RendezvousBackend, RendezvousConfig, RendezvousError,
    RendezvousParameters,
};
use rdzv_store::Store;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [backend, endpoint, run_id, nodes, more @ ..] = &arguments[..] else {
        return Err("usage: member BACKEND ENDPOINT RUN_ID MIN:MAX [OPTIONS] [LOCAL_ADDR]".into());
    };
    let (least, most) = nodes.split_once(':').ok_or("nodes are MIN:MAX")?;
    let config = RendezvousConfig::parse(more.first().map_or("", String::as_str))?;
    let mut parameters = RendezvousParameters::new(
        backend,
        endpoint,
        run_id,
        least.parse()?,
        most.parse()?,
        config,
    )?;
    parameters.local_addr = more.get(1).cloned();
    let mut rendezvous = BackendRegistry::with_defaults().create(&parameters)?;
    rendezvous.set_observer(Box::new(|change| println!("{}", shown(&change))));
    let mut node = Node {
        rendezvous,
        round: None,
    };
    for line in stdin().lock().lines() {
        let line = line?;
        let answer = node.obey(line.trim());
        println!(
            "{}",
            answer.unwrap_or_else(|error| format!("failed {error}"))
        );
    }
    Ok(())
}

struct Node {
    rendezvous: Box<dyn RendezvousBackend>,
    /// Store of the round.
    round: Option<Arc<dyn Store>>,
}

impl Node {
    fn obey(&mut self, line: &str) -> Result<String, RendezvousError> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match command {
            "join" => self.join()?,
            "leave" => {
                self.rendezvous.leave()?;
                "left".to_owned()
            }
            "close" => {
                self.rendezvous.set_closed()?;
                "closed".to_owned()
            }
            "shutdown" if self.rendezvous.shutdown() => "shut down".to_owned(),
            "shutdown" => "failed to shut down".to_owned(),
            "waiting" => self.rendezvous.num_nodes_waiting()?.to_string(),
            "is-closed" => self.rendezvous.is_closed()?.to_string(),
            "fail" => {
                self.rendezvous.report_failure(rest)?;
                "reported".to_owned()
            }
            "set" | "get" => self.store(command, rest)?,
            _ => format!("failed: no command {command:?}"),
        })
    }

    fn join(&mut self) -> Result<String, RendezvousError> {
        let info = self.rendezvous.join(&JoiningAgent {
            role: "default".to_owned(),
            local_world_size: 1,
            share_store: true,
            master_port: None,
            lost: Vec::new(),
        })?;
        self.round = Some(Arc::clone(&info.store));
        Ok(format!(
            "joined {} {} {} {} {}",
            info.round, info.rank, info.world_size, info.master_addr, info.master_port
        ))
    }

    fn store(&self, command: &str, rest: &str) -> Result<String, RendezvousError> {
        let Some(store) = &self.round else {
            return Ok("failed: no round".to_owned());
        };
        match (command, rest.split_once(' ')) {
            ("set", Some((key, value))) => {
                store.set(key, value.as_bytes())?;
                Ok("set".to_owned())
            }
            ("get", None) => {
                let value = store.get(rest)?;
                Ok(format!("value {}", String::from_utf8_lossy(&value)))
            }
            _ => Ok("failed: set KEY VALUE, get KEY".to_owned()),
        }
    }
}

fn shown(change: &Change) -> String {
    match change {
        Change::Membership { round, reason } => format!("membership {round} {reason}"),
        Change::PeerFailed { node, reason } => format!("peer-failed {node} {reason}"),
        Change::Closed => "closed-by-other".to_owned(),
        Change::Lease { round, .. } => format!("lease {round}"),
        Change::LossesKnownWithin(within) => format!("losses-known {}", within.as_secs_f64()),
        Change::Lost(error) => format!("lost {error}"),
    }
}
