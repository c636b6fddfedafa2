//! Names and lengths of files.

use super::Finding;
use super::source::Source;

/// Number of lines, without tests, above which a file causes a warning.
const LONG: usize = 600;

/// Names that do not describe the content of a file or folder.
const EMPTY_NAMES: [&str; 8] = [
    "util", "utils", "helper", "helpers", "common", "misc", "manager", "imp",
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for part in source.path.split('/') {
        let name = part.split('.').next().unwrap_or(part);
        if EMPTY_NAMES.contains(&name) {
            let rule = format!("'{name}' says nothing: name the file after what it is for");
            findings.push(Finding::new(&source.path, rule));
        }
    }
    findings
}

/// Returns a warning about a long file, which does not count as a finding.
///
/// `lines` is its number of lines without tests.
pub(crate) fn warning(source: &Source, lines: usize) -> Option<Finding> {
    let warning = || Finding::new(&source.path, format!("{lines} lines: more than one idea?"));
    (lines > LONG).then(warning)
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    #[test]
    fn a_long_file_is_warned_about() {
        assert!(warning(&example("a.rs", ""), 600).is_none());
        assert!(warning(&example("a.rs", ""), 601).is_some());
    }

    #[test]
    fn an_empty_name_is_found_in_file_and_folder() {
        assert_eq!(
            check(&example("crates/launch/cli/src/utils.rs", "")).len(),
            1
        );
        assert_eq!(
            check(&example("crates/launch/cli/helpers/a.rs", "")).len(),
            1
        );
        assert_eq!(
            check(&example("crates/launch/cli/src/important.rs", "")),
            []
        );
    }
}
