//! Text without terminal sequences.

use vte::{Parser, Perform};

/// Returns the characters of some output, including `\n`, `\r` and tabs.
/// Callers search this text for patterns.
pub fn strip(bytes: &[u8]) -> String {
    let mut text = Text(String::with_capacity(bytes.len()));
    Parser::new().advance(&mut text, bytes);
    text.0
}

struct Text(String);

impl Perform for Text {
    fn print(&mut self, character: char) {
        if !character.is_control() {
            self.0.push(character);
        }
    }

    fn execute(&mut self, byte: u8) {
        if matches!(byte, b'\n' | b'\r' | b'\t') {
            self.0.push(char::from(byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_titles_are_gone() {
        let coloured =
            "\u{1b}]0;t\u{7}\u{1b}[1;35mValueError\u{1b}[0m: \u{1b}[35m\u{e4}\u{1b}[0m\r\n\tx";
        assert_eq!(strip(coloured.as_bytes()), "ValueError: \u{e4}\r\n\tx");
    }
}
