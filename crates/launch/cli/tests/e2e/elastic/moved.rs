//! Tests of stores behind an address that forwards to them.
//!
//! The next store cannot know whether the previous store has exited.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Gate, RendezvousPoint, await_each, kill_node, store, store_with};

/// Address that forwards to a server; a test can replace the server.
struct Service {
    point: RendezvousPoint,
    server: Arc<Mutex<String>>,
}

impl Service {
    fn of(server: &RendezvousPoint) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let server = Arc::new(Mutex::new(server.endpoint.clone()));
        let now = Arc::clone(&server);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = now.lock().unwrap().clone();
                if let Ok(server) = TcpStream::connect(server) {
                    pass_on(&client, &server);
                    pass_on(&server, &client);
                }
            }
        });
        let store = None;
        Self {
            point: RendezvousPoint { endpoint, store },
            server,
        }
    }

    fn stands_for(&self, server: &RendezvousPoint) {
        self.server.lock().unwrap().clone_from(&server.endpoint);
    }
}

fn pass_on(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        for stream in [from, to] {
            // The other thread may have closed the connection.
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

#[test]
fn a_round_waits_for_the_word_that_the_store_at_another_address_has_ended() {
    let first = store();
    let service = Service::of(&first);
    let (gate, flags) = (Gate::new(), ["--nnodes=2"]);
    let nodes = [1, 2].map(|_| service.point.node(&flags, &gate.script()).start());
    await_each(&nodes, "round 0\n", 1);
    kill_node(first.store.unwrap());
    let second = store();
    service.stands_for(&second);
    let said = format!(
        "the coordinator of round 0 was at {}, which is not an address of this process, and may \
         still be running; 2 of 2 nodes have connected here",
        service.point.endpoint
    );
    let store = second.store.unwrap();
    store.stderr.await_text(&said, 1);
    for node in &nodes {
        let said = "cannot tell whether the previous coordinator (at ";
        node.stderr.await_text(said, 1);
    }
    kill_node(store);
    let third = store_with(&["--recover"]);
    service.stands_for(&third);
    for ended in gate.finish(nodes) {
        // The worker printed one line, so it was not restarted.
        assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    }
    third.end();
}
