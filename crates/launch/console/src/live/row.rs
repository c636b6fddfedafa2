//! One row of cells with their colours.

use std::fmt::Write;

use anstyle::{Effects, Style};
use unicode_width::UnicodeWidthChar;

/// A character in its column, with the characters joined to it.
/// Joined characters are accents and variation selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    /// NUL in the second half of a wide character.
    character: char,
    joined: Option<Box<str>>,
    style: Style,
}

impl Cell {
    fn blank() -> Self {
        Self {
            character: ' ',
            joined: None,
            style: Style::new(),
        }
    }

    fn is_blank(&self) -> bool {
        self.character == ' ' && self.joined.is_none() && is_invisible(self.style)
    }
}

/// `true` if a space in this style looks like a plain space.
fn is_invisible(style: Style) -> bool {
    let drawn = [Effects::UNDERLINE, Effects::INVERT, Effects::STRIKETHROUGH];
    let effects = style.get_effects();
    style.get_bg_color().is_none() && !drawn.iter().any(|effect| effects.contains(*effect))
}

/// A row of cells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    cells: Vec<Cell>,
}

impl Row {
    /// Creates a row of plain text.
    pub fn plain(text: &str) -> Self {
        let mut row = Self::default();
        let mut column = 0;
        for character in text.chars() {
            column = row.put(column, character, Style::new());
        }
        row
    }

    /// `true` if the row shows nothing.
    pub fn is_blank(&self) -> bool {
        self.cells.iter().all(Cell::is_blank)
    }

    /// Returns the number of columns up to the last cell that was written.
    pub fn columns(&self) -> usize {
        self.cells.len()
    }

    /// Puts a character into a column, and returns the next column.
    pub(super) fn put(&mut self, column: usize, character: char, style: Style) -> usize {
        let Some(width) = character.width() else {
            return column;
        };
        if width == 0 {
            self.join(column, character);
            return column;
        }
        while self.cells.len() < column {
            self.cells.push(Cell::blank());
        }
        self.split(column);
        self.split(column + width);
        for part in 0..width {
            let cell = Cell {
                character: if part == 0 { character } else { '\0' },
                joined: None,
                style,
            };
            match self.cells.get_mut(column + part) {
                Some(there) => *there = cell,
                None => self.cells.push(cell),
            }
        }
        column + width
    }

    /// Blanks both halves of a wide character that is cut here.
    fn split(&mut self, column: usize) {
        if column > 0
            && self
                .cells
                .get(column)
                .is_some_and(|cell| cell.character == '\0')
        {
            self.cells[column - 1] = Cell::blank();
            self.cells[column] = Cell::blank();
        }
    }

    fn join(&mut self, column: usize, character: char) {
        let end = column.min(self.cells.len());
        let before = self.cells[..end]
            .iter_mut()
            .rev()
            .find(|cell| cell.character != '\0');
        if let Some(cell) = before {
            let mut joined = cell.joined.take().map_or_else(String::new, String::from);
            // More than a few accents on one letter are not text.
            if joined.len() < 64 {
                joined.push(character);
            }
            cell.joined = Some(joined.into());
        }
    }

    /// Erases the columns of this range.
    pub(super) fn erase(&mut self, from: usize, to: usize) {
        if to >= self.cells.len() {
            self.split(from);
            self.cells.truncate(from);
            return;
        }
        self.split(from);
        self.split(to);
        for cell in &mut self.cells[from..to] {
            *cell = Cell::blank();
        }
    }

    /// Returns the text of the first `width` columns, in its colours.
    /// Blanks at the end are left out. After the text, no colour is set.
    pub fn text(&self, width: usize) -> String {
        let mut cells = &self.cells[..self.cells.len().min(width)];
        while let Some((last, rest)) = cells.split_last()
            && last.is_blank()
        {
            cells = rest;
        }
        // Only the first half of a wide character would be left at the edge.
        if let Some(next) = self.cells.get(cells.len())
            && next.character == '\0'
        {
            cells = &cells[..cells.len() - 1];
        }
        let mut text = String::with_capacity(cells.len());
        let mut style = Style::new();
        for cell in cells.iter().filter(|cell| cell.character != '\0') {
            if cell.style != style {
                // Writing to a String cannot fail.
                let _ = write!(text, "{}{}", style.render_reset(), cell.style.render());
                style = cell.style;
            }
            text.push(cell.character);
            text.push_str(cell.joined.as_deref().unwrap_or_default());
        }
        let _ = write!(text, "{}", style.render_reset());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_the_width_and_never_within_a_character() {
        let row = Row::plain("ab\u{1f600}c");
        assert_eq!(row.columns(), 5);
        assert_eq!(row.text(80), "ab\u{1f600}c");
        assert_eq!(row.text(4), "ab\u{1f600}");
        assert_eq!(row.text(3), "ab");
        assert_eq!(Row::plain("e\u{301}x").text(1), "e\u{301}");
        assert!(Row::plain("   ").is_blank());
    }

    #[test]
    fn half_of_a_wide_character_is_never_left() {
        let mut row = Row::plain("\u{1f600}\u{1f600}");
        row.put(1, 'x', Style::new());
        assert_eq!(row.text(80), " x\u{1f600}");
        row.erase(3, 9);
        assert_eq!(row.text(80), " x");
    }

    #[test]
    fn colours_end_with_the_text() {
        let mut row = Row::default();
        row.put(0, 'a', Style::new().bold());
        row.put(1, 'b', Style::new());
        assert_eq!(row.text(9), "\u{1b}[1ma\u{1b}[0mb");
        assert_eq!(row.text(1), "\u{1b}[1ma\u{1b}[0m");
    }
}
