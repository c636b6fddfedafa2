//! Processes of a scenario (`rpc_scenario`), and the store in which they meet.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdzv_core::env::{MASTER_ADDR, MASTER_PORT, RANK, TORCHELASTIC_USE_AGENT_STORE, WORLD_SIZE};
use rdzv_rpc::{RemoteError, RpcAgent, RpcErrorKind, RpcOptions};
use rdzv_store::{ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::{NoLine, Process};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

/// Time limit of a scenario.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const HERE: &str = "127.0.0.1";

/// One scenario, with a separate store.
pub(crate) struct Scenario {
    begun: Instant,
    server: TcpStoreServer,
}

/// Data of an error that a worker reports.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: RpcErrorKind,
    pub(crate) worker: Option<String>,
    pub(crate) message: String,
    pub(crate) text: String,
    pub(crate) remote: Option<Box<RemoteError>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(Value),
    Error(Failure),
}

impl Scenario {
    pub(crate) fn new() -> Self {
        let options = ServerOptions {
            host: Some(HERE.to_owned()),
            ..ServerOptions::default()
        };
        // The time limit of a scenario does not include the build of the program.
        rdzv_testing::program("rpc_scenario");
        Self {
            begun: Instant::now(),
            server: TcpStoreServer::start(options).unwrap(),
        }
    }

    /// Starts a process, not yet a worker, as a launcher that hosts the store does.
    pub(crate) fn start(&self, name: &str, rank: u32) -> Worker {
        let hosted = (TORCHELASTIC_USE_AGENT_STORE, "True");
        self.start_at(self.server.port(), name, rank, &[hosted])
    }

    /// Starts a process with the store at this port and with these variables.
    pub(crate) fn start_at(
        &self,
        port: u16,
        name: &str,
        rank: u32,
        more: &[(&str, &str)],
    ) -> Worker {
        let mut command = Command::new(rdzv_testing::program("rpc_scenario"));
        command
            .env_remove(TORCHELASTIC_USE_AGENT_STORE)
            .envs(more.iter().copied());
        Worker {
            begun: self.begun,
            ..Worker::start(command, HERE, port, name, rank)
        }
    }

    /// Starts processes with these names and the ranks from 0, not yet workers.
    pub(crate) fn started<const N: usize>(&self, names: [&str; N]) -> [Worker; N] {
        let mut ranks = 0..;
        names.map(|name| self.start(name, ranks.next().unwrap()))
    }

    /// Forms a static group of these processes; all get the arguments in `init`.
    pub(crate) fn formed<const N: usize>(&self, names: [&str; N], init: &Value) -> [Worker; N] {
        let workers = self.started(names);
        for worker in &workers {
            worker.begin_init(&with(init, &json!({ "world_size": N })));
        }
        for worker in &workers {
            worker.succeeds();
        }
        workers
    }

    /// Starts a new member of the dynamic group.
    pub(crate) fn joined(&self, name: &str, rank: u32) -> Worker {
        let worker = self.start(name, rank);
        worker.init(&json!({})).unwrap();
        worker
    }

    /// Creates an agent of this process.
    pub(crate) fn agent(
        &self,
        name: &str,
        rank: u32,
        world_size: Option<u32>,
        options: RpcOptions,
    ) -> RpcAgent {
        let builder = RpcAgent::builder(name).rank(rank).world_size(world_size);
        let builder = builder.store(Arc::new(self.store()));
        builder.options(options).connect().unwrap()
    }

    /// Returns a client of the store.
    pub(crate) fn store(&self) -> TcpStore {
        TcpStore::connect(TcpStoreOptions::new(HERE, self.server.port())).unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port()
    }

    /// Returns the keys in the store.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.store().list_keys().unwrap()
    }

    /// Waits until the worker of this rank waits for the end of the first group.
    pub(crate) fn sees_the_end_of(&self, rank: u32) {
        let left = LIMIT.saturating_sub(self.begun.elapsed());
        let key = format!("rdzv/rpc/1/drained/{rank}");
        self.store().wait(&[&key], Some(left)).unwrap();
    }
}

/// Returns an object with additional keys.
fn with(object: &Value, more: &Value) -> Value {
    let mut all = object.as_object().unwrap().clone();
    let more = more.as_object().unwrap().iter();
    all.extend(more.map(|(key, value)| (key.clone(), value.clone())));
    Value::Object(all)
}

/// A process that is killed on drop.
pub(crate) struct Worker {
    pub(crate) name: String,
    process: Process,
    /// Commands that the process has not answered yet.
    asked: Mutex<VecDeque<String>>,
    begun: Instant,
}

impl Worker {
    /// Starts `rpc_scenario` with a store at `host:port`, not yet a worker.
    pub(crate) fn start(
        mut command: Command,
        host: &str,
        port: u16,
        name: &str,
        rank: u32,
    ) -> Self {
        command
            .env(MASTER_ADDR, host)
            .env(MASTER_PORT, port.to_string())
            .env(RANK, rank.to_string())
            // World size of the job. Each worker specifies the size of its group itself.
            .env(WORLD_SIZE, "4")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self {
            name: name.to_owned(),
            process: Process::start(&mut command),
            asked: Mutex::default(),
            begun: Instant::now(),
        }
    }

