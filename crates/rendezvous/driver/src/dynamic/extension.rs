//! Extension of a store server that runs a machine with a coordinator's inputs.
//!
//! The coordinator itself is such a machine.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use rdzv_core::escape::escape;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine;
use rdzv_core::time::{Mono, Now};
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER};
use rdzv_rendezvous_proto::coordinator::{Coordinator, Input, Origin, Output, PREFIX};
use rdzv_rendezvous_proto::group::{VoterGroupView, VoterRole, VoterState, VoterView};
use rdzv_rendezvous_proto::recovering::Recovering;
use rdzv_store_proto::server::{Extension, Reach};
use tracing::{error, info, warn};

use super::node::numeric;
use super::note::NoteFile;
use crate::{GroupEvent, NodeState, Onlookers, RendezvousEvent};

/// Returns the extension that lets a store server run the rendezvous.
///
/// Pass it in the [`ServerOptions`](rdzv_store::ServerOptions).
pub fn extension() -> Box<dyn Extension> {
    observed(String::new(), Onlookers::default())
}

/// Returns the extension with onlookers; they see `own` as its endpoint.
pub fn observed(own: String, onlookers: Onlookers) -> Box<dyn Extension> {
    let host = CoordinatorHost {
        own,
        ..CoordinatorHost::default()
    };
    beside(host, onlookers)
}

/// Returns the extension for a server that is restarted after it was killed.
///
/// `note` is the record of the previous server, which was [reopened](NoteFile::reopen). Onlookers
/// see `own` as its endpoint.
pub fn restartable(
    note: NoteFile,
    origin: Origin,
    own: String,
    onlookers: Onlookers,
) -> Box<dyn Extension> {
    let host = CoordinatorHost {
        coordinator: Coordinator::restartable(Now::default(), note.note().clone(), origin),
        note: Some(note),
        own,
        takeovers: 0,
    };
    beside(host, onlookers)
}

/// Machine of the rendezvous, with the properties that the extension needs.
pub(super) trait Host: fmt::Debug + Send + 'static {
    type Machine: for<'a> Machine<Input<'a> = Input<'a>>;

    fn machine(&self) -> &Self::Machine;

    fn machine_mut(&mut self) -> &mut Self::Machine;

    /// Applies an output of the machine.
    ///
    /// Returns an output of the coordinator that this method has not applied.
    fn apply(
        &mut self,
        output: <Self::Machine as Machine>::Output,
        reach: &mut Reach<'_>,
    ) -> Option<Output>;

    fn probe_answer(&self) -> u32;

    /// `true` if the server must show the machine the requests for its keys.
    fn is_active(&self) -> bool;

    /// `true` if a connection belongs to an agent that has joined, or to a peer.
    fn has_joined(&self, connection: ConnId) -> bool;

    /// `true` if the machine no longer needs the server, after [`Input::Ending`].
    fn has_ended(&self) -> bool {
        true
    }

    /// Returns the time without acknowledgements after which a connection ends.
    fn silence(&self, connection: ConnId) -> Option<Duration>;

    fn view(&self, now: Now) -> VoterGroupView;
}

/// Wraps a host as an extension.
pub(super) fn beside(host: impl Host, onlookers: Onlookers) -> Box<dyn Extension> {
    Box::new(Beside {
        host,
        onlookers,
        scratch: Vec::new(),
    })
}

#[derive(Debug)]
struct Beside<H> {
    host: H,
    onlookers: Onlookers,
    /// Buffer for an event before it is sent.
    scratch: Vec<u8>,
}

impl<H: Host> Beside<H> {
    fn handle(&mut self, now: Now, input: Input<'_>, reach: &mut Reach<'_>) {
        self.host.machine_mut().handle(now, input);
        let mut reads = self.apply(reach);
        // A value can lead to more keys to read.
        while let Some(key) = reads.pop() {
            let value = state(&key, reach);
            let value = value.as_deref();
            let found = Input::Found { key: &key, value };
            self.host.machine_mut().handle(now, found);
            let more = self.apply(reach);
            reads.splice(0..0, more);
        }
    }

    /// Applies all outputs. Returns the keys to read, in reverse order.
    fn apply(&mut self, reach: &mut Reach<'_>) -> Vec<Vec<u8>> {
        let mut reads = Vec::new();
        while let Some(output) = self.host.machine_mut().poll_output() {
            if let Some(output) = self.host.apply(output, reach) {
                if let Output::Recovering { run, recovering } = &output {
                    self.recovering(run, recovering);
                }
                reads.extend(perform(output, reach, &mut self.scratch));
            }
        }
        reads.reverse();
        reads
    }

    /// Logs the progress of a recovery, and records its end as an event.
    fn recovering(&self, run: &str, recovering: &Recovering) {
        let message = format!("[{}] {recovering}", escape(run));
        if !recovering.is_over() {
            return warn!("{message}");
        }
        info!("{message}");
        let event = RendezvousEvent::new(NodeState::Running, message);
        self.onlookers.record(event.about(GroupEvent::Recovered {
            run: run.to_owned(),
            round: recovering.round,
            nodes: recovering.size,
            took: recovering.elapsed,
        }));
    }
}

impl<H: Host> Extension for Beside<H> {
    fn prefix(&self) -> &[u8] {
        PREFIX.as_bytes()
    }

    fn probe(&self) -> (u32, u32) {
        (PROBE, self.host.probe_answer())
    }

    fn watches(&self) -> bool {
        self.host.is_active()
    }

