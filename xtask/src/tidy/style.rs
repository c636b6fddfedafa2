//! Words and forms that texts must not have, with limits that only fall.
//!
//! `xtask/style.txt` is the table: `LIMIT SCOPE PATTERN -> ADVICE` on each line, with a regular
//! expression. A count above the limit is a finding, and so is a lower count:
//! `cargo xtask tidy --lower` writes the new limit.

use std::fs;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use regex::RegexSet;

use super::Finding;
use super::source::Source;
use super::tokens::{Tokens, declared};
use crate::command::{output, root};

/// Path of the table, relative to the root of the workspace.
const TABLE: &str = "xtask/style.txt";

/// Comment that exempts its line and the next one, with a word and a reason.
const ALLOW: &str = "style: allow ";

/// Maximum number of such comments.
const ALLOWED: usize = 20;

/// Last commit of those whose subjects are not checked.
const LAST_UNCHECKED: &str = "ecc581bd";

/// Text to which a pattern applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Each line of Rust, Python and Markdown.
    Text,
    /// A comment or a line of Markdown, except tables, links and fenced blocks.
    Prose,
    /// First line of a doc comment or a docstring.
    Doc,
    /// Name of an item, field, parameter, variant or file, as words joined by `_`.
    Name,
    /// Subject of a commit.
    Commit,
}

/// Line of the table.
#[derive(Debug)]
struct Rule {
    /// Line number in the table.
    number: usize,
    limit: usize,
    scope: Scope,
    pattern: String,
    /// Maximum length of a line in characters, for a rule without a pattern.
    longest: Option<usize>,
    advice: String,
}

/// Line that rules check: its scope, its location, and its text.
type Line = (Scope, String, String);

/// Checks all texts and the subjects of commits against the table.
///
/// With `lower`, lowers the limits to the current counts.
pub(super) fn check(texts: &[Source], lower: bool) -> anyhow::Result<Vec<Finding>> {
    let path = root().join(TABLE);
    let table = Table::read(&fs::read_to_string(&path)?)?;
    let mut lines: Vec<Line> = texts.iter().flat_map(lines).collect();
    let all = texts.iter().flat_map(|source| source.text.lines());
    let allowed = all.filter(|line| line.contains(ALLOW)).count();
    ensure!(
        allowed <= ALLOWED,
        "{allowed} lines have `{ALLOW}`, at most {ALLOWED} may"
    );
    lines.extend(subjects()?);
    let counts = table.matches(&lines);
    if lower {
        fs::write(path, table.lowered(&counts))?;
    }
    Ok(table.findings(&counts, lower))
}

/// Returns every match in the texts below `folder`.
pub(super) fn matches(texts: &[Source], folder: &str) -> anyhow::Result<Vec<Finding>> {
    let table = Table::read(&fs::read_to_string(root().join(TABLE))?)?;
    let inside = texts.iter().filter(|text| text.path.starts_with(folder));
    let lines: Vec<Line> = inside.flat_map(lines).collect();
    let found = table.matches(&lines);
    let found = table.rules.iter().zip(&found).flat_map(|(rule, found)| {
        let finding =
            |(_, location, text): &Line| Finding::new(location, format!("{}: {text}", rule.advice));
        found.iter().map(move |line| finding(line))
    });
    Ok(found.collect())
}

/// Table, with its rules compiled together to read each line once.
struct Table {
    text: String,
    rules: Vec<Rule>,
    patterns: RegexSet,
}

impl Table {
    fn read(text: &str) -> anyhow::Result<Self> {
        let mut rules = Vec::new();
        for (number, row) in (1..).zip(text.lines()) {
            let row = row.trim();
            if !row.is_empty() && !row.starts_with('#') {
                rules.push(Rule::read(number, row).with_context(|| format!("{TABLE}:{number}"))?);
            }
        }
        let patterns = RegexSet::new(rules.iter().map(|rule| &rule.pattern))?;
        Ok(Self {
            text: text.to_owned(),
            rules,
            patterns,
        })
    }

