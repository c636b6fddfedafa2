//! A source file as Rust reads it: code apart from comments and from texts.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};

use super::Finding;
use super::source::Source;

/// The tokens of one Rust file.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) all: TokenStream,
    /// Those that are compiled without tests.
    pub(crate) shipped: TokenStream,
    /// How many lines the tests among `all` take, with their comments.
    pub(crate) test_lines: usize,
}

impl Tokens {
    /// Reads the tokens of `source`; a file that is no Rust is a finding.
    pub(crate) fn of(source: &Source) -> Result<Self, Finding> {
        let all: TokenStream = source.text.parse().map_err(|error: LexError| {
            let place = source.place(error.span().start().line);
            Finding::new(place, format!("not readable as Rust: {error}"))
        })?;
        let mut test_lines = 0;
        let shipped = without_tests(all.clone(), &mut test_lines);
        Ok(Self {
            all,
            shipped,
            test_lines,
        })
    }
}

/// `stream` without the items under `#[cfg(test)]`, at any depth; adds up the lines that these take.
fn without_tests(stream: TokenStream, test_lines: &mut usize) -> TokenStream {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut shipped = Vec::new();
    let mut at = 0;
    while at < trees.len() {
        if let Some(length) = attribute(&trees[at..]) {
            if length == 3 && is_test_condition(&trees[at + 2]) {
                *test_lines += extent(&trees[at..]);
                return TokenStream::new();
            }
            if is_test_condition(&trees[at + 1]) {
                let end = end_of_item(&trees, at);
                *test_lines += extent(&trees[at..end]);
                at = end;
                continue;
            }
        }
        shipped.push(match &trees[at] {
            TokenTree::Group(group) => {
                let mut inside =
                    Group::new(group.delimiter(), without_tests(group.stream(), test_lines));
                inside.set_span(group.span());
                inside.into()
            }
            leaf => leaf.clone(),
        });
        at += 1;
    }
    shipped.into_iter().collect()
}

/// How many lines `trees` stand on.
fn extent(trees: &[TokenTree]) -> usize {
    match (trees.first(), trees.last()) {
        (Some(first), Some(last)) => last.span().end().line + 1 - first.span().start().line,
        _ => 0,
    }
}

/// How many tokens the attribute at the beginning of `trees` has, if there is one.
pub(super) fn attribute(trees: &[TokenTree]) -> Option<usize> {
    let is = |at: usize, sign: char| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
    let length = if is(1, '!') { 3 } else { 2 };
    let last = trees.get(length - 1);
    let bracket =
        matches!(last, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket);
    (is(0, '#') && bracket).then_some(length)
}

/// Whether this is the `[cfg(test)]` of an attribute, or one that holds only with tests.
fn is_test_condition(brackets: &TokenTree) -> bool {
    let TokenTree::Group(group) = brackets else {
        return false;
    };
    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
    matches!(&trees[..], [TokenTree::Ident(name), TokenTree::Group(condition)]
        if name == "cfg" && asks_for_tests(&condition.stream()))
}

fn asks_for_tests(condition: &TokenStream) -> bool {
    let mut negated = false;
    for tree in condition.clone() {
        match &tree {
            TokenTree::Ident(word) if word == "test" => return true,
            TokenTree::Group(group) if !negated && asks_for_tests(&group.stream()) => return true,
            _ => {}
        }
        negated = matches!(&tree, TokenTree::Ident(word) if word == "not");
    }
    false
}

/// The index after the item, field or statement whose attributes begin at `at`.
fn end_of_item(trees: &[TokenTree], mut at: usize) -> usize {
    while let Some(length) = trees.get(at..).and_then(attribute) {
        at += length;
    }
    let is_value = |tree: &TokenTree| matches!(tree, TokenTree::Ident(word) if ["use", "let", "const", "static"].iter().any(|value| word == value));
    let mut ends_at_braces = true;
    while let Some(tree) = trees.get(at) {
        at += 1;
        ends_at_braces &= !is_value(tree);
        match tree {
            TokenTree::Punct(sign) if matches!(sign.as_char(), ';' | ',') => break,
            TokenTree::Group(group) if ends_at_braces && group.delimiter() == Delimiter::Brace => {
                break;
            }
            TokenTree::Ident(word) if word == "fn" => ends_at_braces = true,
            _ => {}
        }
    }
    at
}