    fn request(
        &mut self,
        now: Now,
        from: ConnId,
        opcode: u8,
        payload: &[u8],
        reach: &mut Reach<'_>,
    ) {
        let request = Input::Request {
            from,
            opcode,
            payload,
        };
        self.handle(now, request, reach);
        if self.host.has_joined(from) {
            reach.join(from, self.host.silence(from));
        }
    }

    fn silent(&mut self, now: Now, id: ConnId, reach: &mut Reach<'_>) {
        self.handle(now, Input::Silent(id), reach);
    }

    fn end_of_stream(
        &mut self,
        now: Now,
        id: ConnId,
        peer: Option<SocketAddr>,
        reach: &mut Reach<'_>,
    ) {
        let peer = peer.map(numeric);
        self.handle(now, Input::EndOfStream { id, peer }, reach);
    }

    fn closed(&mut self, now: Now, id: ConnId, reach: &mut Reach<'_>) {
        self.handle(now, Input::Closed(id), reach);
    }

    fn before(&mut self, now: Now, key: &[u8], writes: bool, reach: &mut Reach<'_>) {
        self.handle(now, Input::Touching { key, writes }, reach);
    }

    fn after(&mut self, now: Now, key: &[u8], reach: &mut Reach<'_>) {
        let value = state(key, reach);
        let value = value.as_deref();
        self.handle(now, Input::Stored { key, value }, reach);
    }

    fn ending(&mut self, now: Now, reach: &mut Reach<'_>) {
        self.handle(now, Input::Ending, reach);
    }

    fn has_ended(&self) -> bool {
        self.host.has_ended()
    }

    fn asked(&mut self, now: Now) {
        if let Some(group) = &self.onlookers.group {
            group.see(self.host.view(now));
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.host.machine().deadline()
    }

    fn tick(&mut self, now: Now, reach: &mut Reach<'_>) {
        self.handle(now, Input::Tick, reach);
    }
}

/// Maximum length of a run's state, enough for several thousand nodes.
const LONGEST_STATE: usize = 1 << 20;

#[derive(Debug, Default)]
struct CoordinatorHost {
    coordinator: Coordinator,
    /// Record for the next coordinator, in case this process is killed.
    note: Option<NoteFile>,
    own: String,
    /// Number of takeovers from a coordinator that left no record.
    takeovers: u64,
}

impl CoordinatorHost {
    fn note(&mut self, write: impl FnOnce(&mut NoteFile) -> io::Result<()>) {
        if let Some(file) = &mut self.note
            && let Err(error) = write(file)
        {
            error!("cannot write the record for the next coordinator: {error}");
        }
    }
}

impl Host for CoordinatorHost {
    type Machine = Coordinator;

    fn machine(&self) -> &Coordinator {
        &self.coordinator
    }

    fn machine_mut(&mut self) -> &mut Coordinator {
        &mut self.coordinator
    }

    fn apply(&mut self, output: Output, _: &mut Reach<'_>) -> Option<Output> {
        match output {
            Output::Note { run, note } => self.note(|file| file.update(run, note)),
            Output::Adopt(authority) => {
                info!(
                    "this coordinator replaces one that exited without a record; its number is now \
                     {}",
                    authority.epoch
                );
                self.takeovers += 1;
                self.note(|file| file.adopt(authority));
            }
            output => return Some(output),
        }
        None
    }

    fn probe_answer(&self) -> u32 {
        PROBE_ANSWER
    }

    fn is_active(&self) -> bool {
        self.coordinator.is_active()
    }

    fn has_joined(&self, connection: ConnId) -> bool {
        self.coordinator.has_joined(connection)
    }

    fn silence(&self, connection: ConnId) -> Option<Duration> {
        self.coordinator.silence(connection)
    }

    fn view(&self, now: Now) -> VoterGroupView {
        let authority = self.coordinator.authority();
        VoterGroupView {
            cluster: authority.map(|authority| authority.cluster),
            epoch: authority.map(|authority| authority.epoch.into()),
            term: None,
            role: Some(VoterRole::Coordinator),
            voters: vec![VoterView {
                id: None,
                address: Some(self.own.clone()),
                state: VoterState::Leader,
                last_heard: None,
                lag: Some(0),
            }],
            target: 1,
            coordinator: Some(self.own.clone()),
            waiting: self.coordinator.waits(now),
            elections: 0,
            takeovers: self.takeovers,
        }
    }
}

/// Applies an output of a coordinator to the store or a connection.
///
/// Returns the key to read, if the output requests one.
fn perform(output: Output, reach: &mut Reach<'_>, scratch: &mut Vec<u8>) -> Option<Vec<u8>> {
    match output {
        Output::Send(to, event) => {
            scratch.clear();
            event.write(scratch);
            reach.send(to, scratch);
        }
        Output::LastCall { run, call } => warn!("[{}] {call}", escape(&run)),
        Output::LastSpare { run, round } => warn!(
            "[{}] no spare node is left in round {round}: if another node is lost, the job waits \
             for a new node",
            escape(&run)
        ),
        Output::Read(key) => return Some(key),
        Output::Store { key, value } => reach.store(&key, &value),
        Output::Remove(key) => reach.remove(&key),
        Output::Close(id, why) => reach.close(id, why),
        Output::Recovering { .. } | Output::Note { .. } | Output::Adopt(_) | Output::Confirm(_) => {
        }
    }
    None
}

/// Returns the value of a key; `None` if it is absent or too long for a run.
fn state(key: &[u8], reach: &Reach<'_>) -> Option<Vec<u8>> {
    let value = reach.value(key)?;
    (value.len() <= LONGEST_STATE).then(|| value.to_vec())
}
