//! The words of the field instead of private ones, and sentences that begin with a noun.

use std::collections::BTreeMap;

use super::Finding;
use super::source::Source;
use super::tokens::{Tokens, declared};

/// Nowhere: in code, comments or documents. Two words are joined in names only.
const NOWHERE: [&str; 10] = [
    "carry_out",
    "helm",
    "how-manieth",
    "hush",
    "lifeline",
    "oftener",
    "overhear",
    "traitor",
    "under_way",
    "unseat",
];

/// Not in names of functions, types, fields, modules and files.
const NOT_IN_NAMES: [&str; 11] = [
    "bell", "board", "contact", "keeper", "lent", "meeting", "news", "patience", "stranger",
    "told", "wish",
];

/// The process of `rdzv run` that clears what a dying agent leaves has the name of its own.
const KEEPER_PROCESS: [&str; 4] = [
    "crates/agent/",
    "crates/cli/",
    "crates/proto/agent/",
    "crates/testing/",
];

/// The lists themselves.
const EXEMPT: [&str; 1] = ["xtask/src/tidy/vocabulary.rs"];

/// Words at the beginning of a sentence whose noun comes late.
const HEADLESS: [&str; 5] = ["How ", "So ", "What ", "Who ", "Whoever "];

/// Lines of documentation that begin so, in all crates. The number only falls.
const HEADLESS_LINES: usize = 932;

/// Words of a source that a name or a sentence must not have.
pub(crate) fn check(source: &Source, tokens: Option<&Tokens>) -> Vec<Finding> {
    let mut findings = text(&source.path, &source.text);
    if EXEMPT.iter().any(|place| source.path.starts_with(place)) {
        return findings;
    }
    let file = source
        .path
        .rsplit_once("src/")
        .map_or(source.path.as_str(), |(_, file)| file);
    findings.extend(in_name(&source.path, file).map(|rule| Finding::new(&source.path, rule)));
    let names = match tokens {
        Some(tokens) => declared(&tokens.all),
        None => python(&source.text),
    };
    for (name, line) in names {
        let finding = in_name(&source.path, &name);
        findings.extend(finding.map(|rule| Finding::new(source.place(line), rule)));
    }
    findings
}

/// Words that a text must not have, be it of code or of a document.
pub(crate) fn text(path: &str, text: &str) -> Vec<Finding> {
    if EXEMPT.iter().any(|place| path.starts_with(place)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let words = components(text).join("_");
        let has = |word: &&&str| match word.contains(['_', '-']) {
            true => text.contains(**word) || text.contains(&camel(word)),
            false => words.starts_with(**word) || words.contains(&format!("_{word}")),
        };
        for word in NOWHERE.iter().filter(has) {
            let rule = format!("'{word}' is no word of the field");
            findings.push(Finding::new(format!("{path}:{line}"), rule));
        }
    }
    findings
}

/// A finding if the lines of documentation that begin without a noun have become more.
pub(crate) fn headless(sources: &[Source]) -> Option<Finding> {
    let mut counts = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_shipped()) {
        *counts
            .entry(source.crate_folder().unwrap_or_default())
            .or_default() += headless_lines(source);
    }
    let count: usize = counts.values().sum();
    let crates: Vec<_> = counts
        .iter()
        .map(|(folder, count)| format!("{folder} {count}"))
        .collect();
    println!(
        "    {count} lines of documentation begin with What, Who, How or So: {}",
        crates.join(", ")
    );
    let rule =
        format!("{count} lines of documentation without a noun first, at most {HEADLESS_LINES}");
    (count > HEADLESS_LINES).then(|| Finding::new("crates", rule))
}

fn headless_lines(source: &Source) -> usize {
    let begins_so = |line: &&str| {
        let line = line.trim_start();
        let doc = line
            .strip_prefix("/// ")
            .or_else(|| line.strip_prefix("//! "));
        doc.is_some_and(|doc| HEADLESS.iter().any(|word| doc.starts_with(word)))
    };
    source.text.lines().filter(begins_so).count()
}

fn in_name(path: &str, name: &str) -> Option<String> {
    let words = components(name);
    let is = |word: &&&str| {
        words.iter().any(|part| {
            let ending = part.strip_prefix(**word);
            ending.is_some_and(|ending| ["", "s", "es"].contains(&ending))
        })
    };
    let word = NOT_IN_NAMES.iter().find(is)?;
    let process = *word == "keeper" && KEEPER_PROCESS.iter().any(|place| path.starts_with(place));
    (!process).then(|| format!("'{name}': '{word}' is no word for names"))
}

/// `tell`, `news` and `of` for `tell_news`, `TellNews` and `tell_NEWS of`.
fn components(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for letter in text.chars() {
        let starts = letter.is_uppercase() && before.is_lowercase();
        if starts || !letter.is_alphanumeric() {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| letter.is_alphanumeric()) {
            part.extend(letter.to_lowercase());
        }
        before = letter;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// `UnderWay` for `under_way`.
fn camel(words: &str) -> String {
    let upper = |word: &str| word[..1].to_uppercase() + &word[1..];
    words.split(['_', '-']).map(upper).collect()
}

/// The functions and classes that a Python file defines.
fn python(text: &str) -> Vec<(String, usize)> {
    let name = |line: &str| {
        let line = line.trim_start();
        let line = line
            .strip_prefix("def ")
            .or_else(|| line.strip_prefix("class "))?;
        line.split(['(', ':']).next().map(str::to_owned)
    };
    let lines = (1..).zip(text.lines());
    lines
        .filter_map(|(number, line)| Some((name(line)?, number)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = example(path, text);
        let tokens = source.is_rust().then(|| Tokens::of(&source).unwrap());
        let findings = check(&source, tokens.as_ref());
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_private_word_is_found_in_code_and_comments() {
        for text in [
            "// the helm\n",
            "/// Overhears.\n",
            "fn is_under_way() {}",
            "struct UnderWay;",
            "//! the how-manieth\n",
            "const HELM: u8 = 1;",
            "fn try_helm() {}",
        ] {
            assert_eq!(found("crates/a/src/b.rs", text).len(), 1, "{text}");
        }
        for text in ["// under way, overwhelmed\n", "/// It is carried out.\n"] {
            assert_eq!(found("crates/a/src/b.rs", text), Vec::<String>::new());
        }
    }

    #[test]
    fn a_private_word_in_a_name_is_found() {
        for (path, text, count) in [
            ("a.rs", "fn tell_news() {}", 1),
            ("a.rs", "enum A { NewsOf, B { wishes: u8 }, C(News) }", 2),
            ("a.rs", "struct Meeting { told_at: u8 } mod board;", 3),
            (
                "a.rs",
                "fn f(a: News) { let news = \"rendezvous_news\"; a.wish() }",
                0,
            ),
            ("a.rs", "fn dashboard() { onboard::<talent>() } // told", 0),
            ("bell.rs", "", 1),
            ("a.py", "def test_news():\n    told = 1\n", 1),
        ] {
            assert_eq!(found(path, text).len(), count, "{text}");
        }
        assert_eq!(
            found("crates/agent/src/keeper.rs", "fn keeper() {}").len(),
            0
        );
        assert_eq!(
            found("crates/store/src/keeper.rs", "fn keeper() {}").len(),
            2
        );
    }

    #[test]
    fn a_line_of_documentation_without_a_noun_is_counted() {
        let text =
            "//! What it does.\n/// Sole.\n    /// So it is.\n// How\n/// The noun. What then\n";
        assert_eq!(headless_lines(&example("a.rs", text)), 2);
    }
}
