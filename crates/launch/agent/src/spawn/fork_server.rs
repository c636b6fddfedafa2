//! Process that has imported the modules of `--preload`, and forks workers.
//!
//! ```text
//!   agent ── modules ──► fork server           imports the modules, for seconds
//!         ◄── "+" ─────      │                 or the reason why it cannot fork
//!                            └─ fork ─► middle ─ fork ─► worker     for each worker, in advance
//!         ── request ─────────────────────────────────►    │
//!         ◄── process id ─────────────────────────────     │        middle exits: the worker
//!         ── "g" ─────────────────────────────────────►    script   becomes the agent's child
//! ```
//!
//! No worker depends on the server. A worker runs its script only after the agent has received its
//! process id and has sent "g", through a socket that only these two processes use. If anything
//! fails before that, the worker exits, and the agent starts another one by executing the program.
//!
//! The server executes the command line of a worker, in the environment of the workers.
//! `fork_server.py` describes how its interpreter stops before the script.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rdzv_agent_proto::group::environment;
use rdzv_core::rank::LocalRank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process, pidfd_open, waitid,
};
use rustix::thread::CpuSet;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use super::program::{Program, c_string};
use super::{Spawned, child, environment_of_workers};
use crate::AgentConfig;
use crate::exits::awaitable;

/// Python code of the server.
const SERVER: &str = include_str!("fork_server.py");

/// Answer of a server that has imported the modules.
const READY: &[u8] = b"+";

/// Limit on the time in which the server forks a worker.
/// A fork takes milliseconds. A server that takes longer is stopped, or the machine has no memory.
const FORK_WITHIN: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Fork server of this node; has no process unless `--preload` is in effect.
#[derive(Debug, Default)]
pub(crate) struct ForkServer(Option<Running>);

#[derive(Debug)]
struct Running {
    process: Spawned,
    channel: AsyncFd<OwnedFd>,
    since: Instant,
    is_ready: bool,
}

impl ForkServer {
    /// Starts the server if the configuration has modules to import.
    /// Must be called on the main thread, inside the runtime.
    pub(crate) fn start(launch: &AgentConfig) -> Self {
        if launch.preload.is_empty() {
            return Self::default();
        }
        let running = Running::start(launch);
        Self(running.inspect_err(warn_of).ok())
    }

    /// Returns the process of the server, which only this type reaps.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.0.as_ref().map(|running| running.process.pid)
    }

    /// Waits until the state of the server changes.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn changed(&mut self) {
        if let Some(running) = &self.0
            && let Ok(mut guard) = running.channel.readable().await
        {
            guard.clear_ready();
        } else {
            std::future::pending::<()>().await;
        }
        self.update();
    }

    /// Receives the messages of the server.
    /// Removes a server that reports an error or has exited.
    fn update(&mut self) {
        let Some(running) = &mut self.0 else {
            return;
        };
        if let Err(error) = running.update() {
            warn_of(&error);
            self.0 = None;
        }
    }

    /// Forks a worker.
    /// Returns `None` if the caller must execute the program instead.
    pub(super) fn fork(
        &mut self,
        arguments: &[OsString],
        variables: &[(&str, OsString)],
        setup: &child::Setup,
    ) -> Option<Spawned> {
        self.update();
        let running = self.0.as_ref().filter(|running| running.is_ready)?;
        match running.fork(arguments, variables, setup) {
            Ok(spawned) => Some(spawned),
            Err(error) => {
                warn_of(&error);
                self.0 = None;
                None
            }
        }
    }
}

fn warn_of(error: &io::Error) {
    warn!("--preload has no effect from now on: {error}; workers start by executing their program");
}

impl Running {
    fn start(launch: &AgentConfig) -> io::Result<Self> {
        let (channel, theirs) = sockets()?;
        let entrypoint = &launch.entrypoint;
        let arguments = environment::arguments(&entrypoint.arguments, LocalRank(0));
        let arguments = ["-c".into(), SERVER.into()].into_iter().chain(arguments);
        let output = || memfd_create(c"rdzv-preload-output", MemfdFlags::CLOEXEC);
        let setup = child::Setup {
            stdin: Some(theirs),
            stdout: Some(output()?),
            stderr: Some(output()?),
            open_files: launch.placement.open_files,
            ..child::Setup::default()
        };
        let environment = environment_of_workers(launch);
        let program = Program::new(&entrypoint.program, arguments.collect(), &environment)?;
        let count = launch.identity.local_world_size.to_string();
        let setting = [&[count], &launch.preload[..]].concat().join(",");
        send(&channel, setting.as_bytes(), SendFlags::NOSIGNAL)?;
        Ok(Self {
            process: child::start(&program, &setup)?,
            channel: awaitable(channel)?,
            since: Instant::now(),
            is_ready: false,
        })
    }

    /// Receives the messages that have arrived.
    fn update(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match recv(&self.channel, &mut buffer[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return Ok(()),
                // The server has exited and left a message unread. Its own messages follow.
                Err(Errno::CONNRESET) => {}
                Ok((0, _)) => return Err(io::Error::other("the fork server has exited")),
                Ok((length, _)) if buffer[..length] == *READY => {
                    self.is_ready = true;
                    let seconds = self.since.elapsed().as_secs_f64();
                    info!(
                        "the fork server has imported the modules of --preload in {seconds:.1} s"
                    );
                }
                Err(error) => return Err(error.into()),
                Ok((length, _)) => {
                    let reason = String::from_utf8_lossy(&buffer[..length]);
                    return Err(io::Error::other(reason.into_owned()));
                }
            }
        }
    }

