//! Rules of a state machine, which a simulation can break on purpose.

/// Set of rules that a state machine follows.
///
/// A simulation disables one rule and must then detect the violation. The set is part of a
/// machine's configuration. The default set contains every rule of `R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules<R>(Option<R>);

impl<R> Rules<R> {
    /// Returns the set of all rules except this one.
    pub fn without(broken: R) -> Self {
        Self(Some(broken))
    }
}

impl<R: PartialEq> Rules<R> {
    /// `true` if the machine follows this rule.
    pub fn has(&self, rule: R) -> bool {
        self.0 != Some(rule)
    }
}

impl<R> Default for Rules<R> {
    /// Returns the set of all rules.
    fn default() -> Self {
        Self(None)
    }
}
