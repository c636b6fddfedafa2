//! The parts of a status row, and the selection that fits.

use textwrap::core::display_width;

use crate::line::cut_words;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    text: String,
    /// `true` if the part is in every row.
    is_kept: bool,
}

impl Part {
    pub(super) fn kept(text: String) -> Self {
        Self {
            text,
            is_kept: true,
        }
    }
}

/// Returns the parts of a sentence. All but the first are advice.
pub(super) fn sentence<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<Part> {
    let part = |(index, text): (usize, &str)| Part {
        text: text.to_owned(),
        is_kept: index == 0,
    };
    parts.enumerate().map(part).collect()
}

/// Returns the row with as many of its parts as fit.
/// Names of nodes are left out first. If that is not enough, the last advice is left out instead,
/// and then names too. Without advice, the first part is cut after a word.
pub(super) fn fit(mut parts: Vec<Part>, width: usize) -> String {
    let first = parts
        .first()
        .map(|part| part.text.clone())
        .unwrap_or_default();
    loop {
        for shorter in with_fewer_names(&first) {
            let row = joined(&shorter, &parts);
            if display_width(&row) <= width {
                return row;
            }
        }
        let Some(last) = parts.iter().rposition(|part| !part.is_kept) else {
            break;
        };
        match parts[last].text.rsplit_once(", ") {
            Some((before, _)) => parts[last].text = before.to_owned(),
            None => drop(parts.remove(last)),
        }
    }
    let rest = display_width(&joined("", &parts));
    joined(&cut_words(&first, width.saturating_sub(rest)), &parts)
}

fn joined(first: &str, parts: &[Part]) -> String {
    let rest = parts.iter().skip(1).map(|part| part.text.as_str());
    let all: Vec<&str> = std::iter::once(first).chain(rest).collect();
    all.join(" \u{b7} ")
}

/// Returns the text unchanged, and with ever fewer names.
/// The names are in parentheses at its end. They become `(a, b, 1 more)`, `(a, 2 more)` or nothing.
fn with_fewer_names(text: &str) -> Vec<String> {
    let mut forms = vec![text.to_owned()];
    let listed = text
        .strip_suffix(')')
        .and_then(|text| text.rsplit_once(" ("));
    let Some((head, names)) = listed else {
        return forms;
    };
    let mut names: Vec<&str> = names.split(", ").collect();
    let unnamed = names.last().and_then(|last| last.strip_suffix(" more"));
    let unnamed: Option<usize> = unnamed.and_then(|number| number.parse().ok());
    if unnamed.is_some() {
        names.pop();
    }
    if names.iter().any(|name| name.contains(' ')) {
        return forms;
    }
    for kept in (1..names.len()).rev() {
        let more = names.len() - kept + unnamed.unwrap_or(0);
        forms.push(format!(
            "{head} ({}, {more} more)",
            names[..kept].join(", ")
        ));
    }
    forms.push(head.to_owned());
    forms
}
