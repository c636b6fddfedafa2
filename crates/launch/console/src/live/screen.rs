//! One stream of a worker, as finished lines and a row that is redrawn.
//!
//! Only the terminal sequences that lines and progress bars need have an effect. They set colours,
//! move the cursor up, down and within its line, hide it, or erase. All others (titles, the
//! alternate screen, absolute rows) are left out, so a worker can change only its own rows.
//!
//! A line is finished when the cursor cannot return to it. A plain line is finished immediately.
//! The cursor may return to rows that were redrawn, and to all rows while it is hidden. Those rows
//! wait until other text follows.

use std::collections::VecDeque;

use anstyle::{Ansi256Color, AnsiColor, Color, Effects, RgbColor, Style};
use memchr::memchr;
use vte::{Params, Parser, Perform};

use super::row::Row;

/// Number of rows to which a worker can return.
const MOST_ROWS: usize = 24;

/// Column at which a longer line is finished.
const LONGEST_LINE: usize = 16 << 10;

/// The screen of one stream of a worker.
#[derive(Default)]
pub struct Screen {
    parser: Parser,
    state: State,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// Rows that are not finished, and the cursor in them.
#[derive(Default)]
struct State {
    rows: VecDeque<Tracked>,
    /// Row of the cursor; below the number of rows, unless there are no rows.
    row: usize,
    column: usize,
    style: Style,
    is_hidden: bool,
    /// `true` after `\r` or a backspace, so the next text redraws the row.
    returned: bool,
    /// `true` if the cursor has gone up since the last row was begun.
    went_up: bool,
    finished: Vec<Row>,
}

#[derive(Debug, Default)]
struct Tracked {
    row: Row,
    is_redrawn: bool,
}

impl Screen {
    /// Adds bytes, and emits the lines that they finish.
    /// Lines are clean text without line ends, colours included.
    pub fn take(&mut self, mut bytes: &[u8], emit: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let end = memchr(b'\n', bytes);
            let length = end.map_or(bytes.len(), |end| end + 1);
            let (line, rest) = bytes.split_at(length);
            bytes = rest;
            if end.is_some() && self.state.is_plain() && is_simple(&line[..length - 1]) {
                let line = &line[..length - 1];
                emit(line.strip_suffix(b"\r").unwrap_or(line));
                continue;
            }
            self.parser.advance(&mut self.state, line);
            for row in self.state.finished.drain(..) {
                emit(row.text(usize::MAX).as_bytes());
            }
        }
    }

    /// `true` if a bar has ended: there are rows above the cursor that it has left.
    pub fn has_left_rows(&self) -> bool {
        let state = &self.state;
        state.row > 0 && !state.went_up && !state.is_hidden
    }

    /// Finishes the rows above the cursor.
    pub fn finish_left_rows(&mut self, emit: &mut dyn FnMut(&[u8])) {
        if self.has_left_rows() {
            self.state.finish_first(self.state.row);
            for row in self.state.finished.drain(..) {
                emit(row.text(usize::MAX).as_bytes());
            }
        }
    }

    /// Emits the rest at the end of the stream.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&[u8])) {
        let is_blank = |last: &Tracked| last.row.is_blank();
        while self.state.rows.back().is_some_and(is_blank) {
            self.state.rows.pop_back();
        }
        for tracked in self.state.rows.drain(..) {
            emit(tracked.row.text(usize::MAX).as_bytes());
        }
        self.state = State::default();
    }

    /// Returns the unfinished row to show, and `true` if it is redrawn.
    pub fn row(&self) -> Option<(&Row, bool)> {
        let state = &self.state;
        let mut seen = state.rows.iter().filter(|tracked| !tracked.row.is_blank());
        let current = state.rows.get(state.row);
        let shown = if state.is_hidden || state.went_up {
            seen.next()
        } else {
            match current.filter(|current| !current.row.is_blank()) {
                Some(current) => Some(current),
                None => seen.next_back(),
            }
        };
        shown.map(|tracked| (&tracked.row, tracked.is_redrawn || state.is_hidden))
    }
}