    /// Returns the lines that each rule matches.
    fn matches<'a>(&self, lines: &'a [Line]) -> Vec<Vec<&'a Line>> {
        let mut found = vec![Vec::new(); self.rules.len()];
        for line in lines {
            let set = self.patterns.matches(&line.2);
            for (index, rule) in self
                .rules
                .iter()
                .enumerate()
                .filter(|(_, rule)| rule.is_about(line.0))
            {
                let is_long = rule
                    .longest
                    .is_some_and(|longest| line.2.chars().count() > longest);
                if is_long || set.matched(index) {
                    found[index].push(line);
                }
            }
        }
        found
    }

    fn findings(&self, found: &[Vec<&Line>], lower: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (rule, found) in self.rules.iter().zip(found) {
            let (count, limit) = (found.len(), rule.limit);
            let location = format!("{TABLE}:{}", rule.number);
            if count < limit && !lower {
                let rule = format!("{count} matches, limit {limit}: cargo xtask tidy --lower");
                findings.push(Finding::new(location, rule));
            } else if count > limit {
                let rule = format!("{count} matches, limit {limit}: {}", rule.advice);
                findings.push(Finding::new(location, rule));
                // Only the author knows which matches are new, unless the limit is 0.
                let shown = found.iter().take(if limit == 0 { count } else { 0 });
                findings.extend(shown.map(|(_, location, text)| Finding::new(location, text)));
            }
        }
        findings
    }

    /// Returns the text of the table with lower limits.
    fn lowered(&self, found: &[Vec<&Line>]) -> String {
        let mut rows: Vec<String> = self.text.lines().map(str::to_owned).collect();
        for (rule, found) in self.rules.iter().zip(found) {
            let row = &mut rows[rule.number - 1];
            let rest = row
                .trim_start()
                .trim_start_matches(|digit: char| digit.is_ascii_digit());
            *row = format!("{:>5}{rest}", found.len().min(rule.limit));
        }
        rows.join("\n") + "\n"
    }
}

impl Rule {
    fn read(number: usize, row: &str) -> anyhow::Result<Self> {
        let (limit, rest) = row.split_once(' ').context("no scope")?;
        let (scope, rest) = rest.trim_start().split_once(' ').context("no pattern")?;
        let (pattern, advice) = rest.split_once(" -> ").context("no advice behind ` -> `")?;
        let scope = match scope {
            "text" => Scope::Text,
            "prose" => Scope::Prose,
            "doc" => Scope::Doc,
            "name" => Scope::Name,
            "commit" => Scope::Commit,
            other => bail!("unknown scope '{other}'"),
        };
        // ASCII word boundaries are much cheaper to find.
        let pattern = pattern.trim().replace(r"\b", r"(?-u:\b)");
        let longest = pattern.strip_prefix('>').map(str::parse).transpose()?;
        let pattern = match scope {
            _ if longest.is_some() => r"[^\s\S]".to_owned(),
            Scope::Name => format!("(^|_)({pattern})(s|es)?(_|$)"),
            _ => pattern,
        };
        Ok(Self {
            number,
            limit: limit.parse()?,
            scope,
            pattern,
            longest,
            advice: advice.trim().to_owned(),
        })
    }

    /// `true` if the rule applies to lines of this scope. Prose is text, too.
    fn is_about(&self, scope: Scope) -> bool {
        scope == self.scope || (scope == Scope::Prose && self.scope == Scope::Text)
    }
}

/// Returns all lines of a text that rules check.
fn lines(source: &Source) -> Vec<Line> {
    let mut lines = Vec::new();
    let (is_markdown, is_rust) = (source.path.ends_with(".md"), source.is_rust());
    let mut is_fenced = false;
    let mut before = "";
    for (number, line) in (1..).zip(source.text.lines()) {
        if line.contains(ALLOW) || before.contains(ALLOW) {
            before = line;
            continue;
        }
        let mut add =
            |scope, text: &str| lines.push((scope, source.location(number), text.to_owned()));
        let bare = line.trim_start();
        if is_markdown {
            is_fenced ^= bare.starts_with("```");
            let is_prose = !is_fenced && !bare.starts_with('|') && !line.contains("](");
            add(if is_prose { Scope::Prose } else { Scope::Text }, line);
            continue;
        }
        let comment = if is_rust { "//" } else { "#" };
        let is_prose = bare.starts_with(comment)
            && !line.contains("](")
            && !bare.contains("/ |")
            && !bare.contains("! |");
        add(if is_prose { Scope::Prose } else { Scope::Text }, line);
        if is_rust {
            for marker in ["///", "//!"] {
                let begins = bare.starts_with(marker) && !before.starts_with(marker);
                let text = begins.then(|| bare[marker.len()..].trim());
                if let Some(text) = text.filter(|text| !text.is_empty()) {
                    add(Scope::Doc, text);
                }
            }
        } else if let Some(text) = bare.strip_prefix("\"\"\"")
            && (before.is_empty() || before.ends_with(':'))
            && !text.is_empty()
        {
            add(Scope::Doc, text.trim_end_matches("\"\"\""));
        }
        before = bare;
    }
    lines.extend(names(source));
    lines
}

