//! Escaping of texts from other processes and nodes for safe display.
//!
//! A worker, or any peer that can reach a port, controls such a text. Unescaped, the text could
//! move the cursor of a terminal, imitate a log line of rdzv, or reverse the order of letters. Most
//! texts are escaped on input. Afterwards, any message, log line or report may contain them.

/// Escapes a text into one line.
///
/// Control characters, line breaks and bidirectional control characters become escapes such as `\n`
/// and `\u{1b}`. A tab becomes a space.
pub fn escape(text: &str) -> String {
    replaced(text, |letter| match letter {
        '\t' => Some(' '),
        other => Some(other).filter(|letter| !is_harmful(*letter)),
    })
}

/// Escapes a text with several lines, such as a traceback.
///
/// Line breaks and tabs are kept, but `\r\n` becomes `\n`.
pub fn escape_lines(text: &str) -> String {
    replaced(&text.replace("\r\n", "\n"), |letter| {
        Some(letter).filter(|letter| matches!(letter, '\n' | '\t') || !is_harmful(*letter))
    })
}

/// Escapes bytes into one line; invalid UTF-8 becomes U+FFFD.
pub fn escape_bytes(bytes: &[u8]) -> String {
    escape(&String::from_utf8_lossy(bytes))
}

/// `true` if the text is one line without characters to escape.
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

/// `true` if a character has an effect instead of a visible form.
fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            // Bidirectional control characters: marks, embeddings, overrides, isolates.
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
