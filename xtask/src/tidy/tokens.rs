//! Tokens of a source file: code apart from comments and texts.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, LexError, Span, TokenStream, TokenTree};

use super::Finding;
use super::source::Source;

/// Word, sign, literal, or bracket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Line of its first character, from 1.
    pub(crate) line: usize,
    last_line: usize,
}

impl Token {
    /// `true` for a name or a keyword.
    pub(crate) fn is_word(&self) -> bool {
        self.text
            .starts_with(|first: char| first == '_' || first.is_alphabetic())
            && !self.text.contains(['"', '\''])
    }
}

/// Tokens of one Rust file, in order, without documentation.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) all: Vec<Token>,
    /// Tokens that are compiled without tests.
    pub(crate) shipped: Vec<Token>,
    /// Number of lines of the tests among `all`, with their comments.
    pub(crate) test_lines: usize,
}

impl Tokens {
    /// Reads the tokens of `source`. A file that is not Rust is a finding.
    pub(crate) fn of(source: &Source) -> Result<Self, Finding> {
        let stream: TokenStream = source.text.parse().map_err(|error: LexError| {
            let location = source.location(error.span().start().line);
            Finding::new(location, format!("not readable as Rust: {error}"))
        })?;
        let mut all = Vec::new();
        flatten(stream, &mut all);
        let mut shipped = Vec::new();
        let mut test_lines = 0;
        let mut at = 0;
        while at < all.len() {
            let end = end_of_test(&all, at);
            if end > at {
                test_lines += all[end - 1].last_line + 1 - all[at].line;
                at = end;
            } else {
                shipped.push(all[at].clone());
                at += 1;
            }
        }
        Ok(Self {
            all,
            shipped,
            test_lines,
        })
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let token = |text: String, span: Span| Token {
        text,
        line: span.start().line,
        last_line: span.end().line,
    };
    for tree in stream {
        match tree {
            // A doc comment is read as an attribute.
            TokenTree::Group(group) if is_documentation(&group) => {
                while tokens
                    .pop_if(|token| ["#", "!"].contains(&token.text.as_str()))
                    .is_some()
                {}
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(token(open.to_owned(), group.span_open()));
                flatten(group.stream(), tokens);
                tokens.push(token(close.to_owned(), group.span_close()));
            }
            leaf => tokens.push(token(leaf.to_string(), leaf.span())),
        }
    }
}

/// `true` if `group` is the `[doc = "..."]` of a doc comment.
fn is_documentation(group: &Group) -> bool {
    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
    group.delimiter() == Delimiter::Bracket
        && matches!(&trees[..], [TokenTree::Ident(name), _, TokenTree::Literal(_)] if name == "doc")
}

/// Returns the text of the token `at`; empty beyond the end.
pub(super) fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| &token.text)
}

/// Returns the text of the token before `at`.
pub(super) fn before(tokens: &[Token], at: usize) -> &str {
    at.checked_sub(1).map_or("", |before| text(tokens, before))
}

