//! Rules of a machine that a simulation breaks on purpose.

/// The rules that a machine keeps.
///
/// A simulation breaks one of them, and has to detect the violation. The set is part of a machine's
/// configuration. Its default keeps every rule of `R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules<R>(Option<R>);

impl<R> Rules<R> {
    /// Returns all rules except this one.
    pub fn without(broken: R) -> Self {
        Self(Some(broken))
    }
}

impl<R: PartialEq> Rules<R> {
    /// `true` if the machine keeps this rule.
    pub fn has(&self, rule: R) -> bool {
        self.0 != Some(rule)
    }
}

impl<R> Default for Rules<R> {
    /// Returns all rules.
    fn default() -> Self {
        Self(None)
    }
}
