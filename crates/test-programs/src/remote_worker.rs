//! A worker on a host of its own: the programs of `tests/remote/`.
//!
//! ```text
//! remote_worker store <address>                                        a store, until its input ends
//! remote_worker worker <store> <address> <name> <rank> <world size> <heartbeat limit in s>
//!                      [<certificate> <key> <authority>]
//! ```
//!
//! A world size of 0 is a dynamic group. With certificates it uses TLS. A worker does what its input says, a line each, and says what
//! came of it: `echo NAME`, `stall NAME COUNT`, `more NAME COUNT`, `hold NAME`, `send NAME
//! BYTES`, `members COUNT`, `peers`.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::Identity;
use rdzv_rpc::transport::TransportOptions;
use rdzv_rpc::{
    CallContext, Method, Methods, RRef, ReferenceSettings, RpcAgent, RpcError, RpcFuture,
    RpcOptions, Tensor, Timeout,
};
use rdzv_rpc_proto::tensor::DataType;
use rdzv_store::{ServerOptions, TcpStore, TcpStoreOptions, TcpStoreServer};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Answers at once.
const ECHO: Method<(), ()> = Method::new("remote.echo");
/// Never answers.
const STALL: Method<(), ()> = Method::new("remote.stall");
/// Answers when so many calls stall at this worker.
const STALLED: Method<usize, ()> = Method::new("remote.stalled");
/// Makes a value that says when it is dropped.
const MAKE: Method<(), Value> = Method::new("remote.make");
/// Answers with the number of bytes.
const TAKE: Method<Tensor, usize> = Method::new("remote.take");

/// Longer than the heartbeat limit where there is a dynamic group.
const LEASE: Duration = Duration::from_secs(6);

/// How long a user of a value may be out of reach.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
struct Value {
    /// Copies are not.
    #[serde(skip)]
    is_made_here: bool,
}

impl Drop for Value {
    fn drop(&mut self) {
        if self.is_made_here {
            println!("dropped");
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["store", address] => {
            let server = TcpStoreServer::start(ServerOptions {
                host: Some(address.to_owned()),
                port: 0,
                ..ServerOptions::default()
            })?;
            println!("{address}:{}", server.port());
            for line in std::io::stdin().lines() {
                line?;
            }
            Ok(())
        }
        [
            "worker",
            store,
            address,
            name,
            rank,
            world_size,
            limit,
            ref files @ ..,
        ] => {
            let store: SocketAddr = store.parse()?;
            let host = store.ip().to_string();
            let store = TcpStore::connect(TcpStoreOptions::new(&host, store.port()))?;
            let world_size = Some(world_size.parse()?).filter(|size| *size > 0);
            let options = RpcOptions {
                address: Some(address.parse()?),
                heartbeat_limit: Duration::from_secs_f64(limit.parse()?),
                transport: TransportOptions {
                    tls: identity(files)?,
                    ..TransportOptions::default()
                },
                ..options()
            };
            let builder = RpcAgent::builder(name)
                .rank(rank.parse()?)
                .world_size(world_size);
            let builder = builder.store(Arc::new(store)).methods(methods());
            let agent = builder.options(options).connect()?;
            println!("ready");
            obey(&agent)
        }
        _ => Err("usage: see the head of this program's source".into()),
    }
}

/// What the worker shows to its peers, if it shows anything.
fn identity(files: &[&str]) -> Result<Option<Arc<Identity>>, Box<dyn Error>> {
    match files.iter().map(Path::new).collect::<Vec<_>>()[..] {
        [] => Ok(None),
        [certificate, key, authority] => {
            let identity = Identity::from_files(certificate, key, authority)?;
            Ok(Some(Arc::new(identity)))
        }
        _ => Err("certificates are three files: the certificate, its key and the authority".into()),
    }
}

fn options() -> RpcOptions {
    RpcOptions {
        init_deadline: Duration::from_secs(20),
        lease: LEASE,
        // No call of a test ends because of its own time.
        timeout: Timeout::Never,
        references: ReferenceSettings {
            grace: GRACE,
            ..ReferenceSettings::default()
        },
        ..RpcOptions::default()
    }
}

fn obey(agent: &RpcAgent) -> Result<(), Box<dyn Error>> {
    let mut held: Vec<RRef<Value>> = Vec::new();
    for line in BufReader::new(std::io::stdin()).lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["echo", name] => say("echo", agent.call(name, ECHO, &()), Instant::now()),
            ["stall", name, count] => {
                let count = count.parse()?;
                let begun = Instant::now();
                let calls: Vec<_> = (0..count).map(|_| agent.call(name, STALL, &())).collect();
                agent.call(name, STALLED, &count).wait()?;
                println!("stalling");
                for call in calls {
                    say("stall", call, begun);
                }
            }
            // Nobody waits until they have come.
            ["more", name, count] => {
                for _ in 0..count.parse()? {
                    say("more", agent.call(name, STALL, &()), Instant::now());
                }
            }
            ["hold", name] => {
                let reference = agent.remote(name, MAKE, &())?;
                reference.to_here(Timeout::Never)?;
                held.push(reference);
                println!("holding");
            }
            ["send", name, bytes] => {
                let bytes = vec![7; bytes.parse()?];
                let length = bytes.len();
                let tensor = Tensor::from_vec::<u8>(bytes, &[length])?;
                say("send", agent.call(name, TAKE, &tensor), Instant::now());
            }
            ["members", count] => {
                let count: usize = count.parse()?;
                agent.wait_for_group(|group| group.len() == count, Duration::from_secs(20))?;
                println!("{count} members");
            }
            ["peers"] => {
                let peers = agent.traffic().peers;
                let peers: Vec<_> = peers
                    .iter()
                    .map(|peer| format!("{} by {}", peer.worker.name, peer.transport))
                    .collect();
                println!("peers: {}", peers.join(", "));
            }
            _ => return Err(format!("what is {line}?").into()),
        }
    }
    Ok(())
}

/// Says what a call ends with, when it does.
fn say<T: Send + 'static>(what: &'static str, call: RpcFuture<T>, begun: Instant) {
    thread::spawn(move || {
        let ended = call.wait();
        let after = begun.elapsed().as_millis();
        match ended {
            Ok(_) => println!("{what} ok after {after} ms"),
            Err(error) => println!("{what} {:?} after {after} ms: {error}", error.kind),
        }
    });
}

fn methods() -> Methods {
    let stalling = watch::Sender::new(0);
    let watched = stalling.subscribe();
    Methods::new()
        .with(ECHO, async |()| Ok::<_, RpcError>(()))
        .with(STALL, move |context: CallContext, ()| {
            stalling.send_modify(|stalling| *stalling += 1);
            async move {
                context.cancellation().cancelled().await;
                println!("cancelled");
                Ok::<_, RpcError>(())
            }
        })
        .with(STALLED, move |calls: usize| {
            let mut watched = watched.clone();
            async move {
                let there = watched.wait_for(|stalling| *stalling >= calls).await;
                there.map(drop)
            }
        })
        .with(MAKE, async |()| {
            let is_made_here = true;
            Ok::<_, RpcError>(Value { is_made_here })
        })
        .with(TAKE, async |tensor: Tensor| {
            assert_eq!(tensor.data_type(), DataType::U8);
            Ok::<_, RpcError>(tensor.shape()[0])
        })
}
