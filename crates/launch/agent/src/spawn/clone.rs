//! System calls that create a process in the memory of this one.
//!
//! The new process shares the memory until it executes a program.
//!
//! Invariant: the calling thread waits until the new process has executed a program or exited
//! (CLONE_VFORK). The new process runs on a separate stack and never returns into code of this one.
//!
//! `clone3` can start a process inside a control group. Moving the process there afterwards costs
//! the kernel one RCU synchronization: 5 to 15 ms on 2 processors, 20 to 40 ms on 16. No C library
//! has a function for `clone3` with a stack. This file therefore contains the few instructions for
//! the two processor architectures that rdzv runs on.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

/// Code of a new process; returns its exit code if it executes no program.
pub(super) type Child = extern "C" fn(*mut c_void) -> c_int;

/// Size of the stack, in bytes, for the code before the program.
const STACK: usize = 64 << 10;

/// Flag of `clone3`; the C library's constant cannot hold it.
const INTO_CGROUP: u64 = 1 << 33;

const FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;

/// New process, and a descriptor that becomes readable when it exits.
/// The descriptor is `None` if the kernel does not support it.
pub(super) type Made = (Pid, Option<OwnedFd>);

/// Creates a process that runs `child`.
/// With the directory of a control group, the process starts in that group, or the call fails.
///
/// # Safety
///
/// `child` must make system calls only, because a lock of this process may be held. `argument` must
/// be valid for `child`. Signals must be blocked, because a handler of this process must not run in
/// a process that shares its memory.
pub(super) unsafe fn clone(
    child: Child,
    argument: *mut c_void,
    group: Option<BorrowedFd<'_>>,
) -> io::Result<Made> {
    // In units with the alignment of the stack.
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let mut pidfd: c_int = -1;
    let made = match group {
        None => {
            // SAFETY: the stack grows down from its end, less than a tenth of it is used, and it
            // lives until this call returns. The caller guarantees the rest.
            let made = unsafe {
                libc::clone(
                    child,
                    stack.as_mut_ptr_range().end.cast(),
                    FLAGS | libc::SIGCHLD,
                    argument,
                    &raw mut pidfd,
                )
            };
            match made {
                -1 => Err(io::Error::last_os_error()),
                pid => Ok(pid),
            }
        }
        Some(group) => {
            // SAFETY: the structure contains only numbers.
            let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
            arguments.flags = FLAGS.unsigned_abs().into();
            arguments.flags |= INTO_CGROUP;
            arguments.exit_signal = libc::SIGCHLD.unsigned_abs().into();
            arguments.pidfd = (&raw mut pidfd).addr() as u64;
            arguments.stack = stack.as_mut_ptr().addr() as u64;
            arguments.stack_size = STACK as u64;
            arguments.cgroup = u64::from(group.as_raw_fd().unsigned_abs());
            // SAFETY: as above.
            match unsafe { clone3(&arguments, child, argument) } {
                error @ ..0 => Err(io::Error::from_raw_os_error(-error)),
                pid => Ok(pid),
            }
        }
    };
    let pid = Pid::from_raw(made?).ok_or(io::ErrorKind::InvalidData)?;
    let pidfd = match pidfd {
        // The kernel does not know the flag.
        ..0 => None,
        // SAFETY: the kernel opened it for this call, and no other code uses it.
        pidfd => Some(unsafe { OwnedFd::from_raw_fd(pidfd) }),
    };
    Ok((pid, pidfd))
}

/// Returns the id of the new process, or a negative error number.
///
/// # Safety
///
/// Same conditions as [`clone`]. The stack in the arguments is for the new process alone, and its
/// end is aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(arguments: &libc::clone_args, child: Child, argument: *mut c_void) -> c_int {
    let made: i64;
    // SAFETY: the kernel preserves all registers except these three. The new process gets copies of
    // them, and its stack; it calls `child` and exits.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone3 => made,
            in("rdi") arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") argument,
            in("r13") child,
            out("rcx") _,
            out("r11") _,
        );
    }
    made as c_int
}

/// Returns the id of the new process, or a negative error number.
///
/// # Safety
///
/// Same conditions as [`clone`]. The stack in the arguments is for the new process alone, and its
/// end is aligned to 16 bytes.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(arguments: &libc::clone_args, child: Child, argument: *mut c_void) -> c_int {
    let made: i64;
    // SAFETY: the kernel preserves all registers except the first. The new process gets copies of
    // them, and its stack; it calls `child` and exits.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "mov x8, {exit}",
            "svc #0",
            "brk #1",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("x0") arguments => made,
            in("x1") size_of::<libc::clone_args>(),
            in("x8") libc::SYS_clone3,
            in("x20") argument,
            in("x21") child,
        );
    }
    made as c_int
}

/// Fails on other processors; the process then enters its group later.
///
/// # Safety
///
/// This function has no effect.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(_: &libc::clone_args, _: Child, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    extern "C" fn ends(code: *mut c_void) -> c_int {
        // SAFETY: the test below gives the address of a number.
        unsafe { *code.cast::<c_int>() }
    }

    /// Returns the exit code of the new process.
    fn exit_code(group: Option<BorrowedFd<'_>>) -> io::Result<Option<i32>> {
        let mut code: c_int = 41;
        // SAFETY: `ends` makes no call at all, and signals that a test handles end the test.
        let (pid, pidfd) = unsafe { clone(ends, (&raw mut code).cast(), group) }?;
        assert!(pidfd.is_some());
        let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED)?;
        Ok(status.and_then(|status| status.exit_status()))
    }

    #[test]
    fn a_process_is_made_without_a_group_and_not_in_what_is_none() {
        assert_eq!(exit_code(None).unwrap(), Some(41));
        let folder = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(folder.path()).unwrap();
        assert!(exit_code(Some(folder.as_fd())).is_err());
    }

    #[test]
    fn a_process_begins_in_a_group() {
        // Any group will do, so we use this process's group if the unified hierarchy is mounted.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let (Some(mount), Some(own)) = (mount, own) else {
            return eprintln!("NOT TESTED: there is no unified hierarchy here");
        };
        let mount = mount.split(' ').nth(4).unwrap();
        let group = std::fs::File::open(std::path::Path::new(mount).join(own)).unwrap();
        match exit_code(Some(group.as_fd())) {
            Ok(code) => assert_eq!(code, Some(41)),
            // We may not add to the group, or the container's filter of system calls rejects
            // `clone3`.
            Err(error) => {
                let refused = [libc::EACCES, libc::EPERM, libc::EROFS, libc::ENOSYS];
                let number = error.raw_os_error().unwrap();
                assert!(refused.contains(&number), "{error}");
                eprintln!("NOT TESTED: no process may begin in a control group here: {error}");
            }
        }
    }
}