    fn fork(
        &self,
        arguments: &[OsString],
        variables: &[(&str, OsString)],
        setup: &child::Setup,
    ) -> io::Result<Spawned> {
        let (answer, theirs) = sockets()?;
        let request = File::from(memfd_create(c"rdzv-preload-request", MemfdFlags::CLOEXEC)?);
        (&request).write_all(&encode(arguments, variables, setup)?)?;
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let stdout_of_worker = setup.stdout.as_ref().map_or(stdout.as_fd(), AsFd::as_fd);
        let stderr_of_worker = setup.stderr.as_ref().map_or(stderr.as_fd(), AsFd::as_fd);
        let mut descriptors = vec![request.as_fd(), theirs.as_fd(), stdin.as_fd()];
        descriptors.extend([stdout_of_worker, stderr_of_worker]);
        descriptors.extend(setup.control_group.as_ref().map(AsFd::as_fd));
        send_request(self.channel.get_ref().as_fd(), &descriptors)?;
        drop(theirs);
        let pid = receive_pid(answer.as_fd())?;
        let not_ours = |error: Errno| {
            let pid = pid.as_raw_nonzero();
            io::Error::other(format!(
                "process {pid} is not a child of the agent: {error}"
            ))
        };
        // The agent has not reaped its children since, so no other process has this id.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(not_ours)?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(pidfd.as_fd()), options).map_err(not_ours)?;
        // Fails only if the worker has exited.
        send(&answer, b"g", SendFlags::NOSIGNAL)?;
        Ok(Spawned { pid, pidfd })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(self.process.pid, Signal::KILL);
        // If it needs more time, the agent reaps it as a leftover of the workers.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.process.pidfd.as_fd()), options);
    }
}

/// Returns two connected sockets that keep the borders of messages.
fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

fn send_request(channel: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(6))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
    debug_assert!(fits, "a request has at most six descriptors");
    sendmsg(
        channel,
        &[io::IoSlice::new(b"f")],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Waits for the process id of a worker that has prepared itself.
fn receive_pid(answer: BorrowedFd<'_>) -> io::Result<Pid> {
    let mut ready = [PollFd::new(&answer, PollFlags::IN)];
    let events = loop {
        match poll(&mut ready, Some(&FORK_WITHIN)) {
            // A signal, such as SIGCHLD of another worker.
            Err(Errno::INTR) => {}
            events => break events?,
        }
    };
    if events == 0 {
        let limit = FORK_WITHIN.tv_sec;
        return Err(io::Error::other(format!(
            "the fork server has started no worker for {limit} s"
        )));
    }
    let mut buffer = [0; 16];
    let (length, _) = recv(answer, &mut buffer[..], RecvFlags::empty())?;
    let text = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
    let pid = text.parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the fork server cannot start a worker"))
}

/// Encodes a request: texts that end with a NUL byte.
fn encode(
    arguments: &[OsString],
    variables: &[(&str, OsString)],
    setup: &child::Setup,
) -> io::Result<Vec<u8>> {
    let processors = setup.processors.iter().flat_map(|set| {
        let all = 0..CpuSet::MAX_CPU;
        all.filter(|processor| set.is_set(*processor))
            .map(|processor| processor.to_string())
    });
    let processors: Vec<String> = processors.collect();
    let numbers = [
        getpid().as_raw_nonzero().to_string(),
        u8::from(setup.traceable).to_string(),
        arguments.len().to_string(),
        processors.join(","),
    ];
    let numbers = numbers.into_iter().map(OsString::from);
    let variables = variables.iter().map(|(name, value)| {
        let mut variable = OsString::from(format!("{name}="));
        variable.push(value);
        variable
    });
    let texts = numbers.chain(arguments.iter().cloned()).chain(variables);
    let texts = texts.map(|text| c_string(&text).map(CString::into_bytes_with_nul));
    Ok(texts.collect::<io::Result<Vec<_>>>()?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[expect(clippy::zombie_processes, reason = "`Running` reaps the process")]
    async fn the_reason_of_a_server_that_left_a_message_unread_is_reported() {
        let (channel, theirs) = sockets().unwrap();
        let process = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut running = Running {
            process: Spawned { pid, pidfd },
            channel: awaitable(channel).unwrap(),
            since: Instant::now(),
            is_ready: false,
        };
        send(&running.channel, b"modules", SendFlags::NOSIGNAL).unwrap();
        send(&theirs, b"reason", SendFlags::NOSIGNAL).unwrap();
        drop(theirs);
        assert_eq!(running.update().unwrap_err().to_string(), "reason");
    }

    #[test]
    fn a_request_is_a_list_of_texts() {
        let mut set = CpuSet::new();
        set.set(1);
        set.set(12);
        let setup = child::Setup {
            traceable: true,
            processors: Some(set),
            ..child::Setup::default()
        };
        let arguments = ["-u".into(), "train.py".into()];
        let variables = [("RANK", "3".into()), ("EMPTY", OsString::new())];
        let request = encode(&arguments, &variables, &setup).unwrap();
        let expected = format!(
            "{}\x001\x002\x001,12\0-u\0train.py\0RANK=3\0EMPTY=\0",
            getpid().as_raw_nonzero()
        );
        assert_eq!(String::from_utf8(request).unwrap(), expected);
        assert!(encode(&["a\0".into()], &[], &setup).is_err());
    }
}
