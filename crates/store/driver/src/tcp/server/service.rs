//! The thread of the server: the epoll loop that drives the machine.
//!
//! ```text
//!   epoll ──► listener   accept a batch                       traffic.rs
//!         ──► connection read once, handle, write at the end    traffic.rs
//!         ──► mailbox    commands of the handle
//!         ──► time       the machine's deadline, the end of lingering, accepting again
//! ```
//!
//! In one iteration, the thread reads once from every connection that the kernel reports. It then
//! sends the replies. Separating reads and writes keeps each of the two long paths through the
//! kernel in the processor's caches.
//!
//! The kernel reports each arrival once (edge-triggered), so it need not check every connection
//! after every answer. A read that fills the buffer may have left data. The thread reads from such
//! a connection again in the next iteration, after all connections that are reported then. The same
//! applies to a connection with more replies than are sent at a time. It also applies to
//! connections that the machine has stopped because they have had their turn.

mod descriptors;
mod notices;
mod traffic;

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall, earliest};
use rdzv_event::{Event, EventFlags, Mailbox};
use rdzv_store_proto::server::{Input, Output, ServerMachine};

use self::descriptors::Descriptors;
use self::notices::Notices;
use super::admission::Gate;
use super::sockets::Sockets;
use super::{Command, Figures, ServerTraffic};

const MAILBOX: u64 = u64::MAX;
/// Token of the descriptor that ends the server when it becomes readable.
const END: u64 = u64::MAX - 1;
/// Token of the first listening socket; the others follow.
/// Connections have small numbers.
const LISTENERS: u64 = 1 << 32;

/// Maximum number of connections with which the thread spins.
/// It then spins for a moment after each iteration with a report, unless all requests of the
/// iteration were for the extension.
const FEW: usize = 32;

/// Duration of spinning.
/// A client that sends requests in a loop, as PyTorch's do (twice for each `get`), sends the next
/// one within this time. Waking up a thread and its processor takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// Number of reports taken from the kernel at a time.
const REPORTS: usize = 256;

/// Bytes read from a connection in one iteration.
/// A large value is read into its own buffer instead.
const SCRATCH_BYTES: usize = 32 << 10;

/// Number of iterations after which stopped connections are served in any case.
/// Before that, they are served only after an iteration with fewer than [`REPORTS`] reports, when
/// no other connection is ready.
const MOST_ITERATIONS: usize = 16;

/// Pause of accepting after a lack of descriptors or a failed accept.
/// The end of a connection of this server resumes it earlier.
const ACCEPT_AGAIN: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Service {
    machine: ServerMachine,
    sockets: Sockets,
    gate: Gate,
    listeners: Vec<TcpListener>,
    scratch: Vec<u8>,
    /// Outputs taken from the machine and not applied yet.
    outputs: VecDeque<Output>,
    /// Connections that may have unread data, with their reported events.
    /// The kernel does not report these events again, so the next iteration reads from them again.
    again: Vec<(ConnId, EventFlags)>,
    /// Connections with more replies than were sent at a time.
    /// The rest is sent in the next iteration.
    unsent: Vec<ConnId>,
    /// `true` if the machine waits for its next turns.
    yielded: bool,
    /// Number of iterations since the machine's last turns.
    since_turn: usize,
    /// Connections with replies to send at the end of this iteration.
    flushes: Vec<ConnId>,
    /// Time of this iteration.
    now: Now,
    descriptors: Descriptors,
    /// Time at which accepting resumes, if it is suspended.
    accept_again: Option<Instant>,
    origin: Instant,
    commands: Mailbox<Command>,
    figures: Arc<Figures>,
    traffic: ServerTraffic,
    notices: Notices,
    /// Time at which the server ends even with connected clients.
    /// A shutdown sets it. The server ends later if the extension does not let it end.
    end: Option<Instant>,
    /// A descriptor that shuts the server down when readable, with the linger time.
    end_when: Option<(OwnedFd, Duration)>,
}

