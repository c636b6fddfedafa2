//! The table.

use std::fmt::Write as _;

use super::{Explanation, Line, Origin};

/// Names and values that are longer do not push the origins of all others to the right.
const WIDEST: usize = 40;

/// One line per value: name, value, origin.
pub(super) fn table(explanation: &Explanation) -> String {
    let mut text = String::from("Nothing is started: this is what would be, and why.\n");
    let lines = || {
        explanation
            .sections
            .iter()
            .flat_map(|section| &section.lines)
    };
    let width = |column: fn(&Line) -> &str| {
        let widths = lines().map(|line| column(line).chars().count());
        widths.filter(|width| *width <= WIDEST).max().unwrap_or(0)
    };
    let (names, values) = (width(|line| &line.name), width(|line| &line.value));
    for section in &explanation.sections {
        let _ = write!(text, "\n{}\n", section.title);
        for line in &section.lines {
            let (name, origin) = (&line.name, origin(line));
            // A value of several lines would tear the table.
            let value = line.value.replace('\n', "\\n");
            let line = format!("  {name:<names$}  {value:<values$}  {origin}");
            text += line.trim_end();
            text.push('\n');
        }
    }
    text
}

fn origin(line: &Line) -> String {
    let source = line.source.as_deref().unwrap_or_default();
    let who = match line.origin {
        Origin::Flag | Origin::Variable => match &line.given {
            Some(given) => format!("{source} {given}"),
            None => source.to_owned(),
        },
        Origin::Default => format!("default of {source}"),
        Origin::Detected | Origin::Decided => String::new(),
    };
    match (who.is_empty(), line.reason.is_empty()) {
        (true, _) => line.reason.clone(),
        (false, true) => who,
        (false, false) => format!("{who}: {}", line.reason),
    }
}
