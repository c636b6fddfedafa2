//! Agents as in programs: one backend each, all in one runtime.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::ident::RunId;
use rdzv_rendezvous::dynamic::native::{Native, NativeOptions};
use rdzv_rendezvous::{JoiningAgent, Onlookers, RendezvousBackend};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{StorePolicy, TcpStore, TcpStoreOptions};

use crate::crowd::{Figures, check_ranks};

const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(
    address: SocketAddr,
    run_id: &str,
    agents: u32,
) -> Result<Figures, Box<dyn std::error::Error>> {
    let host = address.ip().to_string();
    let store = TcpStore::connect(TcpStoreOptions::new(host, address.port()))?;
    let store = Arc::new(store);
    let began = Instant::now();
    let mut crowd = Vec::new();
    for agent in 0..agents {
        let options = NativeOptions {
            policy: StorePolicy::default(),
            store: Arc::clone(&store),
            run_id: RunId::new(run_id),
            settings: Settings::new(agents, agents),
            node: NodeDesc {
                addr: "127.0.0.1".to_owned(),
                pid: i64::from(std::process::id()),
                local_id: i64::from(agent),
            },
            program: None,
            kept: None,
            ends_workers: false,
            voters: None,
            candidate: None,
            onlookers: Onlookers::default(),
        };
        let met = Native::connect(options, TIMEOUT)?;
        crowd.push(met.coordinator().ok_or("there is no host")?);
    }
    let connected = began.elapsed();
    let start = Arc::new(Barrier::new(crowd.len() + 1));
    let threads: Vec<_> = crowd
        .into_iter()
        .map(|mut agent| {
            let start = Arc::clone(&start);
            thread::spawn(move || {
                start.wait();
                let joined = agent.join(&JoiningAgent {
                    role: "default".to_owned(),
                    local_world_size: 8,
                    share_store: true,
                    master_port: None,
                    lost: Vec::new(),
                });
                // The agent is kept alive: an agent that leaves would have to be replaced.
                (agent, joined)
            })
        })
        .collect();
    start.wait();
    let began = Instant::now();
    let mut crowd = Vec::new();
    for thread in threads {
        crowd.push(thread.join().map_err(|_| "an agent's thread panicked")?);
    }
    let joined = began.elapsed();
    let ranks: Result<Vec<u32>, _> = crowd
        .iter_mut()
        .map(|(_, joined)| match joined {
            Ok(info) => Ok(info.rank.0),
            Err(error) => Err(error.to_string()),
        })
        .collect();
    check_ranks(ranks?)?;
    Ok(Figures { connected, joined })
}
