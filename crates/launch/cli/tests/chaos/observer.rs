//! Observer of the starts and exits of processes, in the kernel's order.
//!
//! A worker connects to a socket and continues after the observer's answer. Before the answer, the
//! observer adds a descriptor of the worker to its epoll set. The ready list of epoll retains the
//! order of the exits, even if the observer reads the list late. So the order is exact, but
//! times may be late. The kernel identifies a process (credentials of the socket, marker in
//! `/proc`), and the process sends its ranks.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_peercred;

use rdzv_testing::Marker;
use rdzv_testing::pids::open;

/// Observation of a process.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    Began(Process, Instant),
    Ended(i32, Instant),
}

/// Worker, or a child of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Marker of the process's node.
    pub(crate) marker: Marker,
    pub(crate) is_worker: bool,
    pub(crate) rank: u32,
    pub(crate) attempt: u32,
    pub(crate) round: u32,
}

/// Observer of one run.
pub(crate) struct Observer {
    seen: Receiver<Seen>,
    launchers: Sender<(i32, OwnedFd)>,
    wake: std::io::PipeWriter,
    thread: JoinHandle<()>,
}

const LISTENER: u64 = 0;
const WAKE: u64 = 1;

impl Observer {
    /// Starts an observer that listens at a path.
    pub(crate) fn new(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (sender, seen) = channel();
        let (launchers, more) = channel();
        let (awake, wake) = pipe().unwrap();
        let thread = thread::spawn(move || watch(&listener, &awake, &sender, &more));
        Self {
            seen,
            launchers,
            wake,
            thread,
        }
    }

    /// Watches a process that does not connect to the socket.
    pub(crate) fn watch(&mut self, pid: i32, process: OwnedFd) {
        self.launchers.send((pid, process)).unwrap();
        self.wake.write_all(&[1]).unwrap();
    }

    /// Returns the next observation before the deadline.
    pub(crate) fn next(&self, deadline: Instant) -> Option<Seen> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.seen.recv_timeout(left).ok()
    }

    /// Stops the observer, and returns all remaining observations.
    pub(crate) fn finish(self) -> Vec<Seen> {
        drop(self.wake);
        self.thread.join().unwrap();
        self.seen.try_iter().collect()
    }
}

fn watch(
    listener: &UnixListener,
    awake: &std::io::PipeReader,
    sender: &Sender<Seen>,
    more: &Receiver<(i32, OwnedFd)>,
) {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let add = |what: &dyn AsFd, key: u64| {
        let data = epoll::EventData::new_u64(key);
        epoll::add(&set, what, data, epoll::EventFlags::IN).unwrap();
    };
    add(listener, LISTENER);
    add(awake, WAKE);
    let mut watched: HashMap<u64, OwnedFd> = HashMap::new();
    let mut ending = false;
    let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
    loop {
        let at_once = Timespec::default();
        let timeout = ending.then_some(&at_once);
        events.clear();
        retry_on_intr(|| epoll::wait(&set, spare_capacity(&mut events), timeout)).unwrap();
        if ending && events.is_empty() {
            return;
        }
        let now = Instant::now();
        for event in &events {
            match event.data.u64() {
                LISTENER => {
                    let (stream, _) = listener.accept().unwrap();
                    if let Some((process, descriptor)) = heard(&stream) {
                        let key = u64::try_from(process.pid).unwrap() << 2;
                        add(&descriptor, key);
                        watched.insert(key, descriptor);
                        let _ = sender.send(Seen::Began(process, now));
                        let _ = (&stream).write_all(&[1]);
                    }
                }
                WAKE => {
                    let mut byte = [0];
                    if let Ok(0) = rustix::io::read(awake, &mut byte) {
                        ending = true;
                        epoll::delete(&set, awake).unwrap();
                    } else if let Ok((pid, process)) = more.recv() {
                        let key = u64::try_from(pid).unwrap() << 2;
                        add(&process, key);
                        watched.insert(key, process);
                    }
                }
                key => {
                    if let Some(process) = watched.remove(&key) {
                        epoll::delete(&set, &process).unwrap();
                        let pid = i32::try_from(key >> 2).unwrap();
                        let _ = sender.send(Seen::Ended(pid, now));
                    }
                }
            }
        }
    }
}

/// Identifies the process on a connection; `None` if it has already exited.
fn heard(stream: &UnixStream) -> Option<(Process, OwnedFd)> {
    let pid = socket_peercred(stream).ok()?.pid.as_raw_nonzero().get();
    let descriptor = open(pid)?;
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let numbers: Vec<u32> = words.map(|word| word.parse().unwrap_or(0)).collect();
    let process = Process {
        pid,
        marker: Marker::of(pid)?,
        is_worker: name == "worker",
        rank: *numbers.first()?,
        attempt: *numbers.get(3)?,
        round: *numbers.get(4)?,
    };
    Some((process, descriptor))
}
