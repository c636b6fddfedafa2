//! The code between a new process and its program, and the state of descriptors before it.
//!
//! With `clone.rs`, the only `unsafe` code of the agent.
//!
//! Invariant: before its program, a new process may be a copy of a process with several threads,
//! one of which held the allocator's lock at that moment, or share its memory. Therefore the
//! closures given to `pre_exec` and to `clone` make system calls only: they do not allocate, take
//! locks, log or panic. `rustix` makes these calls directly, and an error number becomes an
//! `io::Error` without allocation.
//!
//! A worker is made (`clone.rs`) with the memory of this process, which spares a copy of the page
//! tables and the faults after it. `posix_spawn` does the same, but cannot set a death signal.
//!
//! [`fork`] is for the guard and for the relay of the workers' output, which go on without a new program.
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
use rustix::stdio::{dup2_stderr, dup2_stdout};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Spawned;
use super::clone::{Made, clone};
use super::program::Program;
use crate::signals::{FOR_WORKERS, signal_set};

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

/// Makes the command start the agent: in a session and process group of its own, and ended by SIGTERM with the guard,
/// until it watches that. The signals that are for the workers wait until it handles them.
///
/// The kernel ties the death signal to the *thread* that forks, so the command has to be spawned by
/// a thread that lives as long as this process: the main thread.
pub(crate) fn detach_agent(command: &mut Command) {
    let parent = getpid();
    let blocked = signal_set(FOR_WORKERS);
    let prepare = move || -> io::Result<()> {
        blocked.thread_set_mask()?;
        follow(parent, Signal::TERM)
    };
    // SAFETY: the closure makes system calls only, as the top of this file asks.
    unsafe {
        command.pre_exec(prepare);
    }
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

/// The changes of a new process of a worker to itself before its program.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// `None`: that of this process, here and in the next field.
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    /// The number of files that it may open. Its children may raise it again.
    pub(super) open_files: Option<u64>,
    /// Lets this process, and what it starts, trace it where Yama allows that to parents only
    /// (`kernel.yama.ptrace_scope` 1): the tool that reads stacks is no parent of a worker.
    pub(super) traceable: bool,
    /// The directory of its control group. Where that is refused it stays outside, which is no error.
    pub(super) control_group: Option<File>,
    /// It runs on these processors only. It does not start if none of them can be used any more (taken offline, or
    /// out of the cpuset).
    pub(super) processors: Option<CpuSet>,
}

/// The processors of a list. Those from 1,024 on are left out: the set has no room for them.
pub(super) fn processors(list: &CpuList) -> CpuSet {
    let mut set = CpuSet::new();
    let known = list.iter().map(|processor| processor as usize);
    for processor in known.filter(|processor| *processor < CpuSet::MAX_CPU) {
        set.set(processor);
    }
    set
}

impl Setup {
    /// System calls only. With `is_outside`, the process has yet to go into its control group.
    fn apply(&self, parent: Pid, is_outside: bool) -> io::Result<()> {
        if let Some(stdout) = &self.stdout {
            dup2_stdout(stdout)?;
        }
        if let Some(stderr) = &self.stderr {
            dup2_stderr(stderr)?;
        }
        follow(parent, Signal::KILL)?;
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
            // Without Yama there is nothing to allow, and the kernel says that this is no valid
            // call.
            let _ = set_ptracer(PTracer::ProcessID(parent));
        }
        if let Some(group) = self.control_group.as_ref().filter(|_| is_outside) {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            // To the kernel, 0 is the writing process.
            let _ = openat(group, c"cgroup.procs", flags, Mode::empty())
                .and_then(|entrance| rustix::io::write(entrance, b"0"));
        }
        if let Some(set) = &self.processors {
            sched_setaffinity(None::<Pid>, set)?;
        }
        Ok(())
    }
}

/// The needs of a new process of a worker, and its answer.
struct Start<'a> {
    program: &'a Program,
    setup: &'a Setup,
    parent: Pid,
    arguments: Vec<*const c_char>,
    /// For each candidate those of a shell.
    shells: Vec<Vec<*const c_char>>,
    environment: Vec<*const c_char>,
    /// The process has not begun in its control group.
    is_outside: bool,
    /// It has got as far as the code here.
    has_begun: bool,
    /// Why the program was not executed.
    failed: Option<i32>,
}

/// Starts a worker: in a session and process group of its own, without blocked signals whatever was when the agent
/// was started, and killed when the calling thread ends. The kernel ties that to the *thread*, so this is to be
/// called by one that lives as long as this process: the main thread.
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
        failed: None,
    };
    // A handler of this process must not run in one that shares its memory.
    let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let group = setup.control_group.as_ref().map(AsFd::as_fd);
    let inside = group.and_then(|group| make(&mut start, Some(group)).ok());
    let made = match inside {
        Some(made) if start.has_begun => Ok(made),
        // Of an older kernel, or refused: it goes in by itself. Newer ones (6.18, say) kill a
        // process at once that begins in a group which was ever killed (`cgroup.kill`) another
        // number of times than the group of this one.
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
        (Some(failed), _) => io::Error::from_raw_os_error(failed),
        (None, Err(error)) => {
            let _ = kill_process(pid, Signal::KILL);
            error.into()
        }
    };
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
    Err(error)
}

/// Makes the new process, in its control group or outside. Signals have to be blocked.
fn make(start: &mut Start<'_>, group: Option<BorrowedFd<'_>>) -> io::Result<Made> {
    start.is_outside = group.is_none();
    // SAFETY: `child_main` makes system calls only, and `start` and all that it borrows outlive
    // this call. The new process writes to `start` and to its stack alone.
    unsafe { clone(child_main, (&raw mut *start).cast(), group) }
}

/// The new process, until its program: system calls only.
extern "C" fn child_main(start: *mut c_void) -> c_int {
    // SAFETY: it is the address that the function above has given, and its thread stands still.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    start.has_begun = true;
    start.failed = Some(match start.setup.apply(start.parent, start.is_outside) {
        Err(error) => error.raw_os_error().unwrap_or(0),
        Ok(()) => {
            reset_signals();
            execute(start) as i32
        }
    });
    // Nobody looks at it.
    127
}

/// The addresses of texts, and the null after them. They are good as long as the texts.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    let addresses = texts.iter().map(|text| text.as_ptr());
    addresses.chain([null()]).collect()
}

/// Gives each signal that this process handles its default effect, and SIGPIPE too, which it ignores; then takes all.
fn reset_signals() {
    for signal in nix::sys::signal::Signal::iterator() {
        // SAFETY: an all-zero `sigaction` is a valid one: the default effect, with no flags.
        let (default, mut current): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both point to a `sigaction` on this stack; without handlers, none can be wrong.
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

/// Executes the first candidate that can be, by the rules of `execvp`: returns only if none can.
fn execute(start: &Start<'_>) -> Errno {
    let environment = start.environment.as_ptr();
    let mut failed = Errno::ENOENT;
    for (candidate, shell) in start.program.candidates.iter().zip(&start.shells) {
        // SAFETY: all are lists of pointers to texts that live in `program`, with a null at the
        // end.
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
    // SAFETY: the borrow lives for two calls that only read and write the flags of the descriptor;
    // they fail if it is not open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(descriptor)?;
    fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and it was inherited for the one who asks: nobody else in this process
    // knows of it.
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
