//! Messages while a coordinator that was started again looks for the members of its last round.

use std::fmt;
use std::time::Duration;

/// Most ranks that a message names.
const NAMED: usize = 16;

/// A state recovery, under way or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovering {
    /// The last round that was announced.
    pub round: u64,
    /// The number of its participants.
    pub size: u32,
    /// The ranks that are waited for; none if it has ended.
    pub missing: Vec<u32>,
    /// Since the coordinator was started again.
    pub elapsed: Duration,
}

impl fmt::Display for Recovering {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            round,
            size,
            missing,
            elapsed,
        } = self;
        if missing.is_empty() {
            let elapsed = elapsed.as_secs_f64() * 1e3;
            return write!(
                formatter,
                "recovered round {round} of {size} nodes in {elapsed:.0} ms"
            );
        }
        let named: Vec<String> = missing.iter().take(NAMED).map(u32::to_string).collect();
        let more = match missing.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let back = (*size as usize).saturating_sub(missing.len());
        let few = match missing.len() * 2 < *size as usize {
            true => "and without a note all have to be",
            false => "which is not more than half",
        };
        write!(
            formatter,
            "recovering round {round} for {:.0} s: {back} of {size} nodes are accounted for, {few}; waiting for the agents of group ranks {}{more}",
            elapsed.as_secs_f64(),
            named.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_those_who_are_missing() {
        let mut recovering = Recovering {
            round: 7,
            size: 40,
            missing: (20..40).collect(),
            elapsed: Duration::from_millis(3008),
        };
        let text = recovering.to_string();
        assert!(text.starts_with("recovering round 7 for 3 s: 20 of 40 nodes"));
        assert!(text.ends_with(
            "20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35 and 4 more"
        ));
        recovering.missing.clear();
        assert_eq!(
            recovering.to_string(),
            "recovered round 7 of 40 nodes in 3008 ms"
        );
    }
}
