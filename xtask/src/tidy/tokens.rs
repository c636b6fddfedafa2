//! A source file as Rust reads it: code apart from comments and from texts.

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};

use super::Finding;
use super::source::Source;

/// The tokens of one Rust file.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) all: TokenStream,
    /// Those before the tests at the end of the file.
    pub(crate) shipped: TokenStream,
}

impl Tokens {
    /// Reads the tokens of `source`; a file that is no Rust is a finding.
    pub(crate) fn of(source: &Source) -> Result<Self, Finding> {
        let all: TokenStream = source.text.parse().map_err(|error: LexError| {
            let place = source.place(error.span().start().line);
            Finding::new(place, format!("not readable as Rust: {error}"))
        })?;
        let shipped_lines = source.without_tests().lines().count();
        let shipped = all
            .clone()
            .into_iter()
            .filter(|tree| tree.span().start().line <= shipped_lines)
            .collect();
        Ok(Self { all, shipped })
    }
}

/// A word, or the inside of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Line of its first character, from 1.
    pub(crate) line: usize,
}

/// Every name and keyword, in order.
pub(crate) fn words(stream: &TokenStream) -> Vec<Token> {
    leaves(stream, |tree| match tree {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    })
}

/// The insides of all string literals, in order, with escapes as they are written. Documentation
/// is none of them.
pub(crate) fn texts(stream: &TokenStream) -> Vec<Token> {
    leaves(stream, |tree| match tree {
        TokenTree::Literal(literal) => inside_quotes(&literal.to_string()),
        _ => None,
    })
}

fn leaves(stream: &TokenStream, text: fn(&TokenTree) -> Option<String>) -> Vec<Token> {
    let mut tokens = Vec::new();
    for tree in stream.clone() {
        match &tree {
            TokenTree::Group(group) if is_documentation(group) => {}
            TokenTree::Group(group) => tokens.extend(leaves(&group.stream(), text)),
            leaf => tokens.extend(text(leaf).map(|text| Token {
                text,
                line: leaf.span().start().line,
            })),
        }
    }
    tokens
}

/// Whether `group` is the `[doc = "..."]` that a documentation comment is read as.
fn is_documentation(group: &Group) -> bool {
    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
    group.delimiter() == Delimiter::Bracket
        && matches!(&trees[..], [TokenTree::Ident(name), _, TokenTree::Literal(_)] if name == "doc")
}

/// The inside of `"a"`, `r#"a"#`, `b"a"` or `c"a"`; nothing for a number or a character like `'"'`.
fn inside_quotes(literal: &str) -> Option<String> {
    let (prefix, rest) = literal.split_once('"')?;
    let (inside, _hashes) = rest.rsplit_once('"')?;
    (!prefix.contains('\'')).then(|| inside.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn read(list: fn(&TokenStream) -> Vec<Token>, source: &str) -> Vec<String> {
        let tokens = list(&source.parse().unwrap());
        tokens.into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn a_word_in_a_comment_or_a_text_is_not_code() {
        let source = "//! unsafe\nlet a = \"unsafe \\\" x\"; // unsafe\n/** \"unsafe\" */\n/* unsafe /* nested */ */ let b = 1;";
        assert_eq!(read(words, source), ["let", "a", "let", "b"]);
        assert_eq!(read(texts, source), ["unsafe \\\" x"]);
    }

    #[test]
    fn every_kind_of_text_gives_its_inside() {
        let source = "r#\"a \"b\" c\"# + br\"d\" + b\"e\" + c\"f\" + m!(g, [\"h\"]) + \"\"";
        assert_eq!(read(texts, source), ["a \"b\" c", "d", "e", "f", "h", ""]);
    }

    #[test]
    fn a_lifetime_is_code_and_a_character_is_neither_code_nor_text() {
        let source = "fn f<'a>(x: &'a str) { g('\"', b'\"', '\\'', 'é', 1) }";
        assert_eq!(read(texts, source), Vec::<String>::new());
        assert_eq!(read(words, source), ["fn", "f", "a", "x", "a", "str", "g"]);
    }

    #[test]
    fn tokens_know_their_line() {
        let source = example("a.rs", "a\n\"b\nc\"\n// d\n(é, \"f\")");
        let tokens = Tokens::of(&source).unwrap();
        let lines = |tokens: Vec<Token>| tokens.iter().map(|token| token.line).collect::<Vec<_>>();
        assert_eq!(lines(words(&tokens.all)), [1, 5]);
        assert_eq!(lines(texts(&tokens.all)), [2, 5]);
    }

    #[test]
    fn tests_at_the_end_are_not_shipped() {
        let source = example(
            "a.rs",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    b!();\n}\n",
        );
        let tokens = Tokens::of(&source).unwrap();
        assert_eq!(words(&tokens.all).len(), 7);
        assert_eq!(words(&tokens.shipped).len(), 2);
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
