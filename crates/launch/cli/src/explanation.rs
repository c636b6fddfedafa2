//! `--explain`: all values with their origins, as a table or as JSON.
//!
//! A new flag needs no change here: flags that no section mentions appear at the end. To show a
//! flag in a section, add a line in the `explain` function of its group.
//! [`Draft::flag`] adds a flag with its own value, [`Draft::setting`] a value derived from a flag,
//! and [`Draft::line`] a value of another origin.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

/// Maximum width of a column; longer names and values do not widen it.
const WIDEST: usize = 40;

/// Source of a flag's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    /// The command line.
    Typed,
    /// The command line, together with a variable; the text is the variable's part.
    Merged(String),
    /// This variable.
    ByVariable(String),
    /// The default of the flag.
    Default,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Name of the flag's field, such as `nproc_per_node`.
    pub(crate) id: String,
    /// Name of the flag on the command line, such as `--nproc-per-node`.
    pub(crate) flag: String,
    /// Specified value, or else the default; `yes` or `no` for a switch.
    ///
    /// `None` without either.
    pub(crate) value: Option<String>,
    pub(crate) given: Given,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Explanation {
    /// Version of this JSON format.
    version: u32,
    sections: Vec<Section>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Section {
    title: &'static str,
    lines: Vec<Line>,
}

/// One value with its name and origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    name: String,
    value: String,
    #[serde(flatten)]
    provenance: Provenance,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Provenance {
    origin: Origin,
    /// Flag or variable that set the value, if any.
    source: Option<String>,
    /// Text that the user specified, if the value differs from it.
    given: Option<String>,
    /// Reason for the value; empty if the origin is reason enough.
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Origin {
    /// A flag on the command line.
    Flag,
    /// A variable of the environment.
    Variable,
    /// The flag's default.
    Default,
    /// A property of the machine.
    Detected,
    /// A consequence of other values.
    Decided,
}

impl Provenance {
    fn new(origin: Origin, source: Option<&str>, reason: impl Into<String>) -> Self {
        Self {
            origin,
            source: source.map(str::to_owned),
            given: None,
            reason: reason.into(),
        }
    }

    pub(crate) fn variable(name: &str) -> Self {
        Self::new(Origin::Variable, Some(name), "")
    }

    /// Origin of a value detected on the machine; `how` describes the detection.
    pub(crate) fn detected(how: impl Into<String>) -> Self {
        Self::new(Origin::Detected, None, how)
    }

    /// Origin of a value that follows from other values.
    pub(crate) fn decided(why: impl Into<String>) -> Self {
        Self::new(Origin::Decided, None, why)
    }

    /// Removes the specified text, for a switch, whose name is enough.
    #[must_use]
    pub(crate) fn without_value(mut self) -> Self {
        self.given = None;
        self
    }

    #[must_use]
    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Changes the origin to a decision if `reason` is not empty.
    #[must_use]
    pub(crate) fn unless_decided(self, reason: &str) -> Self {
        match reason {
            "" => self,
            _ => Self::decided(reason),
        }
    }
}

/// Builder of an explanation, which remembers the flags that lines mention.
pub(crate) struct Draft {
    settings: Vec<Setting>,
    mentioned: BTreeSet<String>,
    sections: Vec<Section>,
}

impl Draft {
    pub(crate) fn new(settings: Vec<Setting>) -> Self {
        Self {
            settings,
            mentioned: BTreeSet::new(),
            sections: Vec::new(),
        }
    }

    /// Begins a section; the following lines belong to it.
    pub(crate) fn section(&mut self, title: &'static str) {
        let lines = Vec::new();
        self.sections.push(Section { title, lines });
    }

    /// Adds a line with any origin.
    pub(crate) fn line(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
        mut provenance: Provenance,
    ) {
        let (name, value) = (name.into(), value.into());
        provenance.given.take_if(|given| *given == value);
        let section = self.sections.last_mut();
        let section = section.expect("a section is begun first");
        section.lines.push(Line {
            name,
            value,
            provenance,
        });
    }

    /// Adds the value derived from a flag; `id` is the name of its field.
    pub(crate) fn setting(
        &mut self,
        name: impl Into<String>,
        id: &str,
        value: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let mut provenance = self.given(id);
        let reason = reason.into();
        if !reason.is_empty() {
            provenance = provenance.because(reason);
        }
        self.line(name, value, provenance);
    }

    /// Adds a flag with its value, unless it has none.
    pub(crate) fn flag(&mut self, name: impl Into<String>, id: &str) {
        let value = self.find(id).value.clone();
        let provenance = self.given(id);
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.line(name, value, provenance);
        }
    }

    /// Returns the origin of a flag's value, and marks the flag as mentioned.
    pub(crate) fn given(&mut self, id: &str) -> Provenance {
        self.mention(&[id]);
        let setting = self.find(id);
        let (origin, source) = match &setting.given {
            Given::Typed | Given::Merged(_) => (Origin::Flag, &setting.flag),
            Given::ByVariable(name) => (Origin::Variable, name),
            Given::Default => (Origin::Default, &setting.flag),
        };
        let reason = match &setting.given {
            Given::Merged(part) => part,
            _ => "",
        };
        let mut provenance = Provenance::new(origin, Some(source), reason);
        if setting.given != Given::Default {
            provenance.given.clone_from(&setting.value);
        }
        provenance
    }

    /// `true` if the command line or a variable sets the flag.
    pub(crate) fn is_given(&self, id: &str) -> bool {
        self.find(id).given != Given::Default
    }

    /// Marks flags whose values are part of another line as mentioned.
    pub(crate) fn mention(&mut self, ids: &[&str]) {
        self.mentioned.extend(ids.iter().map(|&id| id.to_owned()));
    }

    /// Returns the sections, with one more for flags that no line mentions.
    pub(crate) fn finish(mut self) -> Explanation {
        self.section("Other settings");
        for Setting { id, flag, .. } in self.settings.clone() {
            if !self.mentioned.contains(&id) {
                self.flag(flag.trim_start_matches('-'), &id);
            }
        }
        self.sections.retain(|section| !section.lines.is_empty());
        Explanation {
            version: 1,
            sections: self.sections,
        }
    }

    fn find(&self, id: &str) -> &Setting {
        let setting = self.settings.iter().find(|setting| setting.id == id);
        setting.expect("every id is the field of a flag")
    }
}

impl Explanation {
    /// Returns one JSON object with a newline at its end, for programs.
    pub(crate) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts and numbers are JSON");
        text + "\n"
    }

    /// Returns a table for users, with a newline at its end.
    ///
    /// Each value has one line: name, value and origin.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "Nothing was started. These settings, with their origins, would be used:\n",
        );
        let width = |column: fn(&Line) -> &str| {
            let lines = self.sections.iter().flat_map(|section| &section.lines);
            let widths = lines.map(|line| column(line).chars().count());
            widths.filter(|width| *width <= WIDEST).max().unwrap_or(0)
        };
        let (names, values) = (width(|line| &line.name), width(|line| &line.value));
        for section in &self.sections {
            let _ = write!(text, "\n{}\n", section.title);
            for line in &section.lines {
                let (name, origin) = (&line.name, line.provenance.text());
                // A value with several lines would break the table.
                let value = line.value.replace('\n', "\\n");
                let line = format!("  {name:<names$}  {value:<values$}  {origin}");
                text += line.trim_end();
                text.push('\n');
            }
        }
        text
    }
}

impl Provenance {
    fn text(&self) -> String {
        let source = self.source.as_deref().unwrap_or_default();
        let origin = match (self.origin, &self.given) {
            (Origin::Flag | Origin::Variable, Some(given)) => format!("{source} {given}"),
            (Origin::Flag | Origin::Variable, None) => source.to_owned(),
            (Origin::Default, _) => format!("default of {source}"),
            (Origin::Detected | Origin::Decided, _) => return self.reason.clone(),
        };
        match &*self.reason {
            "" => origin,
            reason => format!("{origin}: {reason}"),
        }
    }
}