/// Returns the index after the bracket that closes the one at `open`.
pub(super) fn after_brackets(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Returns the index after the attribute that begins at `at`, or `at`.
pub(super) fn after_attribute(tokens: &[Token], at: usize) -> usize {
    match (text(tokens, at), text(tokens, at + 1), text(tokens, at + 2)) {
        ("#", "[", _) => after_brackets(tokens, at + 1),
        ("#", "!", "[") => after_brackets(tokens, at + 2),
        _ => at,
    }
}

/// Returns the index after test code that begins at `at`, or `at`.
fn end_of_test(tokens: &[Token], at: usize) -> usize {
    let mut end = after_attribute(tokens, at);
    let attribute: Vec<&str> = tokens[at..end]
        .iter()
        .map(|token| &token.text[..])
        .collect();
    let whole_file = attribute.get(1) == Some(&"!");
    let condition = &attribute[usize::from(whole_file).min(attribute.len())..];
    let is_test = |word: usize| condition[word] == "test" && condition[word - 2] != "not";
    if condition.get(2) != Some(&"cfg") || !(4..condition.len()).any(is_test) {
        return at;
    }
    if whole_file {
        return tokens.len();
    }
    while after_attribute(tokens, end) > end {
        end = after_attribute(tokens, end);
    }
    // The braces of a value or of a `use` do not end the item.
    let mut ends_at_braces = true;
    while end < tokens.len() {
        match text(tokens, end) {
            ")" | "]" | "}" => return end,
            ";" | "," => return end + 1,
            "{" if ends_at_braces => return after_brackets(tokens, end),
            "(" | "[" | "{" => end = after_brackets(tokens, end),
            word => {
                ends_at_braces = word == "fn"
                    || ends_at_braces && !["use", "let", "const", "static"].contains(&word);
                end += 1;
            }
        }
    }
    end
}

/// `true` if `pub(crate)` begins at `at`.
///
/// It is `false` for the fields of `struct A(pub (u8, u8))`.
pub(super) fn is_restriction(tokens: &[Token], at: usize) -> bool {
    text(tokens, at) == "pub"
        && text(tokens, at + 1) == "("
        && ["crate", "super", "in"].contains(&text(tokens, at + 2))
}

/// Returns the lines with code: neither blank nor only a comment.
pub(crate) fn lines(tokens: &[Token]) -> BTreeSet<usize> {
    let lines = tokens.iter().flat_map(|token| token.line..=token.last_line);
    lines.collect()
}

/// Returns every name and keyword, in order.
pub(crate) fn words(tokens: &[Token]) -> impl Iterator<Item = &Token> {
    tokens.iter().filter(|token| token.is_word())
}

/// Returns the content of all string literals with escapes unchanged.
pub(crate) fn texts(tokens: &[Token]) -> impl Iterator<Item = (&str, usize)> {
    tokens
        .iter()
        .filter_map(|token| Some((inside_quotes(&token.text)?, token.line)))
}

/// Returns the inside of `"a"`, `r#"a"#`, `b"a"` or `c"a"`.
///
/// `None` for a number or a character like `'"'`.
fn inside_quotes(literal: &str) -> Option<&str> {
    let (prefix, rest) = literal.split_once('"')?;
    let (inside, _hashes) = rest.rsplit_once('"')?;
    (!prefix.contains('\'')).then_some(inside)
}

/// Returns the names of items, fields, parameters and variants with lines.
pub(crate) fn declared(tokens: &[Token]) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    // For each open bracket, `true` if it is that of an enum.
    let mut open = vec![false];
    let mut after_enum = false;
    for (at, token) in tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| !token.text.is_empty())
    {
        match token.text.as_str() {
            "(" | "[" | "{" => {
                open.push(after_enum && token.text == "{");
                after_enum &= token.text != "{";
            }
            ")" | "]" | "}" => {
                open.pop();
            }
            word if token.is_word() => {
                after_enum |= word == "enum";
                let before = before(tokens, at);
                let item =
                    declares(before) || before == "!" && text(tokens, at - 2) == "macro_rules";
                let field =
                    text(tokens, at + 1) == ":" && text(tokens, at + 2) != ":" && before != ":";
                let variant = open.last() == Some(&true) && ["{", ",", "]"].contains(&before);
                if item || field || variant {
                    names.push((word.to_owned(), token.line));
                }
            }
            _ => {}
        }
    }
    names
}