/// How many times a visibility is limited to the crate or a part of it.
pub(crate) fn restricted(stream: &TokenStream) -> usize {
    let mut count = 0;
    let mut after_pub = false;
    walk(stream, &mut |tree| {
        if let TokenTree::Group(group) = tree {
            count += usize::from(after_pub && is_restriction(group));
        }
        after_pub = matches!(tree, TokenTree::Ident(word) if word == "pub");
    });
    count
}

/// Whether this is the `(crate)` of `pub(crate)`, and not the fields of `struct A(pub (u8, u8))`.
pub(crate) fn is_restriction(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Parenthesis
        && matches!(first, Some(TokenTree::Ident(word)) if ["crate", "super", "in"].iter().any(|known| word == known))
}

/// The lines on which `stream` has code: neither blank nor only a comment.
pub(crate) fn lines(stream: &TokenStream) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    walk(stream, &mut |tree| {
        let (start, end) = match tree {
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                let close = group.span_close().start().line;
                (close, close)
            }
            leaf => (leaf.span().start().line, leaf.span().end().line),
        };
        lines.extend(start..=end);
    });
    lines
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

/// The names that code gives: of items, fields, parameters and variants, with their lines.
pub(crate) fn declared(stream: &TokenStream) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    collect_declared(stream, false, &mut names);
    names
}

fn collect_declared(stream: &TokenStream, variants: bool, names: &mut Vec<(String, usize)>) {
    let trees: Vec<TokenTree> = stream.clone().into_iter().collect();
    let is = |at: usize, sign: char| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
    let is_item = |at: usize| matches!(trees.get(at), Some(TokenTree::Ident(word)) if declares(&word.to_string()));
    let mut after_enum = false;
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Ident(word) => {
                let item =
                    at > 0 && (is_item(at - 1) || at > 1 && is(at - 1, '!') && is_item(at - 2));
                let field = is(at + 1, ':') && !is(at + 2, ':') && !(at > 0 && is(at - 1, ':'));
                let variant = variants
                    && (at == 0
                        || is(at - 1, ',')
                        || matches!(&trees[at - 1], TokenTree::Group(_)));
                if item || field || variant {
                    names.push((word.to_string(), word.span().start().line));
                }
                after_enum |= word == "enum";
            }
            TokenTree::Group(group) => {
                let body = after_enum && group.delimiter() == Delimiter::Brace;
                collect_declared(&group.stream(), body, names);
                after_enum &= !body;
            }
            _ => {}
        }
    }
}

/// Whether the name of an item follows this word.
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
    walk(stream, &mut |tree| {
        tokens.extend(text(tree).map(|text| Token {
            text,
            line: tree.span().start().line,
        }));
    });
    tokens
}

/// Visits every token and group but documentation; a group before its inside.
fn walk(stream: &TokenStream, visit: &mut impl FnMut(&TokenTree)) {
    let trees: Vec<TokenTree> = stream.clone().into_iter().collect();
    let mut at = 0;
    while at < trees.len() {
        if let Some(length) = attribute(&trees[at..])
            && matches!(&trees[at + length - 1], TokenTree::Group(group) if is_documentation(group))
        {
            at += length;
            continue;
        }
        visit(&trees[at]);
        if let TokenTree::Group(group) = &trees[at] {
            walk(&group.stream(), visit);
        }
        at += 1;
    }
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
    fn tests_are_not_shipped() {
        let shipped = |text: &str| {
            let tokens = Tokens::of(&example("a.rs", text)).unwrap();
            let shipped = words(&tokens.shipped).into_iter().map(|word| word.text);
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
    fn a_limited_visibility_is_counted() {
        let text = "pub(crate) struct A(pub (u8, u8), pub(super) u8); pub(in crate::a) mod b { pub(self) fn c() {} }";
        assert_eq!(restricted(&text.parse().unwrap()), 3);
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
