//! A worker that executes commands, for `crates/calls/rpc/tests/scenarios`.
//!
//! Each line of its input is a [`Command`] as JSON. The worker answers each one with one line:
//! `{"ok": …}`, or `{"error": …}` with the fields of an [`RpcError`]. It ends at the command
//! `exit`, and immediately when its input ends.

mod begin;
mod calls;
mod counts;
mod large;
mod lives;
mod offered;
mod pressure;
pub(crate) mod process;
mod references;
mod spans;
mod tensors;
mod victim;

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdzv_rpc::backend::Agent;
use rdzv_rpc::device::DeviceBackend;
use rdzv_rpc::device::testing::FakeDevices;
use rdzv_rpc::{PeerTraffic, RpcError, current};
use serde::Deserialize;
use serde_json::{Value, json};

use calls::{Call, Outcome};
use counts::EventCounts;
use pressure::Offering;

/// Commands of the worker.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Command {
    /// Simulates this number of accelerators from now on.
    Devices { count: u32 },
    /// Calls `init_rpc`.
    Init(begin::Init),
    /// Returns the workers of the group; waits until they have the given names.
    View { names: Option<Vec<String>> },
    /// Makes a call and waits for it.
    Call(Call),
    /// Makes a call under a name, for a later `End`.
    Begin { name: String, call: Call },
    /// `true` if that call is over.
    Done { name: String },
    /// Waits for that call.
    End { name: String },
    /// Cancels that call.
    Cancel { name: String },
    /// Makes calls in one line, and some outside of it.
    Lines { to: String, calls: u64 },
    /// Gathers one value from each member.
    Gather { value: String, seconds: f64 },
    /// Sends a tensor that is on this device, and gets it back.
    Tensor { to: String, device: u32 },
    /// Makes a remote value, and passes references to it along these workers.
    References { to: String, along: Vec<String> },
    /// Makes another worker keep a reference to a value of this one.
    Lend { to: String },
    /// Returns the references that are left here after a while, if any.
    Left,
    /// Offers pieces to another worker, without waiting for it.
    Offer {
        to: String,
        pieces: usize,
        bytes: usize,
    },
    /// Waits until the other worker has taken all offered pieces.
    Taken,
    /// Returns the count of an event; waits until it is at least `times`.
    Happened { what: String, times: u64 },
    /// Returns the counters of the agent.
    Traffic,
    /// Returns the resources of this process, after waiting for a thread count.
    ///
    /// The command waits until the process has at most this many threads.
    Process { threads: Option<usize> },
    /// Returns the processor use of this process while it is idle, in cores.
    Idle { seconds: f64 },
    /// Starts, works and ends, `lives` times.
    Lives { init: begin::Init, lives: usize },
    /// Records spans from now on.
    Record,
    /// Returns the spans that are over; waits until there are `count` of them.
    Spans { count: usize },
    /// Shuts down in an orderly way.
    Shutdown { seconds: f64 },
    /// Shuts down without waiting for other workers.
    Stop,
    /// Ends the process immediately.
    Exit,
}

/// Time limit of waits for which a command has no limit.
const LONG: Duration = Duration::from_secs(20);

/// State of the worker.
#[derive(Default)]
struct Worker {
    devices: Option<Arc<dyn DeviceBackend>>,
    counts: Arc<EventCounts>,
    calls: BTreeMap<String, Box<dyn Outcome>>,
    offering: Option<Offering>,
    spans: spans::Spans,
}

pub(crate) fn main() {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        // The input has ended, so no reader waits for an answer.
        std::process::exit(0);
    });
    let mut worker = Worker::default();
    for line in lines {
        let command = serde_json::from_str(&line);
        let command = command.unwrap_or_else(|error| panic!("{error} in {line}"));
        if matches!(command, Command::Exit) {
            return;
        }
        let answer = match worker.obey(command) {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({ "error": said(&error) }),
        };
        println!("{answer}");
    }
}

/// Returns the fields of an error that the worker reports.
fn said(error: &RpcError) -> Value {
    json!({
        "kind": error.kind,
        "worker": error.worker.as_ref().map(|worker| worker.name.to_string()),
        "message": error.message,
        "text": error.to_string(),
        "remote": error.remote,
    })
}

