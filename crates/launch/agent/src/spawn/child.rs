//! Code that runs in a new process before its program.
//!
//! This file and `clone.rs` contain the only `unsafe` code of the agent.
//!
//! Invariant: before its program, a new process may be a copy of a process with several threads, or
//! share its memory. One of those threads may have held the allocator's lock at that moment. The
//! closures given to `pre_exec` and to `clone` therefore make system calls only: they do not
//! allocate, take locks, log or panic. `rustix` makes these calls directly, and an error number
//! becomes an `io::Error` without allocation.
//!
//! A worker starts (`clone.rs`) with the memory of this process. This avoids a copy of the page
//! tables and the page faults after it. `posix_spawn` does the same, but cannot set a death signal.
//!
//! [`fork`] is for the guard, the service of `rdzv store` and the relay of the workers' output,
//! which continue without a new program.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::ForkResult;
use rdzv_agent_proto::topology::CpuList;
use rdzv_core::env::RDZV_CALL;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{
    PTracer, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getppid,
    getrlimit, kill_process, pidfd_open, set_parent_process_death_signal, set_ptracer, setrlimit,
    setsid, waitid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Spawned;
use super::clone::{Made, clone};
use super::program::Program;
use crate::signals::{FOR_WORKERS, signal_set};

/// Forks this process; returns `None` in the new process.
/// Fails if this process has other threads. The new process would have no thread to release their
/// locks.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(io::Error::other(format!(
            "the process has {threads} threads, but only a process with a single thread can be forked"
        )));
    }
    // SAFETY: there is one thread, so the new process is a complete copy, and no missing thread
    // holds a lock.
    let forked = unsafe { nix::unistd::fork() }?;
    Ok(match forked {
        ForkResult::Child => None,
        ForkResult::Parent { child } => Pid::from_raw(child.as_raw()),
    })
}

/// Changes the name and the command line of this process, as far as possible.
pub(crate) fn name_this_process(name: &'static CStr) {
    let _ = rustix::thread::set_name(name);
    let _ = overwrite_arguments(name.to_bytes());
}

/// Overwrites the command line of this process.
/// The arguments are on the stack, and the kernel reads them there when a tool asks for the command
/// line. This function writes through a file, because no part of this program may have a mutable
/// reference to the arguments.
fn overwrite_arguments(name: &[u8]) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, after_name) = stat.rsplit_once(')').unwrap_or_default();
    // The fields are numbered from 1; the first one after the name is the third.
    let mut fields = after_name.split_whitespace().skip(48 - 3);
    let mut address = || fields.next().and_then(|field| field.parse::<u64>().ok());
    let (Some(start), Some(end)) = (address(), address()) else {
        return Ok(());
    };
    let room = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
    let mut arguments = vec![0; room];
    // The last byte stays 0: otherwise the kernel shows the environment as well.
    let length = name.len().min(room.saturating_sub(1));
    arguments[..length].copy_from_slice(&name[..length]);
    let memory = File::options().write(true).open("/proc/self/mem")?;
    memory.write_all_at(&arguments, start)
}

/// Prepares the command so that it starts the agent.
///
/// The agent gets a new session and process group. Until the agent watches the guard, the kernel
/// sends SIGTERM to the agent when the guard exits. The signals for the workers are blocked until
/// the agent handles them.
///
/// The kernel ties the death signal to the *thread* that forks. The command must therefore be
/// spawned by a thread that lives as long as this process: the main thread.
pub(crate) fn detach_agent(command: &mut Command) {
    let parent = getpid();
    let blocked = signal_set(FOR_WORKERS);
    let prepare = move || -> io::Result<()> {
        blocked.thread_set_mask()?;
        follow(parent, Signal::TERM)
    };
    // SAFETY: the closure makes system calls only, as the top of this file requires.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Gives this process a new session and process group.
/// The kernel kills the process when the thread that forked it exits. The relay, which [`fork`]
/// creates, calls this function.
pub(crate) fn follow_parent(parent: Pid) -> io::Result<()> {
    follow(parent, Signal::KILL)
}

fn follow(parent: Pid, death_signal: Signal) -> io::Result<()> {
    setsid()?;
    set_parent_process_death_signal(Some(death_signal))?;
    // The parent may have died before the line above; then the signal never arrives.
    if getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(
            rustix::io::Errno::SRCH.raw_os_error(),
        ));
    }
    Ok(())
}

