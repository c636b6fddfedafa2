//! Numbers with their nouns.

use std::fmt::Display;

/// Returns a number with its noun: `1 node`, `3 nodes`.
pub fn count(number: impl Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
