//! The code between fork and exec, and the state of descriptors before it.
//!
//! The only `unsafe` code of the agent.
//!
//! Invariant: between fork and exec the child may be a copy of a process with several threads, one
//! of which held the allocator's lock at that moment. Therefore the closure given to `pre_exec` makes
//! system calls only: it does not allocate, take locks, log or panic. `rustix` makes these calls
//! directly, and an error number becomes an `io::Error` without allocation.
//!
//! [`fork`] is for the guard and for the relay of the workers' output, which go on without a new program.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use nix::unistd::ForkResult;
use rdzv_agent_proto::topology::CpuList;
use rdzv_core::env::RDZV_CALL;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{
    PTracer, Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit,
    set_parent_process_death_signal, set_ptracer, setrlimit, setsid,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::signals::{FOR_WORKERS, signal_set};

/// Runs a closure that keeps the invariant at the top of this file between fork and exec.
fn before_exec(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: all callers are in this file, and their closures keep the invariant at its top.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Splits this process in two: `None` in the new one. Refused if this process has other threads, whose
/// locks nobody would release in the new one.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(io::Error::other(format!(
            "the process has {threads} threads; a keeper is to be called before there is a second"
        )));
    }
    // SAFETY: there is one thread, so the new process is a whole copy, and no lock is held by a
    // thread that it lacks.
    let forked = unsafe { nix::unistd::fork() }?;
    Ok(match forked {
        ForkResult::Child => None,
        ForkResult::Parent { child } => Pid::from_raw(child.as_raw()),
    })
}

/// Gives this process a name of its own, in place of program and arguments, as far as that can be done.
pub(crate) fn name_this_process(name: &'static CStr) {
    let _ = rustix::thread::set_name(name);
    let _ = overwrite_arguments(name.to_bytes());
}

/// The arguments lie on the stack, where the kernel reads them when somebody asks for the command line.
/// They are written through a file, since no part of this program may be lent them mutably.
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

/// Makes the command start the agent: see [`detach`]. It ends with the guard until it watches it.
/// The signals that are for the workers wait until it handles them.
pub(crate) fn detach_agent(command: &mut Command) {
    detach(command, Signal::TERM, signal_set(FOR_WORKERS));
}

/// Makes the command start a worker: see [`detach`]. It ends with the agent. No signal is blocked in
/// it, whatever was when the agent was started.
pub(crate) fn detach_worker(command: &mut Command) {
    detach(command, Signal::KILL, SigSet::empty());
}

/// Makes the command start its process in a session and process group of its own, with these signals
/// blocked, and receive `death_signal` when the calling thread ends.
///
/// The kernel ties the death signal to the *thread* that forks, so the command has to be spawned by
/// a thread that lives as long as this process: the main thread.
fn detach(command: &mut Command, death_signal: Signal, blocked: SigSet) {
    let parent = getpid();
    let prepare = move || -> io::Result<()> {
        blocked.thread_set_mask()?;
        follow(parent, death_signal)
    };
    before_exec(command, prepare);
}

/// Gives this process a session and process group of its own, and has it killed when the thread that
/// forked it ends. To be called first by a process that was made by [`fork`].
pub(crate) fn follow_parent(parent: Pid) -> io::Result<()> {
    follow(parent, Signal::KILL)
}

fn follow(parent: Pid, death_signal: Signal) -> io::Result<()> {
    setsid()?;
    set_parent_process_death_signal(Some(death_signal))?;
    // The parent may have died before the line above; then no signal will ever come.
    if getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(
            rustix::io::Errno::SRCH.raw_os_error(),
        ));
    }
    Ok(())
}

/// Lets this process, and what it starts, trace the command's process, where Yama allows that to
/// parents only (`kernel.yama.ptrace_scope` 1): the tool that reads stacks is no parent of a worker.
pub(crate) fn let_trace(command: &mut Command) {
    let tracer = PTracer::ProcessID(getpid());
    let prepare = move || -> io::Result<()> {
        // Without Yama there is nothing to allow, and the kernel says that this is no valid call.
        let _ = set_ptracer(tracer);
        Ok(())
    };
    before_exec(command, prepare);
}

/// Lowers the number of files that the command's process may open. Its children may raise it again.
pub(crate) fn limit_open_files(command: &mut Command, most: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = move || Rlimit {
        current: Some(most),
        maximum,
    };
    before_exec(command, move || Ok(setrlimit(Resource::Nofile, limit())?));
}

/// Makes the command's process go into a control group before anything else of it runs, through the
/// `cgroup.procs` of that group. Where that is refused it stays outside, which is no error.
pub(crate) fn enter(command: &mut Command, entrance: File) {
    let prepare = move || -> io::Result<()> {
        // To the kernel, 0 is the writing process.
        let _ = rustix::io::write(&entrance, b"0");
        Ok(())
    };
    before_exec(command, prepare);
}

/// Makes the command's process run on these processors only, and all that it starts. Spawning fails
/// if none of them can be used any more (taken offline, or out of the cpuset). Processors from 1,024
/// on are left out: the set has no room for them.
pub(crate) fn bind(command: &mut Command, processors: &CpuList) {
    let mut set = CpuSet::new();
    let known = processors.iter().map(|processor| processor as usize);
    for processor in known.filter(|processor| *processor < CpuSet::MAX_CPU) {
        set.set(processor);
    }
    // The set is a plain array inside the closure: the child reads it, and the kernel copies it.
    let prepare = move || -> io::Result<()> { Ok(sched_setaffinity(None::<Pid>, &set)?) };
    before_exec(command, prepare);
}

/// Keeps descriptors that this process inherited from being inherited further: workers get 0, 1
/// and 2 and nothing else, but for the one with their call (`RDZV_CALL`). To be called before this process
/// opens any of its own.
pub(crate) fn keep_descriptors_private() -> io::Result<()> {
    let call = std::env::var(RDZV_CALL).ok();
    let call: Option<i32> = call.and_then(|number| number.parse().ok());
    for number in descriptors()? {
        if Some(number) == call {
            continue;
        }
        // SAFETY: the borrow lives for two calls that only read and write the flags of the
        // descriptor; if it is closed meanwhile (the directory's own one is), they fail.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
    Ok(())
}

/// A descriptor that this process has inherited under this number, for itself alone: no program that it starts has
/// it too. Each number is to be asked for once.
pub(crate) fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the borrow lives for two calls that only read and write the flags of the descriptor; they fail if it
    // is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(descriptor)?;
    fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and it was inherited for the one who asks: nobody else in this process knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The numbers above 2 of descriptors that are open, or may be.
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
        // Without /proc all numbers are tried that descriptors usually have.
        Err(_) => Ok((3..1024).collect()),
    }
}