impl Service {
    pub(super) fn new(
        machine: ServerMachine,
        listeners: Vec<TcpListener>,
        gate: Gate,
        has_agents: bool,
        commands: Mailbox<Command>,
        figures: Arc<Figures>,
    ) -> io::Result<Self> {
        let sockets = Sockets::new()?;
        for (listener, token) in listeners.iter().zip(LISTENERS..) {
            sockets.poller().add(listener, token, EventFlags::IN)?;
        }
        sockets.poller().add(&commands, MAILBOX, EventFlags::IN)?;
        Ok(Self {
            machine,
            sockets,
            gate,
            listeners,
            scratch: vec![0; SCRATCH_BYTES],
            outputs: VecDeque::new(),
            again: Vec::new(),
            unsent: Vec::new(),
            yielded: false,
            since_turn: 0,
            flushes: Vec::new(),
            now: Now::default(),
            descriptors: Descriptors::new(has_agents),
            accept_again: None,
            origin: Instant::now(),
            commands,
            figures,
            traffic: ServerTraffic::default(),
            notices: Notices::default(),
            end: None,
            end_when: None,
        })
    }

    /// Makes the server shut down when this descriptor becomes readable.
    pub(super) fn end_when(&mut self, readable: OwnedFd, linger: Duration) -> io::Result<()> {
        self.sockets.poller().add(&readable, END, EventFlags::IN)?;
        self.end_when = Some((readable, linger));
        Ok(())
    }

    /// Serves until the server is shut down.
    pub(super) fn run(mut self) {
        let mut reports: Vec<Event> = Vec::with_capacity(REPORTS);
        // Time until which the thread spins although nothing has arrived.
        let mut spin_end: Option<Instant> = None;
        while !self.has_ended() {
            *self.figures.lock() = (self.machine.stats(), self.traffic);
            let timeout = match spin_end {
                Some(_) => Some(Duration::ZERO),
                None => self.timeout(),
            };
            if let Err(error) = self.sockets.poller().wait(&mut reports, timeout) {
                tracing::error!(%error, "the store server cannot wait for input and stops");
                break;
            }
            if reports.is_empty()
                && let Some(deadline) = spin_end
                && !self.has_more()
            {
                spin_end = (Instant::now() < deadline).then_some(deadline);
                // The client that is about to send may share the processor.
                rustix::thread::sched_yield();
                continue;
            }
            let may_spin = self.sockets.len() <= FEW && !reports.is_empty();
            spin_end = may_spin.then(|| Instant::now() + SPIN);
            let before = self.machine.requests();
            self.now = self.read_clock();
            let (again, unsent) = (take(&mut self.again), take(&mut self.unsent));
            for report in &reports {
                match report.data.u64() {
                    MAILBOX => self.receive(),
                    END => self.end_is_readable(),
                    listener @ LISTENERS.. => self.accept((listener - LISTENERS) as usize),
                    id => self.ready(ConnId(id as u32), report.flags),
                }
            }
            for (id, flags) in again {
                self.ready(id, flags);
            }
            self.flushes.extend(unsent);
            self.next_turns(reports.len());
            self.make_room();
            self.on_time();
            self.flush_all();
            let after = self.machine.requests();
            if after.0 == before.0 && after.1 != before.1 {
                // A client of the extension does not send its next request immediately.
                spin_end = None;
            }
        }
        *self.figures.lock() = (self.machine.stats(), self.traffic);
        self.notices.tell(Mono::MAX);
        self.leave();
    }

