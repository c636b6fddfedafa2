//! Small files, one idea each, named with words that say something.

use super::Finding;
use super::source::Source;

/// A file that reaches this length should be split soon.
const WARN_AT: usize = 400;
/// A longer file fails. Tests at its end do not count.
const STOP_AT: usize = 600;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = [
    "util", "utils", "helper", "helpers", "common", "misc", "manager", "imp",
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = length(source);
    if lines > STOP_AT {
        findings.push(Finding::new(
            &source.path,
            format!("{lines} lines, at most {STOP_AT}"),
        ));
    }
    for part in source.path.split('/') {
        let name = part.split('.').next().unwrap_or(part);
        if EMPTY_NAMES.contains(&name) {
            let rule = format!("'{name}' says nothing: name the file after what it is for");
            findings.push(Finding::new(&source.path, rule));
        }
    }
    findings
}

/// Said, but not counted as a finding.
pub(crate) fn warning(source: &Source) -> Option<Finding> {
    let lines = length(source);
    let long = lines > WARN_AT && lines <= STOP_AT;
    long.then(|| Finding::new(&source.path, format!("{lines} lines: time to split it")))
}

fn length(source: &Source) -> usize {
    source.without_tests().lines().count()
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    #[test]
    fn a_file_may_have_600_lines_and_any_number_of_tests() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "x\n".repeat(500));
        assert_eq!(check(&example("a.rs", &("x\n".repeat(600) + &tests))), []);
        assert_eq!(check(&example("a.rs", &"x\n".repeat(601))).len(), 1);
    }

    #[test]
    fn a_long_file_is_warned_about_before_it_is_too_long() {
        assert!(warning(&example("a.rs", &"x\n".repeat(400))).is_none());
        assert!(warning(&example("a.rs", &"x\n".repeat(401))).is_some());
    }

    #[test]
    fn an_empty_name_is_found_in_file_and_folder() {
        assert_eq!(check(&example("crates/cli/src/utils.rs", "")).len(), 1);
        assert_eq!(check(&example("crates/cli/helpers/a.rs", "")).len(), 1);
        assert_eq!(check(&example("crates/cli/src/important.rs", "")), []);
    }
}
