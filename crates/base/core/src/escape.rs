//! Texts of other processes and nodes, fit to be shown.
//!
//! A worker or any peer that reaches a port chooses such a text. Shown as it is, it could move the
//! cursor of a terminal, begin a line that looks like one of ours, or turn the order of the letters
//! around. It is escaped once, where it enters: then each message, log line and report may hold it.

/// The text as one line. Control characters, line breaks and marks that change the direction of
/// writing become escapes such as `\n` and `\u{1b}`; a tab becomes a blank.
pub fn escape(text: &str) -> String {
    replaced(text, |letter| match letter {
        '\t' => Some(' '),
        other => Some(other).filter(|letter| !is_harmful(*letter)),
    })
}

/// The same for a text of several lines, such as a traceback: it keeps its line breaks and tabs.
pub fn escape_lines(text: &str) -> String {
    replaced(&text.replace("\r\n", "\n"), |letter| {
        Some(letter).filter(|letter| matches!(letter, '\n' | '\t') || !is_harmful(*letter))
    })
}

/// Bytes that need not be a text, as one line; what is no UTF-8 becomes `\u{fffd}`.
pub fn escape_bytes(bytes: &[u8]) -> String {
    escape(&String::from_utf8_lossy(bytes))
}

/// Whether the text is one line with nothing to escape in it, as names of hosts are.
pub fn is_plain(text: &str) -> bool {
    !text.contains(is_harmful)
}

fn replaced(text: &str, shown: impl Fn(char) -> Option<char>) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match shown(letter) {
            Some(letter) => escaped.push(letter),
            None => escaped.extend(letter.escape_default()),
        }
    }
    escaped
}

/// Whether a terminal or a reader would not see the character but its effect.
fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            // Direction: marks, embeddings, overrides, isolates.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Line and paragraph separators.
            | '\u{2028}' | '\u{2029}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_shows_what_was_in_it() {
        assert_eq!(escape("naïve 日本 'x' \\ \"y\""), "naïve 日本 'x' \\ \"y\"");
        assert_eq!(
            escape("a\u{1b}[2J\r\nrdzv: b\tc\0\u{7f}\u{9b}"),
            "a\\u{1b}[2J\\r\\nrdzv: b c\\u{0}\\u{7f}\\u{9b}"
        );
        assert_eq!(
            escape("\u{202e}txt\u{2066}\u{2028}"),
            "\\u{202e}txt\\u{2066}\\u{2028}"
        );
        assert_eq!(escape_bytes(b"\xff\x1b"), "\u{fffd}\\u{1b}");
        assert!(is_plain("node-ä.example") && !is_plain("node\n") && !is_plain("a\tb"));
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(
            escape_lines("a\r\n\tb\n\u{1b}[0m\r"),
            "a\n\tb\n\\u{1b}[0m\\r"
        );
    }
}