/// `true` only if a line consists of printable characters.
fn is_simple(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // 0xc2 begins the control characters of Latin 1.
    let is_text = |byte: u8| byte >= 0x20 && byte != 0x7f && byte != 0xc2;
    // The loop has no early exit, so the compiler can check many bytes together.
    let all = line.iter().fold(true, |all, byte| all & is_text(*byte));
    all && std::str::from_utf8(line).is_ok()
}

impl State {
    /// `true` if no text, style or hidden cursor affects the next line.
    fn is_plain(&self) -> bool {
        self.column == 0
            && !self.is_hidden
            && self.style == Style::new()
            && self.rows.iter().all(|tracked| tracked.row.columns() == 0)
    }

    fn current(&mut self) -> &mut Tracked {
        if self.rows.is_empty() {
            self.rows.push_back(Tracked::default());
            self.row = 0;
        }
        &mut self.rows[self.row]
    }

    fn line_feed(&mut self) {
        self.current();
        self.column = 0;
        self.returned = false;
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push_back(Tracked::default());
            self.went_up = false;
        } else {
            self.rows[self.row].is_redrawn = false;
        }
        self.release();
    }

    /// Finishes the rows to which the worker does not return.
    fn release(&mut self) {
        let above = self.rows.iter().take(self.row).rev();
        let kept = if self.is_hidden {
            self.row
        } else {
            above.take_while(|tracked| tracked.is_redrawn).count()
        };
        self.finish_first(self.row - kept.min(MOST_ROWS));
    }

    fn finish_first(&mut self, rows: usize) {
        self.row -= rows;
        let finished = self.rows.drain(..rows).map(|tracked| tracked.row);
        self.finished.extend(finished);
    }

    fn carriage_return(&mut self) {
        self.column = 0;
        self.returned = true;
        // This row is redrawn although the cursor did not go up, so the bars above it have ended.
        if !self.went_up
            && !self.is_hidden
            && self.current().row.columns() > 0
            && self.current().is_redrawn
        {
            self.finish_first(self.row);
        }
    }

    fn up(&mut self, rows: usize) {
        self.went_up = true;
        self.row = self.row.saturating_sub(rows);
    }

    fn down(&mut self, rows: usize) {
        self.row = (self.row + rows).min(self.rows.len().saturating_sub(1));
    }

    fn erase_line(&mut self, mode: u16) {
        let column = self.column;
        let row = &mut self.current().row;
        match mode {
            0 => row.erase(column.min(row.columns()), usize::MAX),
            1 => row.erase(0, column + 1),
            _ => row.erase(0, usize::MAX),
        }
    }

    fn select_graphics(&mut self, params: &Params) {
        let mut numbers = params.iter();
        while let Some(number) = numbers.next() {
            let extended = |numbers: &mut dyn Iterator<Item = u16>| {
                let byte = |number: Option<u16>| u8::try_from(number?).ok();
                Some(match numbers.next()? {
                    5 => Color::Ansi256(Ansi256Color(byte(numbers.next())?)),
                    2 => Color::Rgb(RgbColor(
                        byte(numbers.next())?,
                        byte(numbers.next())?,
                        byte(numbers.next())?,
                    )),
                    _ => return None,
                })
            };
            let style = self.style;
            let effect =
                |effect: Effects, on: bool| style.effects(style.get_effects().set(effect, on));
            self.style = match number[0] {
                0 => Style::new(),
                1 => effect(Effects::BOLD, true),
                2 => effect(Effects::DIMMED, true),
                3 => effect(Effects::ITALIC, true),
                4 => effect(Effects::UNDERLINE, number.get(1) != Some(&0)),
                5 => effect(Effects::BLINK, true),
                7 => effect(Effects::INVERT, true),
                8 => effect(Effects::HIDDEN, true),
                9 => effect(Effects::STRIKETHROUGH, true),
                22 => {
                    let effects = style.get_effects();
                    style.effects(effects.remove(Effects::BOLD).remove(Effects::DIMMED))
                }
                23 => effect(Effects::ITALIC, false),
                24 => effect(Effects::UNDERLINE, false),
                25 => effect(Effects::BLINK, false),
                27 => effect(Effects::INVERT, false),
                28 => effect(Effects::HIDDEN, false),
                29 => effect(Effects::STRIKETHROUGH, false),
                number @ (30..=37 | 90..=97) => style.fg_color(basic(number)),
                number @ (40..=47 | 100..=107) => style.bg_color(basic(number - 10)),
                39 => style.fg_color(None),
                49 => style.bg_color(None),
                kind @ (38 | 48) => {
                    let color = if number.len() > 1 {
                        // `38:2:⟨colour space⟩:r:g:b` has one number more than `38:2:r:g:b`.
                        let skip = usize::from(number.get(1) == Some(&2) && number.len() > 5);
                        let (mode, rest) = (number[1], &number[2 + skip..]);
                        extended(&mut std::iter::once(mode).chain(rest.iter().copied()))
                    } else {
                        extended(&mut numbers.by_ref().map(|number| number[0]))
                    };
                    match kind {
                        38 => style.fg_color(color),
                        _ => style.bg_color(color),
                    }
                }
                _ => style,
            };
        }
    }
}

