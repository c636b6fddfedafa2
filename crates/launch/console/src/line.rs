//! Lines of spans, wrapped to a width. The role of a span decides its colour.

use anstyle::{AnsiColor, Style};
use textwrap::{Options, WordSplitter};

/// Label in front of rdzv's messages about a run.
pub const LABEL: &str = "rdzv: ";

/// Beginning of a line with advice.
const HELP: &str = "help: ";

/// The meaning of a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineRole {
    /// Plain text.
    #[default]
    Plain,
    /// Something good: a success.
    Good,
    /// Something that needs attention and is not a failure.
    Warning,
    /// A failure.
    Error,
    /// A detail.
    Detail,
    /// Advice.
    Advice,
}

impl LineRole {
    fn style(self) -> Style {
        let bold = |colour: AnsiColor| colour.on_default().bold();
        match self {
            Self::Plain => Style::new(),
            Self::Good => bold(AnsiColor::Green),
            Self::Warning => bold(AnsiColor::Yellow),
            Self::Error => bold(AnsiColor::Red),
            Self::Detail => Style::new().dimmed(),
            Self::Advice => bold(AnsiColor::Cyan),
        }
    }
}

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Meaning of the part.
    pub role: LineRole,
    /// Text of the part, without control characters.
    pub text: String,
}

/// One line, without a newline.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Line(pub Vec<Span>);

impl Line {
    /// Creates a line of one role.
    pub fn new(role: LineRole, text: impl Into<String>) -> Self {
        let text = text.into();
        Self(vec![Span { role, text }])
    }

    /// Appends another part to the line.
    #[must_use]
    pub fn and(mut self, role: LineRole, text: impl Into<String>) -> Self {
        let text = text.into();
        self.0.push(Span { role, text });
        self
    }

    /// Returns the text without colours.
    pub fn text(&self) -> String {
        self.0.iter().map(|span| span.text.as_str()).collect()
    }

    /// Returns the text, with the escape sequences of its colours if `coloured`.
    pub fn painted(&self, coloured: bool) -> String {
        if !coloured {
            return self.text();
        }
        let paint = |span: &Span| {
            let style = span.role.style();
            format!("{style}{}{style:#}", span.text)
        };
        self.0.iter().map(paint).collect()
    }
}

/// Wraps each line of a text after rdzv's label, as [`headed`] does.
pub fn said(role: LineRole, text: &str, width: Option<usize>) -> Vec<Line> {
    headed(role, LABEL, text, width)
}

/// Wraps each line of a text after `head`.
/// The head has the role, or [`LineRole::Advice`] before advice. Wrapped lines are indented by the
/// width of the head. If `width` is `None`, lines are not wrapped.
pub fn headed(role: LineRole, head: &str, text: &str, width: Option<usize>) -> Vec<Line> {
    let indent = " ".repeat(textwrap::core::display_width(head));
    let mut lines = Vec::new();
    for text in text.lines() {
        let role = if text.starts_with(HELP) {
            LineRole::Advice
        } else {
            role
        };
        for (index, text) in wrap(text, width, indent.len()).into_iter().enumerate() {
            lines.push(match index {
                0 => Line::new(role, head).and(LineRole::Plain, text),
                _ => Line::new(LineRole::Plain, format!("{indent}{text}")),
            });
        }
    }
    lines
}

/// Returns one indented line of a foreign text.
/// A line that is too long is cut and ends with an ellipsis.
pub fn quoted(indent: usize, text: &str, width: Option<usize>) -> Line {
    let text = match width {
        Some(width) => cut(text, width.saturating_sub(indent).max(1)),
        None => text.to_owned(),
    };
    Line::new(LineRole::Detail, format!("{}{text}", " ".repeat(indent)))
}

/// Returns a text in at most `room` columns; an ellipsis replaces the rest.
pub fn cut(text: &str, room: usize) -> String {
    if textwrap::core::display_width(text) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut columns = 1;
    for letter in text.chars() {
        columns += textwrap::core::display_width(letter.encode_utf8(&mut [0; 4]));
        if columns > room {
            break;
        }
        kept.push(letter);
    }
    kept.push('…');
    kept
}

/// Returns the words of a text in at most `room` columns.
/// An ellipsis replaces the rest.
pub fn cut_words(text: &str, room: usize) -> String {
    if textwrap::core::display_width(text) <= room {
        return text.to_owned();
    }
    let cut = cut(text, room.saturating_sub(1));
    match cut.rsplit_once(' ') {
        Some((words, _)) => format!("{words} …"),
        None => "…".to_owned(),
    }
}

/// Wraps words into the columns after the indent.
/// A word is never broken, so that users can copy paths.
fn wrap(text: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    let Some(width) = width else {
        return vec![text.to_owned()];
    };
    let room = width.saturating_sub(indent).max(20);
    let options = Options::new(room)
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(text, options);
    lines
        .into_iter()
        .map(std::borrow::Cow::into_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_wrapped_behind_its_label() {
        let text = "waiting for nodes: 2 of 4 (node-a, node-c)";
        let lines = said(LineRole::Warning, text, Some(30));
        let texts: Vec<String> = lines.iter().map(Line::text).collect();
        assert_eq!(
            texts,
            ["rdzv: waiting for nodes: 2 of", "      4 (node-a, node-c)"]
        );
        assert_eq!(said(LineRole::Warning, text, None).len(), 1);
        let lines = said(LineRole::Error, "no\nhelp: yes", None);
        let expected = [
            (LineRole::Error, "rdzv: no"),
            (LineRole::Advice, "rdzv: help: yes"),
        ];
        assert_eq!(
            lines
                .iter()
                .map(|line| (line.0[0].role, line.text()))
                .collect::<Vec<_>>(),
            expected.map(|(role, text)| (role, text.to_owned()))
        );
    }

    #[test]
    fn a_path_stays_whole_and_a_quoted_line_is_cut_by_columns() {
        let path = "/a/very/long/path/that/no-user/can/copy/if/it/is/broken";
        let lines = said(LineRole::Plain, &format!("logs: {path}"), Some(30));
        assert_eq!(lines[1].text(), format!("      {path}"));
        assert_eq!(cut("日本語テキスト", 7), "日本語…");
        assert_eq!(quoted(2, "abcdef", Some(6)).text(), "  abc…");
        assert_eq!(quoted(2, "abcd", Some(6)).text(), "  abcd");
    }

    #[test]
    fn colours_are_there_only_if_asked_for() {
        let line = Line::new(LineRole::Error, "rdzv: ").and(LineRole::Plain, "x");
        assert_eq!(line.painted(false), "rdzv: x");
        assert_eq!(line.painted(true), "\u{1b}[1m\u{1b}[31mrdzv: \u{1b}[0mx");
    }
}
