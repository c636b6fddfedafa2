//! Time of a node by class, in one sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_agent_proto::goodput::TimeClass;

use crate::line::{Line, LineRole, said};
use crate::quantity::time;

/// Shortest time that the sentence contains, in seconds.
const LEAST: f64 = 0.05;

/// Returns the sentence about the time of a node by class, in seconds.
/// For example:
/// `goodput 93 % on this node: 2 h 01 min running, 30 s starting, 8 min 32 s repeated`.
pub fn sentence(seconds: &BTreeMap<TimeClass, f64>) -> String {
    let all: f64 = seconds.values().sum();
    let running = seconds.get(&TimeClass::Running).copied().unwrap_or(0.0);
    let parts = TimeClass::ALL.into_iter().filter_map(|class| {
        let seconds = seconds.get(&class).filter(|seconds| **seconds >= LEAST)?;
        let took = time(Duration::from_secs_f64(*seconds));
        Some(format!("{took} {}", class.name()))
    });
    let share = 100.0 * running / all.max(f64::MIN_POSITIVE);
    let parts: Vec<String> = parts.collect();
    format!("goodput {share:.0} % on this node: {}", parts.join(", "))
}

/// Returns the sentence as lines.
pub fn lines(seconds: &BTreeMap<TimeClass, f64>, width: Option<usize>) -> Vec<Line> {
    said(LineRole::Plain, &sentence(seconds), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_share_is_the_goodput_and_short_times_are_left_out() {
        let seconds = BTreeMap::from([
            (TimeClass::Running, 7_290.0),
            (TimeClass::Starting, 30.0),
            (TimeClass::Stopping, 0.04),
            (TimeClass::Repeated, 512.0),
        ]);
        assert_eq!(
            sentence(&seconds),
            "goodput 93 % on this node: 2 h 01 min running, 30 s starting, 8 min 32 s repeated"
        );
        let none = sentence(&BTreeMap::new());
        assert_eq!(none, "goodput 0 % on this node: ");
    }
}
