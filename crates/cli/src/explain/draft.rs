//! Sections in the making.

use std::collections::BTreeSet;

use super::{Line, Origin, Section};
use crate::args::{Given, Setting};

/// An explanation in the making: knows which flags have been spoken of.
pub(super) struct Draft {
    settings: Vec<Setting>,
    told: BTreeSet<String>,
    sections: Vec<Section>,
}

/// Who says so, and why.
#[derive(Debug, Clone)]
pub(super) struct Because {
    origin: Origin,
    source: Option<String>,
    given: Option<String>,
    reason: String,
}

impl Because {
    /// This variable has the value.
    pub(super) fn variable(name: &str) -> Self {
        Self {
            origin: Origin::Variable,
            source: Some(name.to_owned()),
            given: None,
            reason: String::new(),
        }
    }

    /// The machine has it; `how` it was found out.
    pub(super) fn detected(how: impl Into<String>) -> Self {
        Self {
            origin: Origin::Detected,
            source: None,
            given: None,
            reason: how.into(),
        }
    }

    /// It follows from something else.
    pub(super) fn decided(why: impl Into<String>) -> Self {
        Self {
            origin: Origin::Decided,
            source: None,
            given: None,
            reason: why.into(),
        }
    }

    /// For a switch: that it is on goes without saying.
    #[must_use]
    pub(super) fn without_value(mut self) -> Self {
        self.given = None;
        self
    }

    /// Adds a reason; nothing if there is none.
    #[must_use]
    pub(super) fn and(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

impl Draft {
    pub(super) fn new(settings: Vec<Setting>) -> Self {
        Self {
            settings,
            told: BTreeSet::new(),
            sections: Vec::new(),
        }
    }

    /// Begins a section; following lines belong to it.
    pub(super) fn section(&mut self, title: &'static str) {
        self.sections.push(Section {
            title,
            lines: Vec::new(),
        });
    }

    /// Any line.
    pub(super) fn line(
        &mut self,
        name: impl Into<String>,
        value: impl Into<String>,
        because: Because,
    ) {
        let value = value.into();
        let line = Line {
            name: name.into(),
            origin: because.origin,
            source: because.source,
            given: because.given.filter(|given| *given != value),
            value,
            reason: because.reason,
        };
        let section = self.sections.last_mut();
        section.expect("a section is begun first").lines.push(line);
    }

    /// What became of a flag; `id` is the name of its field.
    pub(super) fn setting(
        &mut self,
        name: impl Into<String>,
        id: &str,
        value: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let because = self.given(id).and(reason);
        self.line(name, value, because);
    }

    /// A flag as it was given. Nothing if it has no value.
    pub(super) fn flag(&mut self, name: impl Into<String>, id: &str) {
        let value = self.find(id).value.filter(|value| !value.is_empty());
        let because = self.given(id);
        if let Some(value) = value {
            self.line(name, value, because);
        }
    }

    /// Where a flag's value comes from. The flag counts as told.
    pub(super) fn given(&mut self, id: &str) -> Because {
        let setting = self.find(id);
        let (origin, source) = match &setting.given {
            Given::Typed => (Origin::Flag, setting.flag),
            Given::ByVariable(name) => (Origin::Variable, name.clone()),
            Given::Default => (Origin::Default, setting.flag),
        };
        Because {
            origin,
            source: Some(source),
            given: setting.value.filter(|_| setting.given != Given::Default),
            reason: String::new(),
        }
    }

    /// Whether somebody gave this flag a value.
    pub(super) fn is_given(&self, id: &str) -> bool {
        let setting = self.settings.iter().find(|setting| setting.id == id);
        setting.is_some_and(|setting| setting.given != Given::Default)
    }

    /// The flag has been spoken of under another name.
    pub(super) fn told(&mut self, ids: &[&str]) {
        self.told.extend(ids.iter().map(|id| (*id).to_owned()));
    }

    /// The sections, with one more for flags that no line spoke of.
    pub(super) fn finish(mut self) -> Vec<Section> {
        self.section("Other settings");
        let left = self.settings.iter();
        let left = left.filter(|setting| !self.told.contains(&setting.id));
        let left: Vec<(String, String)> = left
            .map(|setting| (setting.id.clone(), setting.flag.clone()))
            .collect();
        for (id, flag) in left {
            self.flag(flag.trim_start_matches('-'), &id);
        }
        self.sections.retain(|section| !section.lines.is_empty());
        self.sections
    }

    fn find(&mut self, id: &str) -> Setting {
        self.told.insert(id.to_owned());
        let setting = self.settings.iter().find(|setting| setting.id == id);
        // A flag of another launcher (`--use-env`) is none here.
        setting.cloned().unwrap_or_else(|| Setting {
            id: id.to_owned(),
            flag: format!("--{}", id.replace('_', "-")),
            value: None,
            given: Given::Default,
        })
    }
}
