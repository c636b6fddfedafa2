//! Metrics of the coordinator's group, computed for each request.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rdzv_rendezvous::{GroupReport, GroupStatus};

/// Returns the metrics of a store, which has no run and no workers.
pub(crate) fn of_store(group: GroupStatus) -> Registry {
    let mut registry = Registry::with_prefix("rdzv");
    registry.register_collector(Box::new(GroupMetrics(group)));
    registry
}

/// Collector for the group that this process knows.
#[derive(Debug)]
pub(super) struct GroupMetrics(pub(super) GroupStatus);

impl Collector for GroupMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(group) = self.0.look() else {
            return Ok(());
        };
        for (name, help, value) in gauges(&group) {
            if let Some(value) = value {
                let gauge = ConstGauge::new(value);
                let kind = gauge.metric_type();
                gauge.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
            }
        }
        // Only a process that serves the rendezvous knows these events.
        if group.voters.is_some() {
            for (name, help, value) in counters(&group) {
                let counter = ConstCounter::new(value);
                let kind = counter.metric_type();
                counter.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
            }
        }
        Ok(())
    }
}

/// Returns name, help and value of each gauge; `None` for an unknown value.
fn gauges(group: &GroupReport) -> [(&'static str, &'static str, Option<i64>); 3] {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let voters = group.voters.as_ref().map(|voters| {
        let there = voters.iter().filter(|voter| voter.state.votes());
        number(there.count())
    });
    let term = group.term.map(i64::try_from);
    let term = term.map(|term| term.unwrap_or(i64::MAX));
    let help = "Target number of voters.";
    let target = group.target.map(number);
    [
        ("group_term", "Current term of the voters.", term),
        ("group_voters", "Current number of voters.", voters),
        ("group_target_voters", help, target),
    ]
}

fn counters(group: &GroupReport) -> [(&'static str, &'static str, u64); 2] {
    let elected = "Elections of a coordinator that this process has observed.";
    let restarts = "Restarts of the group without its log.";
    [
        ("group_elections", elected, group.elections),
        ("group_takeovers", restarts, group.takeovers),
    ]
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_store_without_a_group_has_no_metrics() {
        let mut text = String::new();
        encode(&mut text, &of_store(GroupStatus::default())).unwrap();
        assert_eq!(text, "# EOF\n");
    }

    #[test]
    fn what_is_not_known_has_no_value() {
        let group = GroupReport {
            term: Some(7),
            ..GroupReport::default()
        };
        let values = gauges(&group).map(|(_, _, value)| value);
        assert_eq!(values, [Some(7), None, None]);
    }
}
