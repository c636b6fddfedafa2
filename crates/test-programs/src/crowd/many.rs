//! More agents than threads: state machines over the sockets of one thread.
//!
//! Rank 0 publishes an address at which the workers would meet, and hosts no store there.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER};
use rdzv_rendezvous_proto::native_client::{Input, NativeClient, Output};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store_proto::wire::request;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::crowd::{Figures, check_ranks};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Agent {
    client: NativeClient,
    stream: TcpStream,
    rank: Option<u32>,
}

pub(crate) fn run(
    address: SocketAddr,
    run_id: &str,
    agents: u32,
) -> Result<Figures, Box<dyn std::error::Error>> {
    let origin = Instant::now();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut crowd = Vec::new();
    for number in 0..agents {
        let agent = Agent::connect(address, run_id, number, agents, now(origin))?;
        let token = EventData::new_u64(u64::from(number));
        epoll::add(&epoll, &agent.stream, token, EventFlags::IN)?;
        crowd.push(agent);
    }
    let connected = origin.elapsed();
    let began = Instant::now();
    for agent in &mut crowd {
        let join = Input::Join {
            role: "default",
            local_world_size: 8,
            lost: &[],
        };
        agent.handle(now(origin), join)?;
    }
    let mut missing = crowd.iter().filter(|agent| agent.rank.is_none()).count();
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let mut scratch = vec![0; 16 << 10];
    let tenth = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    while missing > 0 {
        if began.elapsed() > TIMEOUT {
            return Err(format!("{missing} of {agents} agents hold no rank").into());
        }
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&tenth))?;
        if events.is_empty() {
            let now = now(origin);
            for agent in &mut crowd {
                if agent.client.deadline().is_some_and(|at| at <= now.mono) {
                    agent.handle(now, Input::Tick)?;
                }
            }
        }
        for event in &events {
            let agent = &mut crowd[event.data.u64() as usize];
            let had = agent.rank.is_some();
            let count = agent.stream.read(&mut scratch)?;
            if count == 0 {
                return Err("the host closed a connection".into());
            }
            agent.handle(now(origin), Input::Bytes(&scratch[..count]))?;
            missing -= usize::from(!had && agent.rank.is_some());
        }
    }
    let joined = began.elapsed();
    check_ranks(crowd.iter().filter_map(|agent| agent.rank).collect())?;
    Ok(Figures { connected, joined })
}

fn now(origin: Instant) -> Now {
    Now::at(Mono::from_origin(origin.elapsed()))
}

impl Agent {
    fn connect(
        address: SocketAddr,
        run_id: &str,
        number: u32,
        agents: u32,
        now: Now,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut greeting = Vec::new();
        request::preamble(&mut greeting, PROBE);
        stream.write_all(&greeting)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        if u32::from_le_bytes(answer) != PROBE_ANSWER {
            return Err("there is no host".into());
        }
        let node = NodeDesc::new(format!("node-{number:05}"), 1);
        let settings = Settings::new(agents, agents);
        let instance = u64::from(number) + 1;
        Ok(Self {
            client: NativeClient::new(now, instance, run_id, node, settings),
            stream,
            rank: None,
        })
    }

    fn handle(&mut self, now: Now, input: Input<'_>) -> Result<(), Box<dyn std::error::Error>> {
        self.client.handle(now, input);
        let mut lead = None;
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Send(bytes) => self.stream.write_all(&bytes)?,
                Output::Lead { round } => lead = Some(round),
                Output::Joined(joined) => self.rank = Some(joined.rank),
                other => return Err(format!("an agent wants {other:?}").into()),
            }
        }
        match lead {
            Some(round) => self.handle(
                now,
                Input::Publish {
                    round,
                    addr: "node-00000",
                    port: 29500,
                },
            ),
            None => Ok(()),
        }
    }
}
