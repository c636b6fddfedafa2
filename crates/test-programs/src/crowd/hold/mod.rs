//! Agents that hold a round while their coordinator dies.
//!
//! Each agent finds the next coordinator, reattaches, and joins again when its round is over. All
//! agents are state machines over the sockets of one thread, and rank 0 hosts no store.
//!
//! Each fact is a line of JSON with its name, its number, and the time in nanoseconds since the
//! epoch:
//!
//! | fact | number | when |
//! |---|---|---|
//! | `joined` | the round | all agents have joined it |
//! | `detached` | | the first agent loses its coordinator, or has none yet |
//! | `attached` | returns of all agents | no agent lacks a coordinator any more |
//! | `fenced` | expired agents | the lease of an agent that holds a round has ended |
//!
//! A line on standard input makes the last agent join again. The program ends with its standard
//! input.

mod agent;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdzv_rendezvous_proto::{FencePolicy, Settings};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use self::agent::Agent;
use crate::crowd::connected::{Crowd, LOOK, STDIN};
use crate::crowd::deadlines::Deadlines;

/// Runs the agents.
///
/// `endpoints` is a list, separated by commas. `nodes` is the number of nodes of the whole job, and
/// `fence` the node timeout in milliseconds (0: no fence, and the default timeout).
pub(crate) fn run(
    endpoints: &str,
    run_id: &str,
    agents: u32,
    nodes: u32,
    fence: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut settings = Settings::new(nodes, nodes);
    if fence > 0 {
        settings.fence = FencePolicy::Auto;
        settings.node_timeout = Duration::from_millis(fence);
    }
    let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        io::stdin(),
        EventData::new_u64(STDIN),
        EventFlags::IN,
    )?;
    let mut crowd = Crowd::new(epoll, Instant::now());
    let mut all: Vec<Agent> = (0..agents)
        .map(|number| Agent::new(number, &endpoints, run_id, settings, crowd.now()))
        .collect();
    for agent in &mut all {
        agent.begin(&mut crowd);
    }
    let mut facts = Facts::default();
    let mut deadlines = Deadlines::default();
    for (index, agent) in all.iter().enumerate() {
        deadlines.set(index, agent.deadline());
    }
    let mut events: Vec<Event> = Vec::with_capacity(256);
    loop {
        events.clear();
        epoll::wait(&crowd.epoll, spare_capacity(&mut events), Some(&LOOK))?;
        for event in &events {
            let token = event.data.u64();
            let index = if token == STDIN {
                let mut line = [0; 64];
                if io::stdin().read(&mut line)? == 0 {
                    return Ok(());
                }
                all.len() - 1
            } else {
                token as usize
            };
            let agent = &mut all[index];
            match token {
                STDIN => agent.join_again(&mut crowd),
                _ => agent.ready(&mut crowd),
            }
            facts.look(index, agent, agents as usize);
            deadlines.set(index, agent.deadline());
        }
        if events.len() == events.capacity() {
            // An agent on a separate machine would have read its answer in time.
            continue;
        }
        let now = crowd.now().mono;
        while let Some(index) = deadlines.due(now) {
            let agent = &mut all[index];
            agent.tick(&mut crowd);
            facts.look(index, agent, agents as usize);
            deadlines.set(index, agent.deadline());
        }
    }
}

/// Facts that were printed, and the data that they follow from.
#[derive(Default)]
struct Facts {
    rounds: BTreeMap<u64, BTreeSet<usize>>,
    away: BTreeSet<usize>,
    returns: u64,
    fenced: BTreeSet<(u64, usize)>,
}

impl Facts {
    /// Checks an agent after an event.
    fn look(&mut self, index: usize, agent: &mut Agent, all: usize) {
        if let Some(round) = agent.round {
            let inside = self.rounds.entry(round).or_default();
            if inside.insert(index) && inside.len() == all {
                tell("joined", round);
            }
            if agent.is_fenced() && self.fenced.insert((round, index)) {
                tell("fenced", self.fenced.len() as u64);
            }
        }
        let was_complete = self.away.is_empty();
        if agent.is_away() {
            self.away.insert(index);
        } else {
            self.returns += u64::from(self.away.remove(&index));
        }
        match (was_complete, self.away.is_empty()) {
            (true, false) => tell("detached", 0),
            (false, true) => tell("attached", self.returns),
            _ => {}
        }
    }
}

fn tell(fact: &str, number: u64) {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH);
    let at = elapsed.map_or(0, |elapsed| elapsed.as_nanos());
    println!("{{\"fact\":\"{fact}\",\"number\":{number},\"at\":{at}}}");
}
