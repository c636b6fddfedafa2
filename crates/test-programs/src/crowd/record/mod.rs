//! Agents that join many runs, and a record of all their events.
//!
//! The agents join, join again, leave, close and succeed, and return to runs that are over. They
//! belong to groups, and each group plays one run after another. Each line of the record is an
//! event in the format of `rdzv_sim::history::lines`. The program ends with its standard input.

mod agent;
mod client;
mod recorder;

use std::error::Error;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use self::client::Client;
use self::recorder::Recorder;
use super::connected::{Crowd, LOOK, STDIN};
use super::deadlines::Deadlines;

/// Number of agents in a group.
const GROUP: usize = 5;

/// Time without a connection after which an agent may be regarded as lost.
/// The same holds for all agents if this process did not run for this time.
const LATE: Duration = Duration::from_secs(2);

pub(crate) fn run(
    endpoints: &str,
    file: &str,
    agents: usize,
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let stdin = EventData::new_u64(STDIN);
    epoll::add(&epoll, io::stdin(), stdin, EventFlags::IN)?;
    let mut crowd = Crowd::new(epoll, Instant::now());
    let mut recorder = Recorder::new(file, seed)?;
    let mut clients: Vec<Client> = (0..agents)
        .map(|index| Client::new(index as u64, index / GROUP, &endpoints, crowd.now().mono))
        .collect();
    let mut deadlines = Deadlines::default();
    for (index, client) in clients.iter().enumerate() {
        deadlines.set(index, Some(client.deadline()));
    }
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let mut looked = crowd.now().mono;
    loop {
        events.clear();
        match epoll::wait(&crowd.epoll, spare_capacity(&mut events), Some(&LOOK)) {
            // The process was stopped and continues.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let now = crowd.now().mono;
        if now.since(looked) > LATE {
            for client in &mut clients {
                client.is_late(&crowd, &mut recorder);
            }
        }
        looked = now;
        for event in &events {
            if event.data.u64() == STDIN {
                if io::stdin().read(&mut [0; 64])? == 0 {
                    return recorder.end();
                }
                continue;
            }
            let index = event.data.u64() as usize;
            clients[index].ready(&mut crowd, &mut recorder);
            deadlines.set(index, Some(clients[index].deadline()));
        }
        while let Some(index) = deadlines.due(now) {
            clients[index].tick(&mut crowd, &mut recorder);
            deadlines.set(index, Some(clients[index].deadline()));
        }
    }
}
