//! Just enough of Rust's lexical structure to tell code from comments and from texts.

/// What a stretch of a source file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Code,
    Comment,
    /// The inside of a string literal, without its quotes.
    Text,
}

/// A stretch of a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Line of its first character, from 1.
    pub(crate) line: usize,
}

/// Cuts `source` into pieces, in order and without gaps except for the quotes of texts.
pub(crate) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut code_start = 0;
    let mut at = 0;
    let mut lines = LineCounter::new(source);
    while at < source.len() {
        let rest = &source[at..];
        let Some((kind, opening, inside, closing)) = special(rest, before(source, at)) else {
            at += char_length(rest);
            continue;
        };
        let text_start = at + opening;
        lines.push(&mut pieces, Kind::Code, code_start, at);
        lines.push(&mut pieces, kind, text_start, text_start + inside);
        at = text_start + inside + closing;
        code_start = at;
    }
    lines.push(&mut pieces, Kind::Code, code_start, source.len());
    pieces
}

/// Recognises a comment, a text or a character at the start of `rest`: its kind and the lengths of
/// its opening, inside and closing.
fn special(rest: &str, before: Option<char>) -> Option<(Kind, usize, usize, usize)> {
    if rest.starts_with("//") {
        return Some((Kind::Comment, 0, rest.find('\n').unwrap_or(rest.len()), 0));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, 0, block_comment(rest), 0));
    }
    if let Some(inside) = rest.strip_prefix('"') {
        let length = quoted(inside, '"');
        return Some((Kind::Text, 1, length, usize::from(length < inside.len())));
    }
    if rest.starts_with('r') && !before.is_some_and(is_word) || rest.starts_with("br") {
        return raw_text(rest);
    }
    if let Some(inside) = rest.strip_prefix('\'') {
        return character(inside);
    }
    None
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += char_length(&rest[at..]);
        }
    }
    rest.len()
}

/// Length up to the closing quote that no backslash escapes.
fn quoted(inside: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at,
            _ => {}
        }
    }
    inside.len()
}

fn raw_text(rest: &str) -> Option<(Kind, usize, usize, usize)> {
    let after_letters = rest.trim_start_matches('b').strip_prefix('r')?;
    let hashes = after_letters.len() - after_letters.trim_start_matches('#').len();
    let inside = after_letters[hashes..].strip_prefix('"')?;
    let closing = format!("\"{}", "#".repeat(hashes));
    let length = inside.find(&closing).unwrap_or(inside.len());
    let opening = rest.len() - inside.len();
    Some((
        Kind::Text,
        opening,
        length,
        closing.len().min(inside.len() - length),
    ))
}

/// A character literal; a lifetime has no closing quote and stays code.
fn character(inside: &str) -> Option<(Kind, usize, usize, usize)> {
    let length = match inside.chars().next()? {
        '\\' => quoted(inside, '\''),
        first => first.len_utf8(),
    };
    inside[length..]
        .starts_with('\'')
        .then_some((Kind::Text, 1, length, 1))
}

fn before(source: &str, at: usize) -> Option<char> {
    source[..at].chars().next_back()
}

fn char_length(rest: &str) -> usize {
    rest.chars().next().map_or(1, char::len_utf8)
}

/// Whether `c` can be part of a name.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words of `text` with the offset of each.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split(|c| !is_word(c))
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

struct LineCounter<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> LineCounter<'a> {
    fn new(source: &'a str) -> Self {
        Self {
            source,
            at: 0,
            line: 1,
        }
    }

    fn push(&mut self, pieces: &mut Vec<Piece<'a>>, kind: Kind, start: usize, end: usize) {
        self.line += self.source[self.at..start].matches('\n').count();
        self.at = start;
        if start < end {
            pieces.push(Piece {
                kind,
                text: &self.source[start..end],
                line: self.line,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, source: &str) -> Vec<&str> {
        pieces(source)
            .into_iter()
            .filter(|piece| piece.kind == kind)
            .map(|p| p.text)
            .collect()
    }

    #[test]
    fn a_word_in_a_comment_or_a_text_is_not_code() {
        let source = "let a = \"unsafe \\\" x\"; // unsafe\n/* unsafe /* nested */ */ let b = 1;";
        assert_eq!(of(Kind::Code, source).concat(), "let a = ; \n let b = 1;");
        assert_eq!(of(Kind::Text, source), ["unsafe \\\" x"]);
        assert_eq!(
            of(Kind::Comment, source),
            ["// unsafe", "/* unsafe /* nested */ */"]
        );
    }

    #[test]
    fn raw_texts_end_at_their_own_quotes() {
        assert_eq!(
            of(Kind::Text, "r#\"a \"b\" c\"# + br\"d\" + for\"e\""),
            ["a \"b\" c", "d", "e"]
        );
    }

    #[test]
    fn a_lifetime_is_code_and_a_quote_character_is_not() {
        let source = "fn f<'a>(x: &'a str) { g('\"', '\\'', 'é') }";
        assert_eq!(of(Kind::Text, source), ["\"", "\\'", "é"]);
    }

    #[test]
    fn pieces_know_their_line() {
        let source = "a\n\"b\nc\"\n// d\ne";
        let lines: Vec<_> = pieces(source)
            .iter()
            .map(|piece| (piece.text, piece.line))
            .collect();
        assert_eq!(
            lines,
            [("a\n", 1), ("b\nc", 2), ("\n", 3), ("// d", 4), ("\ne", 4)]
        );
    }

    #[test]
    fn any_text_is_cut_without_a_panic() {
        for source in [
            "\"", "'", "r#\"", "/*", "b", "br", "r", "'\\", "\"\\", "//", "é'é",
        ] {
            pieces(source);
        }
    }
}
