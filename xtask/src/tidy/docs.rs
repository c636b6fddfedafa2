//! Citations: each cited test and each cited rule must exist.
//!
//! Documents cite a test as `file::test` between backquotes, with a file of Rust or Python. A rule
//! is a row of a document (`| INV-A9 |`), or its id is bold in the code that explains it.
//!
//! Some tables compare rdzv with each item of PyTorch. Each of their rows needs a verdict and its
//! proof.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::Finding;
use super::source::Source;

/// Prefixes of ids: sharp edges of PyTorch, invariants, and scenarios.
const IDS: [&str; 3] = ["EDGE-", "INV-", "SCN-"];

/// Header of a table with a verdict for each item.
const VERDICTS: &str = "| item of PyTorch | verdict | shown by |";

/// Header of a table with measured figures.
const FIGURES: &str = "| | rdzv | PyTorch | times better |";

/// Names of functions, each with the names of the files that contain it.
type Functions<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Finds cited tests that do not exist, in one document.
pub(super) fn check(path: &str, text: &str, functions: &Functions<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        // Every second part of the split is between backquotes.
        for span in text.split('`').skip(1).step_by(2) {
            let Some((file, test)) = span.split_once("::") else {
                continue;
            };
            let file = file_name(file);
            let names_a_test = file.ends_with(".rs") || file.ends_with(".py");
            if names_a_test
                && !functions
                    .get(test)
                    .is_some_and(|files| files.contains(file))
            {
                let location = format!("{path}:{line}");
                findings.push(Finding::new(
                    location,
                    format!("there is no test {test} in {file}"),
                ));
            }
        }
    }
    findings
}

/// Finds rows of a table of verdicts without a verdict or without a proof.
///
/// A proof is a test, a rule or a page. Other checks find those that do not exist.
pub(super) fn verdicts(path: &str, text: &str) -> Vec<Finding> {
    let row = Regex::new(
        r"^\|[^|]+\| (same|better|different because )[^|]*\|[^|]*(::\w+`|\]\(|INV-|EDGE-|SCN-)[^|]*\|$",
    );
    let row = row.expect("the pattern is valid");
    let incomplete = rows(text, VERDICTS)
        .filter(|(_, line)| *line != VERDICTS && !line.starts_with("|---") && !row.is_match(line));
    let rule = "a row needs a verdict (same, better, different because …) and a test, rule or page";
    let finding = |(line, _)| Finding::new(format!("{path}:{line}"), rule);
    incomplete.map(finding).collect()
}

/// Finds rows of figures that do not exist in the text `measured`.
pub(super) fn figures(path: &str, text: &str, measured: &str) -> Vec<Finding> {
    let unknown = rows(text, FIGURES).filter(|(_, row)| !measured.lines().any(|it| it == *row));
    let finding = |(line, _): (usize, &str)| {
        let location = format!("{path}:{line}");
        Finding::new(location, "docs/benchmarks.md has no such row")
    };
    unknown.map(finding).collect()
}

/// Returns the rows of all tables with the header `head`, with line numbers.
///
/// The header is included.
fn rows<'a>(text: &'a str, head: &str) -> impl Iterator<Item = (usize, &'a str)> {
    let mut is_inside = false;
    let lines = (1..).zip(text.lines());
    lines.filter(move |(_, row)| {
        is_inside = *row == head || is_inside && row.starts_with('|');
        is_inside
    })
}

