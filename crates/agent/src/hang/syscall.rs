//! Names of the system calls that a process may wait in.

/// The name of the call in what `/proc/PID/syscall` says, or its number; `None` if the process is in
/// none, or that is not for us to know.
pub(crate) fn name(text: &str) -> Option<String> {
    let number: u32 = text.split_whitespace().next()?.parse().ok()?;
    let known = WAITING.iter().find(|(known, _)| *known == number);
    Some(known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned()))
}

#[cfg(target_arch = "x86_64")]
const WAITING: &[(u32, &str)] = &[
    (0, "read"),
    (1, "write"),
    (7, "poll"),
    (16, "ioctl"),
    (17, "pread64"),
    (18, "pwrite64"),
    (19, "readv"),
    (20, "writev"),
    (23, "select"),
    (24, "sched_yield"),
    (34, "pause"),
    (35, "nanosleep"),
    (42, "connect"),
    (43, "accept"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (61, "wait4"),
    (72, "fcntl"),
    (73, "flock"),
    (74, "fsync"),
    (75, "fdatasync"),
    (128, "rt_sigtimedwait"),
    (130, "rt_sigsuspend"),
    (202, "futex"),
    (230, "clock_nanosleep"),
    (232, "epoll_wait"),
    (247, "waitid"),
    (257, "openat"),
    (270, "pselect6"),
    (271, "ppoll"),
    (281, "epoll_pwait"),
    (288, "accept4"),
    (441, "epoll_pwait2"),
    (449, "futex_waitv"),
];

#[cfg(not(target_arch = "x86_64"))]
const WAITING: &[(u32, &str)] = &[
    (22, "epoll_pwait"),
    (25, "fcntl"),
    (29, "ioctl"),
    (32, "flock"),
    (56, "openat"),
    (63, "read"),
    (64, "write"),
    (65, "readv"),
    (66, "writev"),
    (67, "pread64"),
    (68, "pwrite64"),
    (72, "pselect6"),
    (73, "ppoll"),
    (82, "fsync"),
    (83, "fdatasync"),
    (95, "waitid"),
    (98, "futex"),
    (101, "nanosleep"),
    (115, "clock_nanosleep"),
    (124, "sched_yield"),
    (133, "rt_sigsuspend"),
    (137, "rt_sigtimedwait"),
    (202, "accept"),
    (203, "connect"),
    (206, "sendto"),
    (207, "recvfrom"),
    (211, "sendmsg"),
    (212, "recvmsg"),
    (242, "accept4"),
    (260, "wait4"),
    (441, "epoll_pwait2"),
    (449, "futex_waitv"),
];

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
