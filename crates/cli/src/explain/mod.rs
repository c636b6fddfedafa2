//! `rdzv run --explain`: the plan of a launch with the origin of every value, and nothing started.
//!
//! ```text
//! flags and their origins (args::settings) ─┐
//! launch and its reasons (resolve) ─────────┴─► Explanation ─► a table, or JSON
//! ```
//!
//! To tell of a new flag there is nothing to do: flags that no section speaks of are listed at the
//! end. To give it a better place, write a line in `launch`: `Draft::flag` for a flag as it was
//! given, `Draft::setting` for what became of one, `Draft::line` for a value of another origin.
//!
//! | file | holds |
//! |---|---|
//! | `draft` | sections in the making |
//! | `launch` | which lines there are |
//! | `meeting` | those about rendezvous |
//! | `watching` | those about hangs, observers and results |
//! | `workers` | those about what each worker gets |
//! | `render` | the table |

mod draft;
mod launch;
mod meeting;
mod render;
mod watching;
mod workers;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub(crate) use self::launch::{Question, explain};

/// The plan of a launch, in sections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Explanation {
    /// Version of this form.
    version: u32,
    sections: Vec<Section>,
}

/// What belongs together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Section {
    title: &'static str,
    lines: Vec<Line>,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    name: String,
    value: String,
    /// Who says so.
    origin: Origin,
    /// The flag or the variable, if it is one.
    source: Option<String>,
    /// What it was given, where the value is something else.
    given: Option<String>,
    /// Why, where the origin does not say it; empty where it does.
    reason: String,
}

/// Who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Origin {
    /// A flag on the command line.
    Flag,
    /// A variable of the environment.
    Variable,
    /// Nobody: it is the flag's default.
    Default,
    /// The machine.
    Detected,
    /// It follows from other values.
    Decided,
}

impl Explanation {
    /// For people: a table, ending with a newline.
    pub(crate) fn table(&self) -> String {
        render::table(self)
    }

    /// For programs: one JSON object, ending with a newline.
    pub(crate) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts and numbers are JSON");
        text + "\n"
    }
}