/// Returns the functions in the sources.
pub(super) fn functions(sources: &[Source]) -> Functions<'_> {
    let mut functions = Functions::new();
    for source in sources {
        for name in source.text.lines().filter_map(declared) {
            let files = functions.entry(name).or_default();
            files.insert(file_name(&source.path));
        }
    }
    functions
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Finds cited rules that do not exist, and rows with the same id.
pub(super) fn rules(documents: &[Source], sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut known = BTreeSet::new();
    let row = |line: &str| Some(line.strip_prefix("| ")?.split_once(" |")?.0.to_owned());
    for Source { path, text } in documents {
        for (line, id) in (1..).zip(text.lines().map(row)) {
            let id = id.filter(|id| ids(id).next() == Some(id));
            if id.is_some_and(|id| !known.insert(id)) {
                findings.push(Finding::new(format!("{path}:{line}"), "this id is taken"));
            }
        }
    }
    fn pair(source: &Source) -> (&str, &str) {
        (&source.path, &source.text)
    }
    let code = sources.iter().map(pair);
    for (_, text) in code.clone().filter(|(path, _)| path.ends_with(".rs")) {
        let bold = text.split("**").filter(|id| ids(id).next() == Some(id));
        known.extend(bold.map(str::to_owned));
    }
    let documents = documents.iter().map(pair);
    for (path, text) in documents
        .chain(code)
        .filter(|(path, _)| !path.starts_with("xtask/"))
    {
        for (line, text) in (1..).zip(text.lines()) {
            let unknown = ids(text).filter(|id| !known.contains(*id));
            let finding =
                |id| Finding::new(format!("{path}:{line}"), format!("there is no rule {id}"));
            findings.extend(unknown.map(finding));
        }
    }
    findings
}

/// Returns the ids of rules in `text`.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| letter != '-' && !letter.is_ascii_alphanumeric())
        .filter(|word| IDS.iter().any(|prefix| word.starts_with(prefix)))
}

/// Returns the name of the function that a line declares, if any.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.split_once("fn ").map(|(_, rest)| rest);
    let rest = rest.or_else(|| line.strip_prefix("def "))?;
    let end = rest.find(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric())?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_found() {
        let sources = [Source {
            path: "crates/a/tests/b.rs".to_owned(),
            text: "#[test]\nfn it_works() {}\n    async fn so_does_this() {}\n".to_owned(),
        }];
        let functions = functions(&sources);
        let text =
            "`b.rs::it_works`, `b.rs::so_does_this`\nand `c.rs::it_works`, but `a::b` is no file";
        let findings = check("docs/x.md", text, &functions);
        assert_eq!(
            findings,
            [Finding::new(
                "docs/x.md:2",
                "there is no test it_works in c.rs"
            )]
        );
    }

    #[test]
    fn a_figure_that_was_not_measured_is_found() {
        let row = |name: &str| format!("{FIGURES}\n|---|---|---|---|\n| {name} | 1 | 2 | 2 |\n");
        assert_eq!(figures("README.md", &row("a"), &row("a")), []);
        let findings = figures("README.md", &row("b"), &row("a"));
        let expected = Finding::new("README.md:3", "docs/benchmarks.md has no such row");
        assert_eq!(findings, [expected]);
    }

    #[test]
    fn a_row_without_a_verdict_or_without_a_test_is_found() {
        let text = "\
| item of PyTorch | verdict | shown by |
|---|---|---|
| `a` | same | `b.rs::it_works` |
| `b` | better: `x::y` | EDGE-S1 |
| `c` | different because it is | [a page](x.md#here) |
| `d` | missing | `b.rs::it_works` |
| `e` | different | `b.rs::it_works` |
| `f` | same | |
| `g` | same | see `it_works` |
| `i` | same |

| other | table |
| `j` | missing |
";
        let findings = verdicts("docs/x.md", text);
        let lines = findings.iter().map(|finding| finding.location.as_str());
        let expected = ["6", "7", "8", "9", "10"].map(|line| format!("docs/x.md:{line}"));
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_rule_that_is_not_there_is_found() {
        let document = "| INV-A1 | a |\n| INV-A1 | b |\nSee INV-A1, INV-A2 and SCN-A3.\n";
        let code = "//! **INV-A2**: a rule\n// INV-A1 to INV-A4\n";
        let sources = [Source {
            path: "crates/a/src/lib.rs".to_owned(),
            text: code.to_owned(),
        }];
        let findings = rules(&[example("docs/x.md", document)], &sources);
        assert_eq!(
            findings,
            [
                Finding::new("docs/x.md:2", "this id is taken"),
                Finding::new("docs/x.md:3", "there is no rule SCN-A3"),
                Finding::new("crates/a/src/lib.rs:2", "there is no rule INV-A4"),
            ]
        );
    }

    #[test]
    fn python_has_tests_too() {
        assert_eq!(declared("def test_a(tmp_path):"), Some("test_a"));
        assert_eq!(declared("# no function"), None);
    }
}
