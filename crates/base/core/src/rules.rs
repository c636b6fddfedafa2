//! Rules of a machine that a simulation breaks on purpose.

/// The rules that a machine keeps.
///
/// All of them, except in a simulation that has to notice a broken one.
///
/// The set is part of a machine's configuration. Its default keeps every rule of `R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules<R>(Option<R>);

impl<R> Rules<R> {
    /// All rules except this one.
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
    /// All rules.
    fn default() -> Self {
        Self(None)
    }
}
