//! `--explain`: values with their origins, in sections; as a table, or as JSON.
//!
//! A new flag needs nothing here: flags that no section mentions are listed at the end. For a
//! better place, the `explain` function of its group in `launch` adds a line: [`Draft::flag`] for a
//! flag as it was given, [`Draft::setting`] for the value derived from one, [`Draft::line`] for a
//! value of another origin.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

/// Names and values that are longer do not push the origins of all others to the right.
const WIDEST: usize = 40;

/// The source of a flag's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    /// The command line.
    Typed,
    /// This variable.
    ByVariable(String),
    /// The default of the flag.
    Default,
}

/// A flag and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The name of its field, `nproc_per_node`.
    pub(crate) id: String,
    /// Its name on the command line, `--nproc-per-node`.
    pub(crate) flag: String,
    /// As given, or the default; none if there is no default. `yes` or `no` for a switch.
    pub(crate) value: Option<String>,
    /// The source of the value.
    pub(crate) given: Given,
}

/// The plan of a launch, in sections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Explanation {
    /// Version of this form.
    version: u32,
    sections: Vec<Section>,
}

/// Lines that belong together.
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
    #[serde(flatten)]
    provenance: Provenance,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Provenance {
    origin: Origin,
    /// The flag or the variable, if it is one.
    source: Option<String>,
    /// The text that was given, where the value is something else.
    given: Option<String>,
    /// The reason, where the origin does not say it; empty where it does.
    reason: String,
}

/// The kinds of origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Origin {
    /// A flag on the command line.
    Flag,
    /// A variable of the environment.
    Variable,
    /// The flag's default.
    Default,
    /// The machine.
    Detected,
    /// It follows from other values.
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

    /// The value of this variable.
    pub(crate) fn variable(name: &str) -> Self {
        Self::new(Origin::Variable, Some(name), "")
    }

    /// A fact of the machine; `how` it was detected.
    pub(crate) fn detected(how: impl Into<String>) -> Self {
        Self::new(Origin::Detected, None, how)
    }

    /// A consequence of other values.
    pub(crate) fn decided(why: impl Into<String>) -> Self {
        Self::new(Origin::Decided, None, why)
    }

    /// Without the text that was given: for a switch, whose name says it all.
    #[must_use]
    pub(crate) fn without_value(mut self) -> Self {
        self.given = None;
        self
    }

    /// Sets the reason.
    #[must_use]
    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Replaced by a decision if there is a reason for one.
    #[must_use]
    pub(crate) fn unless_decided(self, reason: &str) -> Self {
        match reason {
            "" => self,
            _ => Self::decided(reason),
        }
    }
}

/// An explanation in the making. It keeps track of the flags that were mentioned.
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

    /// Begins a section; following lines belong to it.
    pub(crate) fn section(&mut self, title: &'static str) {
        let lines = Vec::new();
        self.sections.push(Section { title, lines });
    }

    /// Adds any line.
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
        let provenance = self.given(id).because(reason);
        self.line(name, value, provenance);
    }

    /// Adds a flag as it was given. Nothing if it has no value.
    pub(crate) fn flag(&mut self, name: impl Into<String>, id: &str) {
        let value = self.find(id).value.clone();
        let provenance = self.given(id);
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.line(name, value, provenance);
        }
    }

    /// The origin of a flag's value. The flag counts as mentioned.
    pub(crate) fn given(&mut self, id: &str) -> Provenance {
        self.mention(&[id]);
        let setting = self.find(id);
        let (origin, source) = match &setting.given {
            Given::Typed => (Origin::Flag, &setting.flag),
            Given::ByVariable(name) => (Origin::Variable, name),
            Given::Default => (Origin::Default, &setting.flag),
        };
        let mut provenance = Provenance::new(origin, Some(source), "");
        if setting.given != Given::Default {
            provenance.given.clone_from(&setting.value);
        }
        provenance
    }

    /// True if the flag does not have its default.
    pub(crate) fn is_given(&self, id: &str) -> bool {
        self.find(id).given != Given::Default
    }

    /// Marks flags whose value is part of another line.
    pub(crate) fn mention(&mut self, ids: &[&str]) {
        self.mentioned.extend(ids.iter().map(|&id| id.to_owned()));
    }

    /// The sections, with one more for flags that no line mentions.
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
    /// For programs: one JSON object, ending with a newline.
    pub(crate) fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts and numbers are JSON");
        text + "\n"
    }

    /// For people: a table with one line per value (name, value, origin), ending with a newline.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("Nothing is started: this is what would be, and why.\n");
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
                // A value of several lines would tear the table.
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
