//! The code between fork and exec, and the state of descriptors before it.
//!
//! The only `unsafe` code of the agent.
//!
//! Invariant: between fork and exec the child may be a copy of a process with several threads, one
//! of which held the allocator's lock at that moment. Therefore the closure given to `pre_exec` makes
//! system calls only: it does not allocate, take locks, log or panic. `rustix` makes these calls
//! directly, and an error number becomes an `io::Error` without allocation.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rdzv_agent_proto::topology::CpuList;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{
    PTracer, Pid, Signal, getpid, getppid, set_parent_process_death_signal, set_ptracer, setsid,
};
use rustix::thread::{CpuSet, sched_setaffinity};

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

/// Makes the command start its process in a session and process group of its own, and receive
/// `death_signal` when the calling thread ends.
///
/// The kernel ties the death signal to the *thread* that forks, so the command has to be spawned by
/// a thread that lives as long as this process: the main thread.
pub(crate) fn detach(command: &mut Command, death_signal: Signal) {
    let parent = getpid();
    let prepare = move || -> io::Result<()> {
        setsid()?;
        set_parent_process_death_signal(Some(death_signal))?;
        // The parent may have died before the line above; then no signal will ever come.
        if getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(
                rustix::io::Errno::SRCH.raw_os_error(),
            ));
        }
        Ok(())
    };
    before_exec(command, prepare);
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
/// and 2 and nothing else. To be called before this process opens any of its own.
pub(crate) fn keep_descriptors_private() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number: Option<i32> = name.to_str().and_then(|text| text.parse().ok());
        let Some(number) = number.filter(|&number| number > 2) else {
            continue;
        };
        // SAFETY: the borrow lives for two calls that only read and write the flags of the
        // descriptor; if it is closed meanwhile (the directory's own one is), they fail.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = fcntl_getfd(descriptor) {
            let _ = fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC);
        }
    }
    Ok(())
}
