//! The label of a worker's lines, and its colour.

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

/// The colours of workers, in the order of their ranks.
/// Red is reserved for errors.
const COLORS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::Magenta,
    AnsiColor::BrightCyan,
];

/// Text before each line of a worker, or of workers that wrote the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    text: String,
    style: Style,
}

impl Label {
    /// Creates a label with `text` and a space.
    /// With `colours`, the label has the colour of its rank, or is bold for several ranks (`None`).
    /// Without `colours`, the label is plain.
    pub fn new(text: &str, rank: Option<u32>, colours: bool) -> Self {
        let style = match rank {
            _ if !colours => Style::new(),
            Some(rank) => Style::new().fg_color(Some(COLORS[rank as usize % COLORS.len()].into())),
            None => Style::new().bold(),
        };
        Self {
            text: text.to_owned(),
            style,
        }
    }

    /// Returns the number of columns of the label and its space.
    pub fn width(&self) -> usize {
        self.text.width() + 1
    }

    /// Returns the text with its colour, and the space.
    pub fn render(&self) -> String {
        format!("{}{}{} ", self.style, self.text, self.style.render_reset())
    }
}

/// Appends a block of lines (`\n` between them) to the output.
/// Each line gets the label in front and a line end.
pub fn labelled(label: &str, block: &[u8], output: &mut Vec<u8>) {
    for line in block.split(|byte| *byte == b'\n') {
        output.extend_from_slice(label.as_bytes());
        output.extend_from_slice(line);
        output.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_block_has_the_label() {
        let label = Label::new("[node-a 3]", Some(3), false);
        assert_eq!(label.width(), 11);
        let mut output = Vec::new();
        labelled(&label.render(), b"a\n  b", &mut output);
        assert_eq!(output, b"[node-a 3] a\n[node-a 3]   b\n");
    }

    #[test]
    fn colours_can_be_left_out() {
        let label = |colours| Label::new("[1]", Some(1), colours).render();
        assert_eq!(label(true), "\u{1b}[32m[1]\u{1b}[0m ");
        assert_eq!(label(false), "[1] ");
    }
}