/// Returns the names that a source declares, and its own name.
fn names(source: &Source) -> Vec<Line> {
    let file = source
        .path
        .rsplit_once("src/")
        .map_or(source.path.as_str(), |(_, file)| file);
    let mut names = vec![(file.to_owned(), 1)];
    if source.is_rust() {
        names.extend(
            Tokens::of(source)
                .map(|tokens| declared(&tokens.all))
                .unwrap_or_default(),
        );
    } else if source.path.ends_with(".py") {
        let name = |line: &str| {
            let line = line.trim_start();
            let line = line
                .strip_prefix("def ")
                .or_else(|| line.strip_prefix("class "))?;
            line.split(['(', ':']).next().map(str::to_owned)
        };
        let lines = (1..).zip(source.text.lines());
        names.extend(lines.filter_map(|(number, line)| Some((name(line)?, number))));
    }
    let named = names
        .into_iter()
        .map(|(name, line)| (Scope::Name, source.location(line), snake(&name)));
    named.collect()
}

/// Converts a name to words: `tell_news` for `TellNews` and `tell/news`.
fn snake(name: &str) -> String {
    let mut words = String::new();
    let mut before = '_';
    for letter in name.chars() {
        if !letter.is_alphanumeric() {
            words.push('_');
        } else {
            if letter.is_uppercase() && before.is_lowercase() {
                words.push('_');
            }
            words.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

/// Returns the subjects of all commits after [`LAST_UNCHECKED`].
fn subjects() -> anyhow::Result<Vec<Line>> {
    let mut log = Command::new("git");
    log.current_dir(root())
        .args(["log", "--no-merges", "--format=%h %s"]);
    let Ok(text) = output(log.arg(format!("{LAST_UNCHECKED}..HEAD"))) else {
        println!("    warning: no git history, so the subjects of commits are not checked");
        return Ok(Vec::new());
    };
    let subjects = text.lines().filter_map(|line| line.split_once(' '));
    let line = |(hash, subject): (&str, &str)| (Scope::Commit, hash.to_owned(), subject.to_owned());
    Ok(subjects.map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn found(row: &str, path: &str, text: &str) -> usize {
        let table = Table::read(row).unwrap();
        table.matches(&lines(&example(path, text)))[0].len()
    }

    #[test]
    fn each_scope_has_its_lines() {
        let rust = "/// So it is.\n/// So.\nfn a() {}\n//! So\nstruct TwoBells; // a bell\n";
        for (row, path, text, count) in [
            ("0 text bells? -> no", "a.rs", rust, 1),
            ("0 prose >10 -> wrap", "a.rs", rust, 1),
            (
                "0 prose >1 -> wrap",
                "a.md",
                "| bell |\n```\nbell\n```\n",
                1,
            ),
            ("0 doc ^So -> noun", "a.rs", rust, 2),
            (
                "0 doc ^So -> noun",
                "a.py",
                "def a():\n    \"\"\"So.\"\"\"\n",
                1,
            ),
            ("0 name bell -> no", "bell.rs", rust, 2),
        ] {
            assert_eq!(found(row, path, text), count, "{row}");
        }
    }

    #[test]
    fn a_limit_only_falls() {
        let lines = lines(&example("a.rs", "// so\n// so\n"));
        for (limit, findings, lowered) in [(1, 1, "    1"), (2, 0, "    2"), (3, 1, "    2")] {
            let table = Table::read(&format!("# Words\n{limit} text so -> no")).unwrap();
            let found = table.matches(&lines);
            assert_eq!(table.findings(&found, false).len(), findings);
            assert_eq!(
                table.lowered(&found),
                format!("# Words\n{lowered} text so -> no\n")
            );
        }
    }

    #[test]
    fn a_row_that_cannot_be_read_is_an_error() {
        for row in [
            "text so -> no",
            "1 words so -> no",
            "1 text so",
            "1 text ( -> no",
        ] {
            assert!(Table::read(row).is_err(), "{row}");
        }
    }
}