/// Changes that a worker's new process makes to itself before its program.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// `None` keeps the stream of this process, here and in the next two fields.
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    /// Soft limit on open files; the worker and its children may raise it again.
    pub(super) open_files: Option<u64>,
    /// `true` if this process and its children may trace the worker.
    /// Otherwise Yama (`kernel.yama.ptrace_scope` 1) allows that only to the ancestors of the
    /// worker. The tool that reads stacks is a child of the agent, and therefore no ancestor.
    pub(super) traceable: bool,
    /// Directory of the worker's control group.
    /// If the kernel refuses the group, the worker stays outside; this is no error.
    pub(super) control_group: Option<File>,
    /// Processors on which the worker runs.
    /// The worker does not start if all of them are offline or outside the cpuset.
    pub(super) processors: Option<CpuSet>,
}

/// Converts a list of processors; the set has room for numbers below 1,024.
pub(super) fn processors(list: &CpuList) -> CpuSet {
    let mut set = CpuSet::new();
    let known = list.iter().map(|processor| processor as usize);
    for processor in known.filter(|processor| *processor < CpuSet::MAX_CPU) {
        set.set(processor);
    }
    set
}

impl Setup {
    /// Applies the changes; makes system calls only.
    /// `is_outside` is `true` if the process must still enter its control group. `step` is the
    /// change that is being made.
    fn apply(&self, parent: Pid, is_outside: bool, step: &mut &'static str) -> io::Result<()> {
        *step = "redirect its output";
        if let Some(stdin) = &self.stdin {
            dup2_stdin(stdin)?;
        }
        if let Some(stdout) = &self.stdout {
            dup2_stdout(stdout)?;
        }
        if let Some(stderr) = &self.stderr {
            dup2_stderr(stderr)?;
        }
        *step = "create a session for it";
        follow(parent, Signal::KILL)?;
        *step = "set its limit of open files";
        if let Some(most) = self.open_files {
            setrlimit(
                Resource::Nofile,
                Rlimit {
                    current: Some(most),
                    maximum: getrlimit(Resource::Nofile).maximum,
                },
            )?;
        }
        if self.traceable {
            // Without Yama, nothing needs permission, and the kernel reports an invalid call.
            let _ = set_ptracer(PTracer::ProcessID(parent));
        }
        if let Some(group) = self.control_group.as_ref().filter(|_| is_outside) {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            // To the kernel, 0 means the writing process.
            let _ = openat(group, c"cgroup.procs", flags, Mode::empty())
                .and_then(|entrance| rustix::io::write(entrance, b"0"));
        }
        if let Some(set) = &self.processors {
            *step = "bind it to its processors (--numa-binding)";
            sched_setaffinity(None::<Pid>, set)?;
        }
        Ok(())
    }
}

/// Input of a worker's new process, and its answer.
struct Start<'a> {
    program: &'a Program,
    setup: &'a Setup,
    parent: Pid,
    arguments: Vec<*const c_char>,
    /// Arguments of the shell for each candidate.
    shells: Vec<Vec<*const c_char>>,
    environment: Vec<*const c_char>,
    /// `true` if the process did not start in its control group.
    is_outside: bool,
    /// `true` once the process has reached the code here.
    has_begun: bool,
    /// Change that the process makes to itself; empty once it executes the program.
    step: &'static str,
    /// Error number of the change that failed, or of executing the program.
    failed: Option<i32>,
}

/// Starts a worker; must be called on the main thread.
///
/// The worker gets a new session and process group and no blocked signals, even if some were
/// blocked at the start of the agent. The kernel kills the worker when the calling *thread* exits,
/// so that thread must live as long as this process.
pub(super) fn start(program: &Program, setup: &Setup) -> io::Result<Spawned> {
    let shells = program.candidates.iter();
    let mut start = Start {
        program,
        setup,
        parent: getpid(),
        arguments: pointers(&program.arguments),
        shells: shells
            .map(|candidate| pointers(&candidate.shell_arguments))
            .collect(),
        environment: pointers(&program.environment),
        is_outside: false,
        has_begun: false,
        step: "",
        failed: None,
    };
    // A signal handler of this process must not run in a process that shares its memory.
    let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let group = setup.control_group.as_ref().map(AsFd::as_fd);
    let inside = group.and_then(|group| make(&mut start, Some(group)).ok());
    let made = match inside {
        Some(made) if start.has_begun => Ok(made),
        // The kernel is older, or it refused: the process enters the group after its start. Newer
        // kernels (6.18, for example) compare how often `cgroup.kill` killed the new group and the
        // group of this process. If the numbers differ, they kill the new process immediately.
        killed => {
            if let Some((pid, _)) = killed {
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            }
            make(&mut start, None)
        }
    };
    blocked.thread_set_mask()?;
    let (pid, pidfd) = made?;
    let pidfd = pidfd.map_or_else(|| pidfd_open(pid, PidfdFlags::empty()), Ok);
    let error = match (start.failed, pidfd) {
        (None, Ok(pidfd)) => return Ok(Spawned { pid, pidfd }),
        (Some(failed), _) => {
            let error = io::Error::from_raw_os_error(failed);
            match start.step {
                "" => error,
                step => io::Error::new(error.kind(), format!("cannot {step}: {error}")),
            }
        }
        (None, Err(error)) => {
            let _ = kill_process(pid, Signal::KILL);
            error.into()
        }
    };
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    Err(error)
}

