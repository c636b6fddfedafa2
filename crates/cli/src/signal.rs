//! Names and numbers of signals.

use rustix::process::Signal;

/// Number of the signal that cannot be handled and ends a process.
pub(crate) const KILL: i32 = Signal::KILL.as_raw();

/// Number of the signal that cannot be handled and stops a process.
pub(crate) const STOP: i32 = Signal::STOP.as_raw();

/// The first name of a number is the one that is shown; further ones are accepted.
const SIGNALS: [(&str, i32); 37] = [
    ("SIGHUP", Signal::HUP.as_raw()),
    ("SIGINT", Signal::INT.as_raw()),
    ("SIGQUIT", Signal::QUIT.as_raw()),
    ("SIGILL", Signal::ILL.as_raw()),
    ("SIGTRAP", Signal::TRAP.as_raw()),
    ("SIGABRT", Signal::ABORT.as_raw()),
    ("SIGIOT", Signal::ABORT.as_raw()),
    ("SIGBUS", Signal::BUS.as_raw()),
    ("SIGFPE", Signal::FPE.as_raw()),
    ("SIGKILL", Signal::KILL.as_raw()),
    ("SIGUSR1", Signal::USR1.as_raw()),
    ("SIGSEGV", Signal::SEGV.as_raw()),
    ("SIGUSR2", Signal::USR2.as_raw()),
    ("SIGPIPE", Signal::PIPE.as_raw()),
    ("SIGALRM", Signal::ALARM.as_raw()),
    ("SIGTERM", Signal::TERM.as_raw()),
    ("SIGSTKFLT", Signal::STKFLT.as_raw()),
    ("SIGCHLD", Signal::CHILD.as_raw()),
    ("SIGCLD", Signal::CHILD.as_raw()),
    ("SIGCONT", Signal::CONT.as_raw()),
    ("SIGSTOP", Signal::STOP.as_raw()),
    ("SIGTSTP", Signal::TSTP.as_raw()),
    ("SIGTTIN", Signal::TTIN.as_raw()),
    ("SIGTTOU", Signal::TTOU.as_raw()),
    ("SIGURG", Signal::URG.as_raw()),
    ("SIGXCPU", Signal::XCPU.as_raw()),
    ("SIGXFSZ", Signal::XFSZ.as_raw()),
    ("SIGVTALRM", Signal::VTALARM.as_raw()),
    ("SIGPROF", Signal::PROF.as_raw()),
    ("SIGWINCH", Signal::WINCH.as_raw()),
    ("SIGIO", Signal::IO.as_raw()),
    ("SIGPOLL", Signal::IO.as_raw()),
    ("SIGPWR", Signal::POWER.as_raw()),
    ("SIGSYS", Signal::SYS.as_raw()),
    ("SIGUNUSED", Signal::SYS.as_raw()),
    // The real-time range that the C library leaves to programs.
    ("SIGRTMIN", 34),
    ("SIGRTMAX", 64),
];

/// The number of a signal, by a name such as `SIGTERM`.
pub(crate) fn number(name: &str) -> Option<i32> {
    let (_, number) = SIGNALS.iter().find(|(known, _)| *known == name)?;
    Some(*number)
}

/// The name of a signal; none for most real-time signals, as in the reference.
pub(crate) fn name(number: i32) -> Option<&'static str> {
    let (name, _) = SIGNALS.iter().find(|(_, known)| *known == number)?;
    Some(name)
}
