//! Finds causes in the last lines of a worker's stderr.

use super::exception;
use crate::group::cause::{Cause, one_line};
use crate::group::exit::Exit;

/// Returns the cause that a worker reported on stderr, if it did.
///
/// The exception (`Class: text`) of the last Python traceback takes precedence, because exit
/// handlers and threads may print more lines after it. Without a traceback, the last recognised
/// line counts.
pub(super) fn last_words(lines: &[String], exit: Exit) -> Option<Cause> {
    if let Some((_, last)) = traceback(lines) {
        return Some(exception(unprefixed(&lines[last]).trim()));
    }
    lines
        .iter()
        .enumerate()
        .rev()
        .find_map(|(index, line)| recognised(line, lines.get(index + 1), exit))
}

/// Finds the last Python traceback.
/// Returns the indexes of its first line and of the exception's line. The exception's line is the
/// first line after the head that is not indented and begins with a class name.
pub(super) fn traceback(lines: &[String]) -> Option<(usize, usize)> {
    // A line with a bar belongs to one exception of a group. The group's traceback is further up.
    let head = lines.iter().rposition(|line| {
        let line = line.trim();
        line.ends_with("Traceback (most recent call last):") && !line.starts_with('|')
    })?;
    let last = lines[head + 1..].iter().position(|line| {
        let line = unprefixed(line).trim_end();
        !line.is_empty() && !line.starts_with([' ', '\t']) && names_a_class(line)
    })?;
    Some((head, head + 1 + last))
}

/// Returns a line without the prefix that each line of its traceback has.
/// PyTorch adds such a prefix (`[rank0]: `), and so does Python for a group of exceptions.
fn unprefixed(line: &str) -> &str {
    let after_rank = line
        .strip_prefix("[rank")
        .and_then(|rest| rest.split_once("]: "))
        .filter(|(rank, _)| rank.chars().all(|digit| digit.is_ascii_digit()))
        .map_or(line, |(_, rest)| rest);
    after_rank.strip_prefix("  | ").unwrap_or(after_rank)
}

/// Returns the last line that contains a letter or a digit.
pub(super) fn last_line(lines: &[String]) -> Option<String> {
    let said = |line: &&String| line.chars().any(char::is_alphanumeric);
    lines.iter().rfind(said).map(|line| one_line(line))
}

/// `true` if a line begins with a dotted name, as a Python exception does.
fn names_a_class(line: &str) -> bool {
    let name = line.split([':', ' ']).next().unwrap_or_default();
    !name.is_empty()
        && name.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && name
            .chars()
            .all(|character| character.is_alphanumeric() || "._<>".contains(character))
}

fn recognised(line: &str, next: Option<&String>, exit: Exit) -> Option<Cause> {
    let line = line.trim();
    // Python: the script does not exist, or no module has that name.
    let no_script = exit == Exit::Code(2) && line.contains("can't open file");
    let no_module = line.contains(": No module named ") && !line.contains("Error");
    if no_script || no_module {
        return Some(Cause::NotStarted {
            reason: one_line(line),
        });
    }
    if line.contains("No space left on device") {
        return Some(Cause::DiskFull {
            text: one_line(line),
        });
    }
    // Rust: since 1.73 the message is on the line after the source location. Earlier versions print
    // both on one line.
    if line.starts_with("thread '") && line.contains(" panicked at ") {
        let message = next
            .filter(|_| line.ends_with(':'))
            .map_or(String::new(), |next| format!(" {next}"));
        return Some(Cause::exception(&format!("{line}{message}")));
    }
    // C++: an uncaught exception; its text is on the next line.
    if line.starts_with("terminate called") {
        let what = next
            .and_then(|next| next.trim().strip_prefix("what():"))
            .map_or(String::new(), |what| format!(": {}", what.trim()));
        return Some(Cause::exception(&format!("{line}{what}")));
    }
    let fatal = FATAL.iter().any(|known| line.starts_with(known))
        || line.ends_with(" failed.") && line.contains(": Assertion `");
    fatal.then(|| Cause::exception(line))
}

/// Line prefixes with which programs and libraries report a fatal error.
const FATAL: &[&str] = &[
    "Fatal Python error:",
    "malloc(): ",
    "free(): ",
    "double free or corruption",
    "corrupted size vs. prev_size",
    "munmap_chunk(): ",
    "realloc(): ",
    "*** stack smashing detected ***",
    "*** buffer overflow detected ***",
    "SyntaxError: ",
    "IndentationError: ",
    "TabError: ",
    "panic: ",
    "fatal error: ",
];
