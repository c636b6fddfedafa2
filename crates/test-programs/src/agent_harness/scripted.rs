//! A rendezvous that does what a test says, over a Unix socket, one line each way:
//!
//! ```text
//! to the test      join · report ⟨reason⟩ · shutdown · leave
//! from the test    round ⟨number⟩ ⟨rank⟩ of ⟨agents⟩ [base ⟨rank⟩ of ⟨workers⟩]
//!                  gone ⟨the same⟩                              (a round whose store has ended)
//!                  not-needed · fail ⟨text⟩                      (these three answer a join)
//!                  changed ⟨round⟩ · peer-failed ⟨node⟩ ⟨reason⟩ · closed · lost ⟨text⟩
//! ```
//!
//! The agents of a round share nothing here, so a round of several without `base` never gets its
//! ranks, and the exit barrier of one is passed by nobody.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank};
use rdzv_rendezvous::{
    BackendConstructor, Change, Interrupter, Member, Observer, RendezvousBackend, RendezvousError,
    RendezvousInfo, RendezvousParameters,
};
use rdzv_store::{HashStore, ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};

/// For a registry.
pub(crate) fn constructor() -> BackendConstructor {
    Arc::new(|parameters| Ok(Box::new(Scripted::connect(parameters)?)))
}

struct Scripted {
    run_id: RunId,
    stream: UnixStream,
    answers: Receiver<String>,
    /// For the interrupter.
    answer: Arc<Mutex<Sender<String>>>,
    observer: Arc<OnceLock<Observer>>,
}

impl Scripted {
    fn connect(parameters: &RendezvousParameters) -> Result<Self, RendezvousError> {
        let stream = UnixStream::connect(&parameters.endpoint)
            .map_err(|error| RendezvousError::Argument(error.to_string()))?;
        let lines = BufReader::new(stream.try_clone().expect("a socket can be cloned")).lines();
        let (sender, answers) = channel();
        let observer: Arc<OnceLock<Observer>> = Arc::default();
        let told = Arc::clone(&observer);
        let answer = Arc::new(Mutex::new(sender.clone()));
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match change(&line) {
                    Some(change) => told.get().expect("set before the first join")(change),
                    None => sender.send(line).unwrap_or_default(),
                }
            }
        });
        Ok(Self {
            run_id: RunId::new(&parameters.run_id),
            stream,
            answers,
            answer,
            observer,
        })
    }

    fn say(&mut self, line: &str) {
        let _ = writeln!(self.stream, "{line}");
    }
}

fn change(line: &str) -> Option<Change> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    Some(match name {
        "changed" => Change::Membership {
            round: rest.parse().expect("a number"),
            reason: "node b came".to_owned(),
        },
        "peer-failed" => {
            let (node, reason) = rest.split_once(' ').expect("node and reason");
            Change::PeerFailed {
                node: node.to_owned(),
                reason: reason.to_owned(),
            }
        }
        "closed" => Change::Closed,
        "lost" => Change::Lost(RendezvousError::Argument(rest.to_owned())),
        _ => return None,
    })
}

/// A client whose server was there when it connected.
fn store_of_ended_server() -> Arc<dyn Store> {
    let server = TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        ..ServerOptions::default()
    });
    let server = server.expect("loopback is there");
    let client = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", server.port()));
    Arc::new(client.expect("its server is there"))
}

impl RendezvousBackend for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn run_id(&self) -> &RunId {
        &self.run_id
    }

    fn join(&mut self, _: &Member) -> Result<RendezvousInfo, RendezvousError> {
        self.say("join");
        let answer = self.answers.recv().expect("the socket's thread lives");
        let (store, answer) = match answer.strip_prefix("gone ") {
            Some(rest) => (store_of_ended_server(), rest.to_owned()),
            None => (Arc::new(HashStore::new()) as Arc<dyn Store>, answer),
        };
        let words: Vec<&str> = answer.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().expect("a number");
        match words[0] {
            "round" => Ok(RendezvousInfo {
                round: number(1).into(),
                store,
                rank: GroupRank(number(2)),
                world_size: number(4),
                assignment: words
                    .get(5)
                    .map(|_| Assignment::from((number(6), number(8), number(6), number(8)))),
                master_addr: "10.0.0.9".to_owned(),
                master_port: 4000,
                server: None,
                reserved_port: None,
            }),
            "interrupted" => Err(RendezvousError::Interrupted),
            "not-needed" => Err(RendezvousError::NotNeeded {
                run_id: self.run_id.to_string(),
            }),
            "panic" => panic!("as the test wants it"),
            _ => Err(RendezvousError::Argument(answer)),
        }
    }

    fn interrupter(&self) -> Option<Interrupter> {
        let answer = Arc::clone(&self.answer);
        Some(Arc::new(move || {
            let answer = answer.lock().expect("nobody panics with it");
            answer.send("interrupted".to_owned()).unwrap_or_default();
        }))
    }

    fn set_observer(&mut self, observer: Observer) {
        assert!(self.observer.set(observer).is_ok(), "set once");
    }

    fn shares_store_with_workers(&self) -> bool {
        false
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(false)
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        Ok(0)
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        self.say(&format!("report {reason}"));
        Ok(())
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        self.say("leave");
        Ok(())
    }

    fn shutdown(&mut self) -> bool {
        self.say("shutdown");
        true
    }
}