/// Returns the colour of `30..=37` and `90..=97`.
fn basic(number: u16) -> Option<Color> {
    let colors = [
        AnsiColor::Black,
        AnsiColor::Red,
        AnsiColor::Green,
        AnsiColor::Yellow,
        AnsiColor::Blue,
        AnsiColor::Magenta,
        AnsiColor::Cyan,
        AnsiColor::White,
    ];
    let color = colors[usize::from(number % 10)];
    Some(Color::Ansi(color.bright(number >= 90)))
}

impl Perform for State {
    fn print(&mut self, character: char) {
        if character.is_control() {
            return;
        }
        if std::mem::take(&mut self.returned) {
            self.current().is_redrawn = true;
        }
        let (column, style) = (self.column, self.style);
        self.column = self.current().row.put(column, character, style);
        if self.column >= LONGEST_LINE {
            self.current().is_redrawn = false;
            self.line_feed();
        }
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            b'\n' => self.line_feed(),
            b'\r' => self.carriage_return(),
            b'\t' => {
                let to = (self.column / 8 + 1) * 8;
                while self.column < to {
                    self.print(' ');
                }
            }
            0x08 => {
                self.column = self.column.saturating_sub(1);
                self.returned = true;
            }
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: char) {
        if ignore {
            return;
        }
        let first = params.iter().next().map_or(0, |first| first[0]);
        let count = usize::from(first.max(1)).min(LONGEST_LINE);
        if intermediates == b"?" {
            if first == 25 {
                self.is_hidden = action == 'l';
                self.release();
            }
            return;
        }
        if !intermediates.is_empty() {
            return;
        }
        match action {
            'm' => self.select_graphics(params),
            'A' => self.up(count),
            'B' => self.down(count),
            'C' => self.column = (self.column + count).min(LONGEST_LINE - 1),
            'D' => self.column = self.column.saturating_sub(count),
            'E' => {
                self.column = 0;
                self.down(count);
            }
            'F' => {
                self.column = 0;
                self.up(count);
            }
            'G' => self.column = count - 1,
            'K' => self.erase_line(first),
            'J' if first == 0 => {
                self.erase_line(0);
                self.rows.truncate(self.row + 1);
            }
            'X' => {
                let column = self.column;
                self.current().row.erase(column, column + count);
            }
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, _intermediates: &[u8], _ignore: bool, byte: u8) {
        // Reverse index: up by one.
        if byte == b'M' {
            self.up(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the finished lines and the remaining row, however the text is cut.
    fn shown(text: &str) -> (Vec<String>, Option<String>) {
        let shown = |cut: usize| {
            let (mut screen, mut lines) = (Screen::default(), Vec::new());
            for bytes in text.as_bytes().chunks(cut) {
                screen.take(bytes, &mut |line| {
                    lines.push(String::from_utf8(line.to_vec()).unwrap());
                });
            }
            let row = screen.row().map(|(row, _)| row.text(80));
            (lines, row)
        };
        let whole = shown(usize::MAX);
        assert_eq!(shown(1), whole, "byte by byte");
        assert_eq!(shown(7), whole, "in pieces");
        whole
    }

    fn lines(text: &str) -> Vec<String> {
        shown(text).0
    }

    #[test]
    fn lines_are_finished_by_any_end() {
        assert_eq!(
            lines("a\nb\r\n\n\u{1f600}\u{e4}\n"),
            ["a", "b", "", "\u{1f600}\u{e4}"]
        );
        assert_eq!(shown("no end"), (vec![], Some("no end".to_owned())));
        assert_eq!(lines("a\tb\n"), ["a       b"]);
    }

    #[test]
    fn colours_are_kept_and_go_on_in_the_next_line() {
        let text = "\u{1b}[31mred\nstill\u{1b}[0m not\n\u{1b}[38;5;208mx\u{1b}[m\u{1b}[48;2;1;2;3my\u{1b}[0m\n";
        assert_eq!(
            lines(text),
            [
                "\u{1b}[31mred\u{1b}[0m",
                "\u{1b}[31mstill\u{1b}[0m not",
                "\u{1b}[38;5;208mx\u{1b}[0m\u{1b}[48;2;1;2;3my\u{1b}[0m",
            ]
        );
    }

    #[test]
    fn what_is_not_a_workers_own_is_out_of_its_reach() {
        let text = "\u{1b}]0;title\u{7}a\u{1b}[2J\u{1b}[Hb\u{1b}[5;5Hc\u{1b}[?1049h\u{1b}c\u{9b}31md\u{7}\n";
        assert_eq!(lines(text), ["abc31md"]);
        // The cursor cannot go above the worker's own rows either.
        assert_eq!(lines("first\n\u{1b}[5Asecond\n"), ["first", "second"]);
    }

    #[test]
    fn a_bar_is_one_row_and_its_end_one_line() {
        let bar = "\r  0%|    |\r 50%|##  |\r100%|####|";
        assert_eq!(shown(bar), (vec![], Some("100%|####|".to_owned())));
        let ended = format!("{bar}\n");
        assert_eq!(shown(&ended), (vec![], Some("100%|####|".to_owned())));
        assert_eq!(lines(&format!("{ended}next\n")), ["100%|####|", "next"]);
        // If a second bar follows, it is the one that is shown.
        let second = format!("{ended}\r  0%|\r 10%|");
        assert_eq!(
            shown(&second),
            (vec!["100%|####|".to_owned()], Some(" 10%|".to_owned()))
        );
    }

    #[test]
    fn a_bar_that_has_ended_can_be_finished() {
        let (mut screen, mut lines) = (Screen::default(), Vec::new());
        let mut emit = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
        screen.take(b"\r 50%\r100%", &mut emit);
        assert!(!screen.has_left_rows());
        screen.take(b"\n", &mut emit);
        assert!(screen.has_left_rows());
        screen.finish_left_rows(&mut emit);
        assert!(!screen.has_left_rows() && screen.row().is_none());
        assert_eq!(lines, ["100%"]);
    }

    #[test]
    fn nested_bars_stay_on_their_rows() {
        let outer = |percent| format!("\router {percent}%");
        let inner = |percent| format!("\n\rinner {percent}%\u{1b}[A");
        let mut text = outer(0);
        for percent in 0..50 {
            text += &inner(percent);
            text += &outer(percent);
        }
        assert_eq!(shown(&text), (vec![], Some("outer 49%".to_owned())));
        text += "\n\nafter\n";
        assert_eq!(lines(&text), ["outer 49%", "inner 49%", "after"]);
    }

    #[test]
    fn a_display_of_several_rows_is_redrawn_on_the_same_rows() {
        // This is rich's way to redraw.
        let mut text = "\u{1b}[?25l".to_owned();
        for step in 0..30 {
            if step > 0 {
                text += "\r\u{1b}[2K\u{1b}[1A\u{1b}[2K\u{1b}[1A\u{1b}[2K";
            }
            text += &format!("one {step}\ntwo {step}\nthree {step}");
        }
        assert_eq!(shown(&text), (vec![], Some("one 29".to_owned())));
        text += "\n\u{1b}[?25h";
        assert_eq!(lines(&text), ["one 29", "two 29", "three 29"]);
    }

    #[test]
    fn an_endless_line_ends() {
        let lines = lines(&"x".repeat(40_000));
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.len() == LONGEST_LINE));
    }

    #[test]
    fn what_is_left_at_the_end_is_a_line() {
        let (mut screen, mut lines) = (Screen::default(), Vec::new());
        let mut emit = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
        screen.take(b"done\nname? ", &mut emit);
        screen.finish(&mut emit);
        assert!(screen.row().is_none());
        assert_eq!(lines, ["done", "name?"]);
    }
}
