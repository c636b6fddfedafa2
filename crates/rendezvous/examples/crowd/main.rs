//! A crowd of native agents in one process, each with a connection of its own, driven by one thread:
//! how long a round of very many takes, and what it costs.
//!
//! Usage: `crowd HOST:PORT AGENTS [ROUNDS]`, with a numeric address of a store server that hosts
//! rendezvous (`rdzv store`). For each round one line: the time until every agent holds its rank, the
//! ranks of its workers and where those meet; operations and bytes per agent, greeting included.
//! After each round one agent joins again, so that all others have to follow.

mod agent;

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdzv_core::rendezvous::native_client::Input;
use rdzv_core::time::Mono;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use agent::Agent;

/// Longer than a round takes that works.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, agents, more @ ..] = &arguments[..] else {
        return Err("usage: crowd HOST:PORT AGENTS [ROUNDS]".into());
    };
    let rounds: u64 = more.first().map_or(Ok(1), |rounds| rounds.parse())?;
    raise_open_files_limit()?;
    let mut crowd = Crowd::connect(address.parse()?, agents.parse()?)?;
    for round in 0..rounds {
        crowd.report(round)?;
        if round + 1 < rounds {
            crowd.begin_next();
        }
    }
    Ok(())
}

struct Crowd {
    epoll: rustix::fd::OwnedFd,
    agents: Vec<Agent>,
    /// Since when the round is being formed.
    begun: Instant,
    origin: Instant,
}

impl Crowd {
    /// Connects all, who begin to join with their first bytes.
    fn connect(address: SocketAddr, count: u32) -> Result<Self, Box<dyn Error>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let begun = Instant::now();
        let run = format!("crowd-{}", std::process::id());
        let mut agents = Vec::with_capacity(count as usize);
        for number in 0..count {
            let agent = Agent::connect(address, &run, number, count)?;
            let token = EventData::new_u64(u64::from(number));
            epoll::add(&epoll, agent.stream(), token, EventFlags::IN)?;
            agents.push(agent);
        }
        Ok(Self {
            epoll,
            agents,
            begun,
            origin: begun,
        })
    }

    /// One agent joins again.
    fn begin_next(&mut self) {
        self.begun = Instant::now();
        let now = self.now();
        for agent in &mut self.agents {
            agent.forget_round();
        }
        self.agents[0].join(now);
    }

    /// Waits until all have joined a round, and says what that took.
    fn report(&mut self, round: u64) -> Result<(), Box<dyn Error>> {
        let mut events: Vec<Event> = Vec::with_capacity(1024);
        let mut missing = self.agents.len();
        while missing > 0 {
            if self.begun.elapsed() > LIMIT {
                return Err(format!("{missing} agents have no rank after {LIMIT:?}").into());
            }
            events.clear();
            let timeout = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.epoll, spare, Some(&timeout))?;
            let now = self.now();
            for event in &events {
                let agent = &mut self.agents[event.data.u64() as usize];
                let before = agent.is_in_round(round);
                agent.read(now)?;
                if !before && agent.is_in_round(round) {
                    missing -= 1;
                }
            }
            for agent in &mut self.agents {
                if agent.is_due(now) {
                    agent.handle(now, Input::Tick);
                }
            }
        }
        let elapsed = self.begun.elapsed();
        let count = self.agents.len() as u64;
        let operations: u64 = self.agents.iter().map(|agent| agent.operations).sum();
        let bytes: u64 = self.agents.iter().map(|agent| agent.bytes).sum();
        println!(
            "round {round}: {count} agents in {:.3} s, {:.2} operations and {} bytes each",
            elapsed.as_secs_f64(),
            operations as f64 / count as f64,
            bytes / count
        );
        for agent in &mut self.agents {
            (agent.operations, agent.bytes) = (0, 0);
        }
        Ok(())
    }

    fn now(&self) -> Mono {
        Mono::from_origin(self.origin.elapsed())
    }
}

fn raise_open_files_limit() -> rustix::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )
}
