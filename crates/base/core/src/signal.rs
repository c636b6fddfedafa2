//! Names and numbers of signals.
//!
//! Linux uses these numbers on every architecture for which rdzv is built.

/// Names and numbers.
/// If a number has several names, only the first is displayed.
const SIGNALS: [(&str, i32); 37] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGILL", 4),
    ("SIGTRAP", 5),
    ("SIGABRT", 6),
    ("SIGIOT", 6),
    ("SIGBUS", 7),
    ("SIGFPE", 8),
    ("SIGKILL", 9),
    ("SIGUSR1", 10),
    ("SIGSEGV", 11),
    ("SIGUSR2", 12),
    ("SIGPIPE", 13),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGSTKFLT", 16),
    ("SIGCHLD", 17),
    ("SIGCLD", 17),
    ("SIGCONT", 18),
    ("SIGSTOP", 19),
    ("SIGTSTP", 20),
    ("SIGTTIN", 21),
    ("SIGTTOU", 22),
    ("SIGURG", 23),
    ("SIGXCPU", 24),
    ("SIGXFSZ", 25),
    ("SIGVTALRM", 26),
    ("SIGPROF", 27),
    ("SIGWINCH", 28),
    ("SIGIO", 29),
    ("SIGPOLL", 29),
    ("SIGPWR", 30),
    ("SIGSYS", 31),
    ("SIGUNUSED", 31),
    // The first and the last real-time signal that glibc leaves to programs.
    ("SIGRTMIN", 34),
    ("SIGRTMAX", 64),
];

/// Returns the number of the signal with a name such as `SIGTERM`.
pub fn number(name: &str) -> Option<i32> {
    let (_, number) = SIGNALS.iter().find(|(known, _)| *known == name)?;
    Some(*number)
}

/// Returns the names of all signals in the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    SIGNALS.iter().map(|(name, _)| *name)
}

/// Returns the name of the signal with this number.
///
/// `None` for a number that is not in the table, such as that of most real-time signals.
pub fn name(number: i32) -> Option<&'static str> {
    let (name, _) = SIGNALS.iter().find(|(_, known)| *known == number)?;
    Some(name)
}

/// Formats a signal for a message: `SIGTERM`, or `signal 40` if it has no name.
pub fn in_words(number: i32) -> String {
    name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_number_is_shown_and_all_are_known() {
        assert_eq!((name(6), number("SIGIOT")), (Some("SIGABRT"), Some(6)));
        assert_eq!((name(40), in_words(40).as_str()), (None, "signal 40"));
        assert_eq!(in_words(9), "SIGKILL");
    }
}