/// `true` if the name of an item follows this word.
pub(super) fn declares(keyword: &str) -> bool {
    let keywords = [
        "const",
        "enum",
        "fn",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "union",
    ];
    keywords.contains(&keyword)
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn all(source: &str) -> Vec<Token> {
        Tokens::of(&example("a.rs", source)).unwrap().all
    }

    fn all_words(source: &str) -> Vec<String> {
        words(&all(source)).map(|word| word.text.clone()).collect()
    }

    fn all_texts(source: &str) -> Vec<String> {
        texts(&all(source))
            .map(|(text, _)| text.to_owned())
            .collect()
    }

    #[test]
    fn a_word_in_a_comment_or_a_text_is_not_code() {
        let source = "//! unsafe\nlet a = \"unsafe \\\" x\"; // unsafe\n/** \"unsafe\" */\n/* unsafe /* nested */ */ let b = 1;";
        assert_eq!(all_words(source), ["let", "a", "let", "b"]);
        assert_eq!(all_texts(source), ["unsafe \\\" x"]);
    }

    #[test]
    fn every_kind_of_text_gives_its_inside() {
        let source = "r#\"a \"b\" c\"# + br\"d\" + b\"e\" + c\"f\" + m!(g, [\"h\"]) + \"\"";
        assert_eq!(all_texts(source), ["a \"b\" c", "d", "e", "f", "h", ""]);
    }

    #[test]
    fn a_lifetime_is_code_and_a_character_is_neither_code_nor_text() {
        let source = "fn f<'a>(x: &'a str) { g('\"', b'\"', '\\'', 'é', 1) }";
        assert_eq!(all_texts(source), Vec::<String>::new());
        assert_eq!(all_words(source), ["fn", "f", "a", "x", "a", "str", "g"]);
    }

    #[test]
    fn tokens_know_their_line() {
        let source = example("a.rs", "a\n\"b\nc\"\n// d\n(é, \"f\")");
        let tokens = Tokens::of(&source).unwrap();
        let of_words: Vec<_> = words(&tokens.all).map(|word| word.line).collect();
        assert_eq!(of_words, [1, 5]);
        let of_texts: Vec<_> = texts(&tokens.all).map(|(_, line)| line).collect();
        assert_eq!(of_texts, [2, 5]);
    }

    #[test]
    fn tests_are_not_shipped() {
        let shipped = |text: &str| {
            let tokens = Tokens::of(&example("a.rs", text)).unwrap();
            let shipped = words(&tokens.shipped).map(|word| word.text.as_str());
            shipped.collect::<Vec<_>>().join(" ")
        };
        for (text, expected) in [
            (
                "fn a() {}\n#[cfg(test)]\nmod tests {\n    b!();\n}\n",
                "fn a",
            ),
            (
                "#[cfg(test)] #[path = \"b.rs\"] mod tests; fn a() {}",
                "fn a",
            ),
            ("#[cfg(test)] use a::{b, c}; fn a() {}", "fn a"),
            (
                "#[cfg(test)] pub(crate) const fn b() -> u8 { 1 } fn a() {}",
                "fn a",
            ),
            (
                "#[cfg(test)] const A: B = B { c: 1, d: 2 }; fn a() {}",
                "fn a",
            ),
            (
                "impl A { #[cfg(test)] fn b() { c } fn d() {} }",
                "impl A fn d",
            ),
            ("struct A { #[cfg(test)] b: C, d: E }", "struct A d E"),
            ("#![cfg(test)]\nfn a() {}", ""),
            (
                "#[cfg(all(test, unix))] mod b {} #[cfg(not(test))] mod c {}",
                "cfg not test mod c",
            ),
        ] {
            assert_eq!(shipped(text), expected, "{text}");
        }
    }

    #[test]
    fn blank_lines_and_comments_are_no_code() {
        let text = "//! a\n\nfn a() { // b\n    /* c */\n    d(\n        \"e\n f\",\n    );\n}\n/// g\nmod h;";
        let tokens = Tokens::of(&example("a.rs", text)).unwrap();
        let lines: Vec<usize> = lines(&tokens.all).into_iter().collect();
        assert_eq!(lines, [3, 5, 6, 7, 8, 9, 11]);
    }

    #[test]
    fn a_file_that_is_no_rust_is_a_finding_at_its_line() {
        let finding = Tokens::of(&example("a.rs", "fn a() {}\nlet b = \"c;\n")).unwrap_err();
        assert!(
            finding
                .to_string()
                .starts_with("a.rs:2: not readable as Rust"),
            "{finding}"
        );
        for text in ["\"", "'", "r#\"", "/*", "(", "]", "'\\", "\"\\", "b'"] {
            let read = Tokens::of(&example("a.rs", text));
            assert!(read.is_err(), "{text} is read as {read:?}");
        }
    }
}
