//! What the documents in `docs/` say of the tests: each that they name is there.
//!
//! A test is named as `file::test` between backquotes, with a file of Rust or Python.

use std::collections::BTreeSet;

use super::Finding;
use super::source::Source;

/// Checks one document, given the names of all functions.
pub(super) fn check(path: &str, text: &str, functions: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        // Every second part is between backquotes.
        for span in text.split('`').skip(1).step_by(2) {
            let Some((file, test)) = span.split_once("::") else {
                continue;
            };
            let names_a_test = file.ends_with(".rs") || file.ends_with(".py");
            if names_a_test && !functions.contains(test) {
                findings.push(Finding::new(
                    format!("{path}:{line}"),
                    format!("there is no test {test}"),
                ));
            }
        }
    }
    findings
}

/// The names of all functions in the sources.
pub(super) fn functions(sources: &[Source]) -> BTreeSet<&str> {
    let words = sources.iter().flat_map(|source| source.text.lines());
    words.filter_map(declared).collect()
}

fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.split_once("fn ").map(|(_, rest)| rest);
    let rest = rest.or_else(|| line.strip_prefix("def "))?;
    let end = rest.find(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric())?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_found() {
        let sources = [Source {
            path: "crates/a/tests/b.rs".to_owned(),
            text: "#[test]\nfn it_works() {}\n    async fn so_does_this() {}\n".to_owned(),
        }];
        let functions = functions(&sources);
        let text =
            "`b.rs::it_works`, `b.rs::so_does_this`\nand `b.rs::gone`, but `a::b` is no file";
        let findings = check("docs/x.md", text, &functions);
        assert_eq!(
            findings,
            [Finding::new("docs/x.md:2", "there is no test gone")]
        );
    }

    #[test]
    fn python_has_tests_too() {
        assert_eq!(declared("def test_a(tmp_path):"), Some("test_a"));
        assert_eq!(declared("# no function"), None);
    }
}
