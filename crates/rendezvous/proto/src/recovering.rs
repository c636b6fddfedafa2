//! Messages while a coordinator waits for members of the last round.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdzv_core::escape::escape;
use rdzv_core::quantity::count;

/// Maximum number of ranks that a message lists.
const NAMED: usize = 16;

/// Progress of a state recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovering {
    /// Number of the last round that was announced.
    pub round: u64,
    /// Number of its participants.
    pub size: u32,
    /// Group ranks that the coordinator waits for.
    pub missing: Vec<u32>,
    /// Time since the recovery began.
    ///
    /// If all participants are silent, it is the time since this coordinator began to wait.
    pub elapsed: Duration,
    /// Time until the missing agents are lost; `None` without a limit.
    pub left: Option<Duration>,
    /// `true` if the coordinator has a record of the round.
    ///
    /// Without a record, the coordinator waits for each participant, unless the user confirms its
    /// exit.
    pub is_noted: bool,
    /// Known hosts by rank, if all participants are silent.
    ///
    /// `None` if the round is not silent.
    pub silent: Option<BTreeMap<u32, String>>,
    /// Address of the round's earlier coordinator, if it may run elsewhere.
    pub elsewhere: Option<String>,
}

impl fmt::Display for Recovering {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (round, size, left) = (self.round, self.size, self.left);
        let elapsed = self.elapsed.as_secs_f64();
        let back = (size as usize).saturating_sub(self.missing.len());
        let missing = self.named();
        if let Some(address) = &self.elsewhere {
            return write!(
                formatter,
                "the coordinator of round {round} was at {}, which is not an address of this \
                 process, and may still be running; {back} of {size} nodes have connected here in \
                 {elapsed:.0} s, their workers continue, and no other round forms; if that \
                 coordinator has exited, restart this process with --rdzv-conf recover=true (rdzv \
                 store: --recover)",
                escape(address),
            );
        }
        match (&self.silent, self.missing.is_empty()) {
            (None, true) => write!(
                formatter,
                "recovered round {round} of {} in {:.0} ms",
                count(size, "node"),
                elapsed * 1e3
            ),
            (None, false) => {
                let few = match (left, self.is_noted) {
                    (Some(_), _) => "",
                    (None, true) => ", which is not more than half",
                    (None, false) => ", and without a record, all nodes must be",
                };
                let left = left.map(|left| format!(" {:.1} s more", left.as_secs_f64()));
                let left = left.unwrap_or_default();
                write!(
                    formatter,
                    "recovering round {round} for {elapsed:.0} s: {back} of {size} nodes are accounted for{few}; \
                     waiting{left} for the agents of group ranks {missing}"
                )
            }
            (Some(_), true) => write!(
                formatter,
                "the wait for a node of round {round} is over after {elapsed:.1} s; the next round forms"
            ),
            (Some(_), false) => {
                let all = match size {
                    1 => "the node".to_owned(),
                    _ => format!("any of the {size} nodes"),
                };
                write!(
                    formatter,
                    "no contact with {all} of round {round} (lost {elapsed:.0} s ago); its workers may still be running, \
                     and no other round forms until one of its agents reattaches: group ranks {missing}; if their \
                     machines are lost for good, restart this process with --rdzv-conf recover=true (rdzv store: --recover)"
                )
            }
        }
    }
}

impl Recovering {
    /// `true` if the coordinator no longer waits for any agent.
    pub fn is_over(&self) -> bool {
        self.missing.is_empty() && self.elsewhere.is_none()
    }

    /// Returns the missing ranks, with the known hosts of silent agents.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let host = |rank| self.silent.as_ref()?.get(rank);
        self.missing.iter().map(move |rank| match host(rank) {
            Some(host) => format!("{rank} ({host})"),
            None => rank.to_string(),
        })
    }

    /// Returns the first missing ranks as a text.
    fn named(&self) -> String {
        let named = self.names().take(NAMED).collect::<Vec<_>>().join(", ");
        match self.missing.len().saturating_sub(NAMED) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
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
            left: None,
            is_noted: true,
            silent: None,
            elsewhere: None,
        };
        let text = recovering.to_string();
        assert!(text.starts_with(
            "recovering round 7 for 3 s: 20 of 40 nodes are accounted for, which is not more than half; waiting for the"
        ));
        assert!(text.ends_with(
            "20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35 and 4 more"
        ));
        recovering.missing = vec![3];
        recovering.left = Some(Duration::from_millis(540));
        assert_eq!(
            recovering.to_string(),
            "recovering round 7 for 3 s: 39 of 40 nodes are accounted for; waiting 0.5 s more for the agents of group ranks 3"
        );
        (recovering.left, recovering.is_noted) = (None, false);
        let text = recovering.to_string();
        assert!(
            text.contains("accounted for, and without a record, all nodes must be; waiting for")
        );
        recovering.missing.clear();
        assert_eq!(
            recovering.to_string(),
            "recovered round 7 of 40 nodes in 3008 ms"
        );
    }

    #[test]
    fn silent_hosts_are_named() {
        let mut recovering = Recovering {
            round: 7,
            size: 2,
            missing: vec![0, 1],
            elapsed: Duration::from_millis(500),
            left: None,
            is_noted: true,
            silent: Some([(0, "node-a".to_owned())].into()),
            elsewhere: None,
        };
        assert_eq!(
            recovering.to_string(),
            "no contact with any of the 2 nodes of round 7 (lost 0 s ago); its workers may still be running, and no \
             other round forms until one of its agents reattaches: group ranks 0 (node-a), 1; if their machines are \
             lost for good, restart this process with --rdzv-conf recover=true (rdzv store: --recover)"
        );
        recovering.missing.clear();
        assert_eq!(
            recovering.to_string(),
            "the wait for a node of round 7 is over after 0.5 s; the next round forms"
        );
    }

    #[test]
    fn a_coordinator_elsewhere_is_named() {
        let recovering = Recovering {
            round: 7,
            size: 3,
            missing: vec![2],
            elapsed: Duration::from_millis(10_500),
            left: None,
            is_noted: false,
            silent: None,
            elsewhere: Some("10.0.0.1:29400".to_owned()),
        };
        assert!(!recovering.is_over());
        assert_eq!(
            recovering.to_string(),
            "the coordinator of round 7 was at 10.0.0.1:29400, which is not an address of this \
             process, and may still be running; 2 of 3 nodes have connected here in 10 s, their \
             workers continue, and no other round forms; if that coordinator has exited, restart \
             this process with --rdzv-conf recover=true (rdzv store: --recover)"
        );
    }
}
