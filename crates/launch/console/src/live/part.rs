//! The parts of a status row, and what of them there is room for.

use textwrap::core::display_width;

use crate::line::cut_words;

/// A part of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    text: String,
    /// Whether it is there in every row.
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

/// The parts of a sentence. All but the first one are advice.
pub(super) fn sentence<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<Part> {
    let part = |(index, text): (usize, &str)| Part {
        text: text.to_owned(),
        is_kept: index == 0,
    };
    parts.enumerate().map(part).collect()
}

/// The row with as much of its parts as fits: names of nodes become fewer first, then the last advice goes. If that is
/// not enough, the first part is cut behind a word.
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

/// The text as it is, and with fewer and fewer of the names that stand in parentheses at its end: `(a, b, c)`,
/// `(a, b, 1 more)`, `(a, 2 more)`, and none.
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
