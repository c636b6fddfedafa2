//! Names of the system calls that a process may wait in.

/// Returns the name or number of the call in a text of `/proc/PID/syscall`.
/// `None` if the process is in no call, or if this process may not read it.
pub(crate) fn name(text: &str) -> Option<String> {
    let number: u32 = text.split_whitespace().next()?.parse().ok()?;
    let mut known = EVERYWHERE.iter().chain(OLDER);
    let known = known.find(|(known, _)| *known == libc::c_long::from(number));
    let name = known.and_then(|(_, name)| name.strip_prefix("SYS_"));
    Some(name.map_or_else(|| number.to_string(), str::to_owned))
}

/// Makes a table of these calls of the C library, by number and name.
macro_rules! calls {
    ($($call:ident,)*) => {
        &[$((libc::$call, stringify!($call)),)*]
    };
}

/// Calls that every architecture has.
const EVERYWHERE: &[(libc::c_long, &str)] = calls! {
    SYS_accept, SYS_accept4, SYS_clock_nanosleep, SYS_connect, SYS_epoll_pwait,
    SYS_epoll_pwait2, SYS_fcntl, SYS_fdatasync, SYS_flock, SYS_fsync, SYS_futex,
    SYS_futex_waitv, SYS_ioctl, SYS_nanosleep, SYS_openat, SYS_ppoll, SYS_pread64, SYS_pselect6,
    SYS_pwrite64, SYS_read, SYS_readv, SYS_recvfrom, SYS_recvmsg, SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait, SYS_sched_yield, SYS_sendmsg, SYS_sendto, SYS_wait4, SYS_waitid,
    SYS_write, SYS_writev,
};

/// Calls that newer architectures have only under another name.
#[cfg(target_arch = "x86_64")]
const OLDER: &[(libc::c_long, &str)] = calls! {
    SYS_epoll_wait, SYS_pause, SYS_poll, SYS_select,
};
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[(libc::c_long, &str)] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_a_name_or_at_least_its_number() {
        assert_eq!(name("4000 0x0 0x0"), Some("4000".to_owned()));
        assert_eq!(name("running\n"), None);
        assert_eq!(name("-1 0x7ffe 0x7f4b"), None);
        assert_eq!(name(""), None);
        let futex = if cfg!(target_arch = "x86_64") {
            202
        } else {
            98
        };
        assert_eq!(name(&format!("{futex} 0x7f")), Some("futex".to_owned()));
    }
}
