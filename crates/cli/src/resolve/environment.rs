//! The variables as they were when the program started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// A snapshot of the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(pub(crate) BTreeMap<OsString, OsString>);

impl Environment {
    /// The value of a variable, if it is set; bytes that are no text are replaced.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(OsStr::new(name))?;
        Some(value.to_string_lossy().into_owned())
    }

    /// The same, without an empty one.
    pub(crate) fn filled(&self, name: &str) -> Option<String> {
        self.text(name).filter(|value| !value.is_empty())
    }
}
