//! The thread of the server: the epoll loop that drives the machine.
//!
//! ```text
//!   epoll ──► listener   accept a batch                       traffic.rs
//!         ──► connection read once, handle, write at once     traffic.rs
//!         ──► mailbox    commands of the handle
//!         ──► time       the machine's deadline, the end of lingering, accepting again
//! ```
//!
//! In one iteration, every connection that the kernel reports is read from once; then all replies
//! are sent. Doing all of one and then all of the other keeps each of the two long ways through the
//! kernel in the processor's caches.
//!
//! The kernel reports each arrival once (edge-triggered), which spares it a check of every
//! connection after every answer. A read that fills the buffer may have left something, so such a
//! connection is read from again in the next iteration, after all that are reported then. The same
//! holds for a connection with more replies than are sent at a time, and for those that the machine
//! has stopped because they have had their turn.

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
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_event::{Event, EventFlags, Mailbox};
use rdzv_store_proto::server::{Input, Output, ServerMachine};

use self::descriptors::Descriptors;
use self::notices::Notices;
use super::admission::Gate;
use super::sockets::Sockets;
use super::{Command, Figures, Traffic};

const MAILBOX: u64 = u64::MAX;
/// The descriptor that ends the server when it is readable.
const END: u64 = u64::MAX - 1;
/// The first listening socket, the next, …; connections have small numbers.
const LISTENERS: u64 = 1 << 32;

/// With at most this many connections, the thread spins for a moment after each iteration in which a client was served.
const FEW: usize = 32;

/// The time that it spins. A client that asks in a loop, as PyTorch's do (twice for each `get`), comes
/// back within it; waking up a thread, and the processor that it sleeps on, takes as long.
const SPIN: Duration = Duration::from_micros(50);

/// The number of reports taken from the kernel at a time.
const REPORTS: usize = 256;

/// Bytes read from a connection in one iteration (a large value is read into its own buffer instead).
const SCRATCH_BYTES: usize = 32 << 10;

/// Iterations with as many reports as there can be, after which connections that wait for their next
/// turn are served although more may be ready.
const MOST_ITERATIONS: usize = 16;

/// After running out of descriptors, accepting is tried again when one is freed or after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(250);

/// Everything the thread owns.
#[derive(Debug)]
pub(super) struct Service {
    machine: ServerMachine,
    sockets: Sockets,
    gate: Gate,
    listeners: Vec<TcpListener>,
    scratch: Vec<u8>,
    /// Outputs taken from the machine and not applied yet.
    outputs: VecDeque<Output>,
    /// Connections that may have more to read than was read, and as what they were reported: the
    /// kernel does not repeat that their end has come. They are read from again in the next iteration.
    again: Vec<(ConnId, EventFlags)>,
    /// Connections that take more replies than were sent at a time; more is sent in the next iteration.
    unsent: Vec<ConnId>,
    /// The machine waits for its next turns.
    yielded: bool,
    /// Iterations since it has had them.
    since_turn: usize,
    /// Connections with replies to send at the end of this iteration.
    flushes: Vec<ConnId>,
    /// The time of this iteration.
    now: Now,
    descriptors: Descriptors,
    /// When accepting is tried again, if it is suspended.
    accept_again: Option<Instant>,
    origin: Instant,
    commands: Mailbox<Command>,
    figures: Arc<Figures>,
    traffic: Traffic,
    notices: Notices,
    /// When to end even if clients are still connected; set by a shutdown.
    end: Option<Instant>,
    /// A descriptor that shuts the server down when it is readable, and the linger time then.
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
            traffic: Traffic::default(),
            notices: Notices::default(),
            end: None,
            end_when: None,
        })
    }

    /// Has it shut down when this descriptor is readable.
    pub(super) fn end_when(&mut self, readable: OwnedFd, linger: Duration) -> io::Result<()> {
        self.sockets.poller().add(&readable, END, EventFlags::IN)?;
        self.end_when = Some((readable, linger));
        Ok(())
    }

    /// Serves until it is shut down.
    pub(super) fn run(mut self) {
        let mut reports: Vec<Event> = Vec::with_capacity(REPORTS);
        // Until when the thread spins although nothing has come.
        let mut spin_until: Option<Instant> = None;
        while !self.has_ended() {
            *self.figures.lock() = (self.machine.stats(), self.traffic);
            let timeout = match spin_until {
                Some(_) => Some(Duration::ZERO),
                None => self.timeout(),
            };
            if let Err(error) = self.sockets.poller().wait(&mut reports, timeout) {
                tracing::error!(%error, "the store server cannot wait for input and ends");
                break;
            }
            if reports.is_empty()
                && let Some(until) = spin_until
                && !self.has_more()
            {
                spin_until = (Instant::now() < until).then_some(until);
                // The client that is about to answer may share the processor.
                rustix::thread::sched_yield();
                continue;
            }
            let may_spin = self.sockets.len() <= FEW && !reports.is_empty();
            spin_until = may_spin.then(|| Instant::now() + SPIN);
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
                // A client that asks the extension for something does other things next.
                spin_until = None;
            }
        }
        *self.figures.lock() = (self.machine.stats(), self.traffic);
        self.notices.tell(Mono::MAX);
        self.leave();
    }

    /// Hands an input to the machine and applies its outputs.
    #[inline]
    fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(self.now, input);
        self.apply_outputs();
    }

    /// Applies the machine's outputs, one after another. An input that this causes has its outputs
    /// taken before the next input.
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

    /// Serves the connections that the machine has stopped, once every other one has been served
    /// that is ready. Only so many are reported at a time, so it may take some iterations.
    fn next_turns(&mut self, reported: usize) {
        self.since_turn += 1;
        if self.yielded && (reported < REPORTS || self.since_turn >= MOST_ITERATIONS) {
            self.yielded = false;
            self.since_turn = 0;
            self.handle(Input::Turn);
        }
    }

    /// Whether anything can be done without a report.
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

    /// Changes whether the kernel reports new connections.
    fn set_accepting(&mut self, on: bool) {
        self.accept_again = (!on).then(|| Instant::now() + ACCEPT_AGAIN);
        let flags = match on {
            true => EventFlags::IN,
            false => EventFlags::empty(),
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
        let deadlines = [self.machine.deadline(), self.notices.deadline()];
        let mono = deadlines.into_iter().flatten().min();
        let mono = mono.map(|deadline| deadline.since(now));
        let until = |instant: Instant| instant.saturating_duration_since(Instant::now());
        // After the end, the machine's deadline tells how long to wait.
        let end = self.end.filter(|_| self.machine.may_end());
        [mono, end.map(until), self.accept_again.map(until)]
            .into_iter()
            .flatten()
            .min()
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
                    // The caller waits for this, unless it is gone.
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