    /// Sends a command without waiting for its answer.
    pub(crate) fn tell(&self, command: &Value) {
        let line = command.to_string();
        self.process.send(&line);
        self.asked.lock().unwrap().push_back(line);
    }

    /// Waits for the answer to the oldest open command.
    pub(crate) fn answer(&self) -> Result<Value, Failure> {
        let asked = self.asked.lock().unwrap().pop_front().unwrap();
        let left = LIMIT.saturating_sub(self.begun.elapsed());
        let line = self
            .process
            .stdout
            .line_within(left)
            .unwrap_or_else(|error| {
                let name = &self.name;
                match error {
                    NoLine::Timeout => panic!(
                        "the scenario has taken {:?}; it waits for {name} to answer {asked}",
                        self.begun.elapsed()
                    ),
                    NoLine::End => {
                        panic!("{name} has ended instead of answering {asked}")
                    }
                }
            });
        match serde_json::from_str(&line).unwrap() {
            Answer::Ok(value) => Ok(value),
            Answer::Error(failure) => Err(failure),
        }
    }

    /// `true` if the process has not answered yet.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent_for(Duration::ZERO)
    }

    /// `true` if the process sends no answer for this time.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        self.process.stdout.line_within(time) == Err(NoLine::Timeout)
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&self, command: &Value) -> Result<Value, Failure> {
        self.tell(command);
        self.answer()
    }

    /// Waits for the answer to the oldest open command, which must succeed.
    pub(crate) fn succeeds(&self) -> Value {
        let asked = self.asked.lock().unwrap().front().cloned();
        let answer = self.answer();
        answer.unwrap_or_else(|failure| panic!("{} on {asked:?}: {failure:?}", self.name))
    }

    /// Sends a command and returns its result, which must be no error.
    pub(crate) fn does(&self, command: &Value) -> Value {
        self.tell(command);
        self.succeeds()
    }

    /// Sends a command and returns its error.
    pub(crate) fn refuses(&self, command: &Value) -> Failure {
        let answer = self.ask(command);
        answer.expect_err(&format!("{} on {command}", self.name))
    }

    /// Calls a method of another worker.
    pub(crate) fn calls(&self, to: &str, method: &str, argument: Value) -> Result<Value, Failure> {
        self.ask(&json!({ "do": "call", "to": to, "method": method, "argument": argument }))
    }

    /// Begins a call under a name, without waiting for its result.
    pub(crate) fn begins(&self, name: &str, to: &str, method: &str) {
        let call = json!({ "to": to, "method": method });
        self.does(&json!({ "do": "begin", "name": name, "call": call }));
    }

    /// Begins calls that wait at another worker, and returns when all have arrived.
    /// Their names are `what` and a number.
    pub(crate) fn stalls(&self, what: &str, to: &str, calls: usize) {
        for number in 0..calls {
            self.begins(&format!("{what}{number}"), to, "wait");
        }
        self.calls(to, "reached", json!(["waiting", calls]))
            .unwrap();
    }

    /// Returns the error of a call that was begun under a name.
    pub(crate) fn loses(&self, name: &str) -> Failure {
        self.refuses(&json!({ "do": "end", "name": name }))
    }

    /// Starts to make the process a worker of a group.
    pub(crate) fn begin_init(&self, init: &Value) {
        let usual = json!({ "do": "init", "name": self.name });
        self.tell(&with(&usual, init));
    }

    /// Makes the process a worker of a group.
    pub(crate) fn init(&self, init: &Value) -> Result<Value, Failure> {
        self.begin_init(init);
        self.answer()
    }

    /// Waits until its group has these workers, ordered by their ranks.
    pub(crate) fn sees(&self, names: &[&str]) {
        let seen = self.does(&json!({ "do": "view", "names": names }));
        let seen: Vec<(u32, String)> = serde_json::from_value(seen).unwrap();
        assert!(
            seen.into_iter()
                .map(|(_, name)| name)
                .eq(names.iter().copied())
        );
    }

    /// Waits until the process has ended; returns the time that this took.
    pub(crate) fn ended(mut self) -> Duration {
        let waiting = Instant::now();
        let left = LIMIT.saturating_sub(self.begun.elapsed());
        let more = self.process.stdout.line_within(left);
        assert_eq!(more, Err(NoLine::End), "{} ends", self.name);
        let status = self.process.wait();
        assert!(status.success(), "{}: {status}", self.name);
        waiting.elapsed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }
}

/// Sends a command to all processes, and returns their answers.
pub(crate) fn all(workers: &[Worker], command: &Value) -> Vec<Result<Value, Failure>> {
    for worker in workers {
        worker.tell(command);
    }
    workers.iter().map(Worker::answer).collect()
}

/// Makes all processes begin to join a group.
pub(crate) fn begin_all(workers: &[Worker], init: &Value) {
    for worker in workers {
        worker.begin_init(init);
    }
}

/// Checks that the pending command of each process succeeds.
pub(crate) fn all_succeed(workers: &[Worker]) {
    for worker in workers {
        worker.succeeds();
    }
}

/// Shuts down all processes cleanly.
pub(crate) fn shut_down(workers: &[Worker]) {
    for result in all(workers, &json!({ "do": "shutdown", "seconds": 20 })) {
        result.unwrap();
    }
}