impl Worker {
    fn obey(&mut self, command: Command) -> Result<Value, RpcError> {
        match command {
            Command::Devices { count } => {
                self.devices = Some(FakeDevices::shared(count));
                Ok(Value::Null)
            }
            Command::Init(init) => self.init(&init),
            Command::View { names } => view(names),
            Command::Call(call) => call.begin(&current()?).wait(),
            Command::Begin { name, call } => {
                let begun = call.begin(&current()?);
                self.calls.insert(name, begun);
                Ok(Value::Null)
            }
            Command::Done { name } => Ok(json!(self.calls[&name].is_done())),
            Command::End { name } => {
                let call = self.calls.remove(&name);
                call.expect("the test has begun it").wait()
            }
            Command::Cancel { name } => {
                self.calls[&name].cancel();
                Ok(Value::Null)
            }
            Command::Lines { to, calls } => calls::lines(&current()?, &to, calls),
            Command::Gather { value, seconds } => {
                let within = Duration::from_secs_f64(seconds);
                let values = current()?.all_gather(&value, None, within)?;
                let values = values.into_iter();
                let named = values.map(|(name, value)| (name.to_string(), Value::from(value)));
                Ok(Value::Object(named.collect()))
            }
            Command::Tensor { to, device } => {
                let devices = self.devices.as_ref().expect("it has devices");
                tensors::send(&current()?, &to, device, devices)
            }
            Command::References { to, along } => references::pass(&current()?, &to, &along),
            Command::Lend { to } => references::lend(&current()?, &to),
            Command::Left => Ok(json!(references::left(&current()?))),
            Command::Offer { to, pieces, bytes } => {
                let counts = Arc::clone(&self.counts);
                let offering = Offering::begin(current()?, counts, to, pieces, bytes);
                self.offering = Some(offering);
                Ok(Value::Null)
            }
            Command::Taken => {
                let offering = self.offering.take();
                offering.expect("the test has offered something").taken()
            }
            Command::Happened { what, times } => {
                Ok(json!(self.counts.wait_blocking(&what, times, LONG)))
            }
            Command::Traffic => {
                let traffic = current()?.traffic();
                Ok(json!({
                    "calls": traffic.calls,
                    "served": traffic.served,
                    "in_flight": traffic.in_flight,
                    "running": traffic.running,
                    "connections": traffic.connections,
                    "peers": traffic.peers.iter().map(peer).collect::<Value>(),
                }))
            }
            Command::Process { threads } => {
                if let Some(threads) = threads {
                    process::settle(threads, LONG);
                }
                Ok(process::measured())
            }
            Command::Idle { seconds } => Ok(json!(process::idle(Duration::from_secs_f64(seconds)))),
            Command::Lives { init, lives } => self.lives(&init, lives),
            Command::Record => {
                self.spans.record();
                Ok(Value::Null)
            }
            Command::Spans { count } => Ok(json!(self.spans.wait_for(count, LONG))),
            Command::Shutdown { seconds } => ended(true, Duration::from_secs_f64(seconds)),
            Command::Stop => ended(false, LONG),
            Command::Exit => unreachable!("it has ended"),
        }
    }
}

/// Returns the name of another worker, and the transport to it.
fn peer(peer: &PeerTraffic) -> Value {
    json!([peer.worker.name.as_str(), peer.transport])
}

/// Ends the agent; an error message includes the seconds that it took.
fn ended(graceful: bool, within: Duration) -> Result<Value, RpcError> {
    let agent = current()?;
    let begun = Instant::now();
    Agent::shutdown(&agent, graceful, within).map_err(|mut error| {
        let took = begun.elapsed().as_secs_f64();
        error.message = format!("{} after {took:.3} s", error.message);
        error
    })?;
    Ok(json!(begun.elapsed().as_secs_f64()))
}

/// Returns the ids and names of the workers, ordered by id.
fn view(names: Option<Vec<String>>) -> Result<Value, RpcError> {
    let workers = current()?.wait_for_group(
        |workers| {
            names.as_ref().is_none_or(|names| {
                let there = workers.iter().map(|worker| worker.name.as_str());
                there.eq(names.iter().map(String::as_str))
            })
        },
        LONG,
    )?;
    let workers = workers.iter();
    let named = workers.map(|worker| json!([worker.id.0, worker.name.as_str()]));
    Ok(named.collect())
}
