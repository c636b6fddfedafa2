//! Measured quantities, and their comparisons.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;

use crate::bench::table::Better::{self, Less, More};
use crate::bench::table::Comparison;

/// Key in the answers, name, unit, scale, better direction, and target factor.
///
/// The scale converts the answer into the unit. The target applies to the transports that both
/// sides choose on one host.
type Quantity = (&'static str, &'static str, &'static str, f64, Better, f64);

#[rustfmt::skip]
const QUANTITIES: [Quantity; 15] = [
    ("latency_p50", "empty call, median", "us", 1e6, Less, 10.0),
    ("latency_p90", "empty call, 90th percentile", "us", 1e6, Less, 1.0),
    ("latency_p99", "empty call, 99th percentile", "us", 1e6, Less, 1.0),
    ("paced_p50", "empty call every 10 ms, median", "us", 1e6, Less, 1.0),
    ("in_flight", "64 in flight", "thousand calls/s", 1e-3, More, 10.0),
    ("one_way", "64 MiB one way", "GB/s", 1e-9, More, 1.5),
    ("echo", "64 MiB there and back", "GB/s", 1e-9, More, 1.5),
    ("cores", "idle", "% of a core", 100.0, Less, 1.0),
    ("threads", "added", "threads", 1.0, Less, 1.0),
    ("descriptors", "added", "descriptors", 1.0, Less, 0.0),
    ("megabytes", "added", "MiB", 1.0, Less, 1.0),
    ("init_2", "2 workers start", "ms", 1e3, Less, 1.0),
    ("init_4", "4 workers start", "ms", 1e3, Less, 3.0),
    ("shutdown_2", "2 workers shut down", "ms", 1e3, Less, 1.0),
    ("shutdown_4", "4 workers shut down", "ms", 1e3, Less, 1.0),
];

/// Keys and sizes of the calls with tensors that workers lend from an arena.
pub(super) const FROM_ARENA: [(&str, &str); 2] = [("lent", "64 MiB"), ("lent_large", "1 GiB")];

/// Answers from the workers of one side in one run, by key.
#[derive(Debug, Default)]
pub(super) struct Figures(pub(super) BTreeMap<String, f64>);

impl Figures {
    pub(super) fn add(&mut self, key: &str, value: f64) {
        self.0.insert(key.to_owned(), value);
    }

    /// Adds every number in the answer of a worker.
    pub(super) fn add_all(&mut self, answer: &Value) {
        let numbers = answer.as_object().into_iter().flatten();
        let numbers = numbers.filter_map(|(key, value)| Some((key.clone(), value.as_f64()?)));
        self.0.extend(numbers);
    }
}

/// Compares two sides, without targets if `has_targets` is `false`.
///
/// Only the default transports have targets.
pub(super) fn comparisons(
    [ours, theirs]: [&[Figures]; 2],
    has_targets: bool,
) -> anyhow::Result<Vec<Comparison>> {
    let compared = QUANTITIES
        .iter()
        .map(|(key, name, unit, scale, better, target)| {
            let values = |side: &[Figures]| {
                let values = side
                    .iter()
                    .map(|figures| Some(figures.0.get(*key)? * scale));
                values
                    .collect::<Option<Vec<f64>>>()
                    .with_context(|| format!("no worker answered '{key}'"))
            };
            let target = if has_targets { *target } else { 0.0 };
            let mut comparison = Comparison::new(name, unit, *better, target);
            (comparison.ours, comparison.theirs) = (values(ours)?, values(theirs)?);
            Ok(comparison)
        });
    compared.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_that_no_worker_answered_is_an_error() {
        let answer: Value = QUANTITIES
            .iter()
            .map(|(key, ..)| ((*key).to_owned(), json!(0.5)))
            .collect();
        let mut figures = Figures::default();
        figures.add_all(&answer);
        let mut sides = [vec![figures], Vec::new()];
        let compared = comparisons([&sides[0], &sides[0]], true).unwrap();
        assert_eq!(compared[0].ours, [500_000.0]);
        assert!(!compared[0].is_met() && compared[1].is_met());

        sides[0][0].0.remove("echo");
        let error = comparisons([&sides[0], &sides[0]], true).unwrap_err();
        assert_eq!(error.to_string(), "no worker answered 'echo'");
    }
}
