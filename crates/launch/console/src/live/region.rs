//! The bytes that put lines and rows on a terminal.
//!
//! The rows are below everything else, and the cursor is at the beginning of the last one. New
//! lines are written in their place, and the rows again below them. This happens in one write and
//! as one update of the screen (mode 2026), so that nothing flickers. A terminal without that mode
//! ignores it.

use super::Row;

const BEGIN_UPDATE: &[u8] = b"\x1b[?2026h";
const END_UPDATE: &[u8] = b"\x1b[?2026l";
const ERASE_LINE: &[u8] = b"\x1b[K";
const ERASE_BELOW: &[u8] = b"\x1b[J";

/// The rows at the bottom of the terminal.
#[derive(Debug, Default)]
pub struct Region {
    rows: Vec<String>,
    /// Columns that each row of `rows` takes.
    lengths: Vec<usize>,
    /// Columns of the terminal.
    width: usize,
}

impl Region {
    /// `true` if there are no rows on the terminal.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// `true` if these rows are on the terminal already.
    pub fn shows(&self, rows: &[String]) -> bool {
        self.rows == rows
    }

    /// Sets the width of the terminal. A narrower terminal has wrapped the rows.
    pub fn resize(&mut self, width: usize) {
        self.width = width;
    }

    /// Returns the bytes that write lines above these rows.
    /// The lines include their line ends; the rows replace the previous rows.
    pub fn draw(&mut self, lines: &[u8], rows: Vec<String>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(lines.len() + 256);
        bytes.extend_from_slice(BEGIN_UPDATE);
        self.go_to_top(&mut bytes);
        if !lines.is_empty() {
            bytes.extend_from_slice(ERASE_BELOW);
            bytes.extend_from_slice(lines);
            if !lines.ends_with(b"\n") {
                bytes.push(b'\n');
            }
        }
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(row.as_bytes());
            bytes.extend_from_slice(ERASE_LINE);
        }
        if lines.is_empty() && rows.len() < self.rows.len() {
            if !rows.is_empty() {
                // The last row stays, and anything below it is erased.
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(ERASE_BELOW);
            if !rows.is_empty() {
                bytes.extend_from_slice(b"\x1b[A");
            }
        }
        if !rows.is_empty() {
            bytes.push(b'\r');
        }
        bytes.extend_from_slice(END_UPDATE);
        self.lengths = rows.iter().map(|row| columns(row)).collect();
        self.rows = rows;
        bytes
    }

    /// Returns the bytes that write lines above the unchanged rows.
    pub fn write(&mut self, lines: &[u8]) -> Vec<u8> {
        let rows = std::mem::take(&mut self.rows);
        self.rows.clone_from(&rows);
        self.draw(lines, rows)
    }

    /// Forgets the rows, which stay on the screen.
    /// Further output begins at the cursor.
    pub fn abandon(&mut self) {
        self.rows.clear();
        self.lengths.clear();
    }

    fn go_to_top(&self, bytes: &mut Vec<u8>) {
        bytes.push(b'\r');
        let wrapped = |length: &usize| match self.width {
            0 => 1,
            width => length.div_ceil(width).max(1),
        };
        // The cursor is at the beginning of the last row. The rows above it may be wrapped.
        let above: usize = match self.lengths.split_last() {
            Some((_, above)) => above.iter().map(wrapped).sum(),
            None => 0,
        };
        if above > 0 {
            bytes.extend_from_slice(format!("\x1b[{above}A").as_bytes());
        }
    }
}

/// Returns the number of columns of a text that contains colours.
fn columns(text: &str) -> usize {
    let mut columns = 0;
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        columns += Row::plain(&rest[..at]).columns();
        rest = rest[at..].find('m').map_or("", |end| &rest[at + end + 1..]);
    }
    columns + Row::plain(rest).columns()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal() -> vt100::Parser {
        let size = |number| std::num::NonZero::new(number).unwrap();
        vt100::Parser::new(size(6), size(20), 0)
    }

    /// Returns the screen of a terminal of 20 columns and 6 rows.
    /// Empty rows at its end are left out.
    fn screen(parser: &vt100::Parser) -> Vec<String> {
        let mut rows: Vec<String> = parser.screen().rows(0, 20).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn strings(rows: &[&str]) -> Vec<String> {
        rows.iter().map(|row| (*row).to_owned()).collect()
    }

    /// Feeds the bytes that a terminal in its usual mode would get.
    fn feed(parser: &mut vt100::Parser, bytes: &[u8]) {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        parser.process(text.replace('\n', "\r\n").as_bytes());
    }

    #[test]
    fn lines_go_above_the_rows() {
        let (mut terminal, mut region) = (terminal(), Region::default());
        feed(
            &mut terminal,
            &region.draw(b"", strings(&["bar 1", "status"])),
        );
        assert_eq!(screen(&terminal), ["bar 1", "status"]);
        feed(
            &mut terminal,
            &region.draw(b"line\n", strings(&["bar 2", "status"])),
        );
        assert_eq!(screen(&terminal), ["line", "bar 2", "status"]);
        feed(&mut terminal, &region.write(b"own\n"));
        assert_eq!(screen(&terminal), ["line", "own", "bar 2", "status"]);
        let long = "x".repeat(25) + "\n";
        feed(&mut terminal, &region.write(long.as_bytes()));
        let expected = ["line", "own", &"x".repeat(20), "xxxxx", "bar 2", "status"];
        assert_eq!(screen(&terminal), expected);
        feed(&mut terminal, &region.write(b"more\n"));
        assert_eq!(screen(&terminal)[3..], ["more", "bar 2", "status"]);
        assert_eq!(terminal.screen().cursor_position(), (5, 0));
    }

    #[test]
    fn rows_come_and_go() {
        let (mut terminal, mut region) = (terminal(), Region::default());
        feed(
            &mut terminal,
            &region.draw(b"line\n", strings(&["a", "b", "status"])),
        );
        feed(&mut terminal, &region.draw(b"", strings(&["status"])));
        assert_eq!(screen(&terminal), ["line", "status"]);
        assert_eq!(terminal.screen().cursor_position(), (1, 0));
        feed(&mut terminal, &region.draw(b"", strings(&["a", "status"])));
        assert_eq!(screen(&terminal), ["line", "a", "status"]);
        feed(&mut terminal, &region.draw(b"end\n", Vec::new()));
        assert_eq!(screen(&terminal), ["line", "end"]);
        feed(&mut terminal, &region.draw(b"", strings(&["a"])));
        feed(&mut terminal, &region.draw(b"", Vec::new()));
        assert_eq!(screen(&terminal), ["line", "end"]);
    }

    #[test]
    fn rows_that_were_wrapped_are_erased_whole() {
        let mut region = Region::default();
        region.resize(20);
        region.draw(
            b"",
            strings(&["\u{1b}[1m0123456789\u{1b}[0m0123", "status"]),
        );
        region.resize(7);
        let bytes = region.draw(b"", strings(&["x"]));
        assert!(
            bytes.starts_with(b"\x1b[?2026h\r\x1b[2A"),
            "{:?}",
            String::from_utf8_lossy(&bytes)
        );
    }
}