    /// Passes an input to the machine and applies its outputs.
    #[inline]
    fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(self.now, input);
        self.apply_outputs();
    }

    /// Applies the machine's outputs in order.
    /// If an output causes an input, the outputs of that input are taken before the next input.
    #[inline]
    fn apply_outputs(&mut self) {
        loop {
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Flush(id) => self.flushes.push(id),
                    other => self.outputs.push_back(other),
                }
            }
            let Some(output) = self.outputs.pop_front() else {
                return;
            };
            match output {
                Output::Flush(_) => {}
                Output::Close(id, reason) => self.close(id, &reason),
                Output::PauseReading(id) => self.sockets.set_reading(id, false),
                Output::ResumeReading(id) => self.sockets.set_reading(id, true),
                Output::Yield => self.yielded = true,
                Output::Joined(id, silence) => self.watch_closely(id, silence),
            }
        }
    }

    /// Serves the connections that the machine has stopped.
    /// Before that, every other ready connection is served, for up to [`MOST_ITERATIONS`]
    /// iterations: the kernel reports a limited number at a time.
    fn next_turns(&mut self, reported: usize) {
        self.since_turn += 1;
        if self.yielded && (reported < REPORTS || self.since_turn >= MOST_ITERATIONS) {
            self.yielded = false;
            self.since_turn = 0;
            self.handle(Input::Turn);
        }
    }

    /// `true` if there is work without a report.
    fn has_more(&self) -> bool {
        self.yielded || !self.again.is_empty() || !self.unsent.is_empty()
    }

    /// Sends the replies of this iteration.
    fn flush_all(&mut self) {
        while !self.flushes.is_empty() {
            let mut flushes = take(&mut self.flushes);
            for id in flushes.drain(..) {
                self.flush(id);
                self.apply_outputs();
            }
            if self.flushes.is_empty() {
                self.flushes = flushes;
            }
        }
    }

    /// Sets whether the kernel reports new connections.
    fn set_accepting(&mut self, on: bool) {
        self.accept_again = (!on).then(|| Instant::now() + ACCEPT_AGAIN);
        let flags = if on {
            EventFlags::IN
        } else {
            EventFlags::empty()
        };
        for (listener, token) in self.listeners.iter().zip(LISTENERS..) {
            if let Err(error) = self.sockets.poller().modify(listener, token, flags) {
                tracing::error!(%error, "epoll refused a change of the listening socket");
            }
        }
    }

    fn read_clock(&self) -> Now {
        Now {
            mono: Mono::from_origin(self.origin.elapsed()),
            wall: Wall::from_unix_micros(
                SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .map_or(0, |since| {
                        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
                    }),
            ),
        }
    }

    fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| {
            self.sockets.is_empty() || end <= Instant::now() && self.machine.may_end()
        })
    }

    fn timeout(&self) -> Option<Duration> {
        if self.has_more() {
            return Some(Duration::ZERO);
        }
        let now = Mono::from_origin(self.origin.elapsed());
        let mono = earliest([self.machine.deadline(), self.notices.deadline()]);
        let mono = mono.map(|deadline| deadline.since(now));
        let left = |instant: Instant| instant.saturating_duration_since(Instant::now());
        // After the end, the machine's deadline determines the wait.
        let end = self.end.filter(|_| self.machine.may_end());
        earliest([mono, end.map(left), self.accept_again.map(left)])
    }

    fn on_time(&mut self) {
        if self
            .machine
            .deadline()
            .is_some_and(|deadline| deadline <= self.now.mono)
        {
            self.handle(Input::Tick);
        }
        self.notices.tell(self.now.mono);
        if self.accept_again.is_some_and(|when| when <= Instant::now()) {
            self.set_accepting(true);
        }
    }

    fn receive(&mut self) {
        self.commands.drain();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Purge { keep, done } => {
                    self.purge(&keep);
                    // The caller waits for this message, unless it has ended.
                    let _ = done.send(());
                }
                Command::Ping(alive) => {
                    self.handle(Input::Asked);
                    let _ = alive.send(());
                }
                Command::Shutdown { linger } => self.shut_down(linger),
            }
        }
    }

    fn end_is_readable(&mut self) {
        if let Some((readable, linger)) = self.end_when.take() {
            self.sockets.poller().remove(readable);
            self.shut_down(linger);
        }
    }

    fn shut_down(&mut self, linger: Duration) {
        self.stop_accepting();
        self.handle(Input::Ending);
        self.end = Some(Instant::now() + linger);
    }

    fn purge(&mut self, keep: &[Vec<u8>]) {
        self.accept_all();
        self.handle(Input::PreparePurge);
        for id in self.sockets.ids() {
            self.read_all(id);
        }
        let keep: Vec<&[u8]> = keep.iter().map(Vec::as_slice).collect();
        self.handle(Input::Purge(&keep));
    }

    fn stop_accepting(&mut self) {
        self.accept_again = None;
        for listener in self.listeners.drain(..) {
            self.sockets.poller().remove(&listener);
        }
    }
}