/// Creates the new process, in its control group or outside.
/// Signals must be blocked.
fn make(start: &mut Start<'_>, group: Option<BorrowedFd<'_>>) -> io::Result<Made> {
    start.is_outside = group.is_none();
    // SAFETY: `child_main` makes system calls only, and `start` and all that it borrows outlive
    // this call. The new process writes only to `start` and to its stack.
    unsafe { clone(child_main, (&raw mut *start).cast(), group) }
}

/// Runs in the new process until its program; makes system calls only.
extern "C" fn child_main(start: *mut c_void) -> c_int {
    // SAFETY: it is the address that `make` passed, and the thread in `make` waits for this
    // process.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    start.has_begun = true;
    let (setup, step) = (start.setup, &mut start.step);
    start.failed = Some(match setup.apply(start.parent, start.is_outside, step) {
        Err(error) => error.raw_os_error().unwrap_or(0),
        Ok(()) => {
            start.step = "";
            reset_signals();
            execute(start) as i32
        }
    });
    // Nothing reads this code.
    127
}

/// Returns the addresses of texts and a final null; valid as long as the texts.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    let addresses = texts.iter().map(|text| text.as_ptr());
    addresses.chain([null()]).collect()
}

/// Resets all handled signals and SIGPIPE to their defaults; then unblocks all.
/// Rust programs such as this process ignore SIGPIPE.
fn reset_signals() {
    for signal in nix::sys::signal::Signal::iterator() {
        // SAFETY: an all-zero `sigaction` is valid: it is the default effect, with no flags.
        let (default, mut current): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both point to a `sigaction` on this stack; without handlers, neither can be
        // wrong.
        unsafe {
            libc::sigaction(signal as i32, null(), &raw mut current);
            let kept = [libc::SIG_DFL, libc::SIG_IGN].contains(&current.sa_sigaction);
            if !kept || signal == nix::sys::signal::SIGPIPE {
                libc::sigaction(signal as i32, &raw const default, std::ptr::null_mut());
            }
        }
    }
    let _ = SigSet::empty().thread_set_mask();
}

/// Executes the first candidate that can be executed, by the rules of `execvp`.
/// Returns only on failure.
fn execute(start: &Start<'_>) -> Errno {
    let environment = start.environment.as_ptr();
    let mut failed = Errno::ENOENT;
    for (candidate, shell) in start.program.candidates.iter().zip(&start.shells) {
        // SAFETY: all three are lists of pointers to texts that live in `program`, with a null at
        // the end.
        unsafe {
            libc::execve(
                candidate.file.as_ptr(),
                start.arguments.as_ptr(),
                environment,
            );
            if Errno::last() == Errno::ENOEXEC {
                libc::execve(shell[0], shell.as_ptr(), environment);
            }
        }
        match Errno::last() {
            Errno::EACCES => failed = Errno::EACCES,
            Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT => {}
            other => return other,
        }
    }
    failed
}

/// Stops workers from inheriting the descriptors that this process inherited.
/// Workers get 0, 1 and 2 only, and the descriptor of their call (`RDZV_CALL`). The function also
/// marks the descriptors that this process has opened before the call.
pub(crate) fn keep_descriptors_private() -> io::Result<()> {
    let call = std::env::var(RDZV_CALL).ok();
    let call: Option<i32> = call.and_then(|number| number.parse().ok());
    for number in descriptors()? {
        if Some(number) == call {
            continue;
        }
        // SAFETY: the borrow lives for two calls that only read and write the flags of the
        // descriptor. If the descriptor is closed in between, as the directory's is, the calls
        // fail.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
    Ok(())
}

/// Takes ownership of an inherited descriptor.
/// Programs that this process starts do not inherit the descriptor. Each number must be taken once
/// only.
pub(crate) fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the borrow lives for two calls that only read and write the flags of the descriptor;
    // they fail if it is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(descriptor)?;
    fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and this process inherited it for the caller only. No other
    // code in this process uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn descriptors() -> io::Result<Vec<i32>> {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries
            .map(|entry| {
                Ok(entry?
                    .file_name()
                    .to_str()
                    .and_then(|text| text.parse().ok()))
            })
            .filter_map(io::Result::transpose)
            .filter(|number| !matches!(number, Ok(..=2)))
            .collect(),
        // Without /proc, try all numbers that descriptors usually have.
        Err(_) => Ok((3..1024).collect()),
    }
}
