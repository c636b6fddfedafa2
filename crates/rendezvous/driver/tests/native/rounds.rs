//! Formation of rounds, and their contents.

use std::sync::mpsc;
use std::time::Instant;

use rdzv_core::rank::Assignment;
use rdzv_rendezvous_proto::codec;
use rdzv_store::Store as _;

use crate::agents::{Agent, LONG, connect, host, join_all, settings};

#[test]
fn two_hundred_agents_get_their_ranks_their_master_and_their_workers_ranks() {
    let server = host();
    let before = Instant::now();
    let agents = (0..200)
        .map(|number| Agent::new(server.local_addr(), number, settings(200, 200)))
        .collect();
    let joined = join_all(agents);
    println!("200 agents: {:?}", before.elapsed());
    let (_, first) = &joined[0];
    assert!(first.server.is_some());
    for (rank, (_, info)) in (0..).zip(&joined) {
        assert_eq!((info.rank.0, info.world_size, info.round), (rank, 200, 0));
        assert_eq!(info.master_addr, "127.0.0.1");
        assert_eq!(info.master_port, first.master_port);
        let assignment = Assignment::from((2 * rank, 400, 2 * rank, 400));
        assert_eq!(info.assignment, Some(assignment));
    }
    // Greeting, join, endpoint of the workers' store, and a check for the store of another
    // run. The number for each agent must not grow with the number of agents.
    let requests = server.stats().requests;
    assert!(requests <= 200 * 5, "{requests} requests");
}

#[test]
fn a_torchrun_reader_sees_the_state_and_the_workers_store() {
    let server = host();
    let agents = (0..2).map(|number| Agent::new(server.local_addr(), number, settings(2, 2)));
    let joined = join_all(agents.collect());
    let reader = connect(server.local_addr());
    let value = reader.get("torch.rendezvous.run").unwrap();
    let state = codec::from_value(&value).unwrap().unwrap();
    assert!(state.complete && !state.closed);
    assert_eq!(state.participants.values().collect::<Vec<_>>(), [&0, &1]);
    assert_eq!(state.last_heartbeats.len(), 2);
    let port = reader.get("torch.rendezvous.run.0/MASTER_PORT").unwrap();
    assert_eq!(port, joined[1].1.master_port.to_string());
}

#[test]
fn a_different_number_of_nodes_is_named() {
    let server = host();
    // Either agent may come first; the other one is refused.
    let (sender, ends) = mpsc::channel();
    let mut joining = Vec::new();
    for (number, most) in [(0, 2), (1, 3)] {
        let mut agent = Agent::new(server.local_addr(), number, settings(2, most));
        let ends = sender.clone();
        joining.push(std::thread::spawn(move || {
            let joined = agent.join();
            ends.send((most, joined.map(|info| info.rank.0))).unwrap();
            agent
        }));
    }
    let (refused, joined) = ends.recv_timeout(LONG).unwrap();
    let (error, first) = (joined.unwrap_err().to_string(), 5 - refused);
    assert!(
        error.contains(&format!("--nnodes 2:{refused}")) && error.contains(&format!("2:{first}")),
        "{error}"
    );
    let mut third = Agent::new(server.local_addr(), 2, settings(2, first));
    assert_eq!(third.join().unwrap().rank.0, 1);
    assert_eq!(ends.recv_timeout(LONG).unwrap().1.unwrap(), 0);
    for agent in joining {
        agent.join().unwrap();
    }
}
