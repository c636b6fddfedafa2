//! Measured quantities, and their table.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;

use crate::bench::table::Better::{self, Less, More};
use crate::bench::table::{Comparison, figure, median, spread};

/// Quantity: its names in the workers' answers and in the table, its gate.
///
/// The gate is the required value of our side, whatever the other side reaches.
struct Quantity {
    key: &'static str,
    name: &'static str,
    unit: &'static str,
    /// Factor from an answer to that unit.
    scale: f64,
    better: Better,
    gate: f64,
}

/// Quantities in the order of the table.
///
/// The gates are for a virtual machine with two processors.
#[rustfmt::skip]
const QUANTITIES: [Quantity; 15] = [
    quantity("latency_p50", "empty call, median", "us", 1e6, Less, 4.0),
    quantity("latency_p90", "empty call, 90th percentile", "us", 1e6, Less, 8.0),
    quantity("latency_p99", "empty call, 99th percentile", "us", 1e6, Less, 20.0),
    quantity("paced_p50", "empty call every 10 ms, median", "us", 1e6, Less, 150.0),
    quantity("in_flight", "64 in flight", "thousand calls/s", 1e-3, More, 100.0),
    quantity("one_way", "64 MiB one way", "GB/s", 1e-9, More, 3.5),
    quantity("echo", "64 MiB there and back", "GB/s", 1e-9, More, 1.7),
    quantity("cores", "idle", "% of a core", 100.0, Less, 0.2),
    quantity("threads", "added", "threads", 1.0, Less, 4.0),
    quantity("descriptors", "added", "descriptors", 1.0, Less, 24.0),
    quantity("megabytes", "added", "MiB", 1.0, Less, 8.0),
    quantity("init_2", "2 workers start", "ms", 1e3, Less, 20.0),
    quantity("init_4", "4 workers start", "ms", 1e3, Less, 40.0),
    quantity("shutdown_2", "2 workers shut down", "ms", 1e3, Less, 5.0),
    quantity("shutdown_4", "4 workers shut down", "ms", 1e3, Less, 10.0),
];

/// Figures that only our side has: tensors in shared memory without a copy.
#[rustfmt::skip]
const OURS_ALONE: [Quantity; 2] = [
    quantity("lent", "64 MiB lent from an arena, one call", "us", 1e6, Less, 200.0),
    quantity("lent_large", "1 GiB lent from an arena, one call", "us", 1e6, Less, 200.0),
];

/// Factor by which our side must be better than PyTorch's default.
const TARGETS: [(&str, f64); 5] = [
    ("latency_p50", 10.0),
    ("in_flight", 10.0),
    ("one_way", 1.5),
    ("echo", 1.5),
    ("init_4", 3.0),
];

/// Maximum processor use of our side without calls, in cores.
const IDLE: f64 = 0.01;

const fn quantity(
    key: &'static str,
    name: &'static str,
    unit: &'static str,
    scale: f64,
    better: Better,
    gate: f64,
) -> Quantity {
    Quantity {
        key,
        name,
        unit,
        scale,
        better,
        gate,
    }
}

impl Quantity {
    fn of(key: &str) -> &'static Self {
        let mut all = QUANTITIES.iter();
        all.find(|quantity| quantity.key == key)
            .expect("each target has a quantity")
    }

    /// Returns the gate, and if a value is within it.
    fn verdict(&self, value: f64) -> String {
        let (sign, within) = match self.better {
            Less => ("<=", value <= self.gate),
            More => (">=", value >= self.gate),
        };
        let gate = figure(self.gate);
        format!("{sign} {gate} | {}", if within { "yes" } else { "NO" })
    }
}

/// Figures of one measurement of one side, by key.
#[derive(Debug, Default)]
pub(super) struct Figures(BTreeMap<&'static str, f64>);

impl Figures {
    pub(super) fn add(&mut self, key: &'static str, value: f64) {
        self.0.insert(key, value);
    }

    /// Adds every quantity in a worker's answer.
    pub(super) fn add_all(&mut self, answer: &Value) {
        for quantity in QUANTITIES.iter().chain(&OURS_ALONE) {
            if let Some(value) = answer[quantity.key].as_f64() {
                self.add(quantity.key, value);
            }
        }
    }

    /// Returns the figures, if none is missing.
    pub(super) fn complete(self) -> anyhow::Result<Self> {
        for Quantity { key, .. } in &QUANTITIES {
            let value = self.0.get(key);
            value.with_context(|| format!("no worker answered '{key}'"))?;
        }
        Ok(self)
    }
}

/// Measured side, with its figures of each run.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) runs: Vec<Figures>,
}

impl Side {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            runs: Vec::new(),
        }
    }

    /// Returns the figures of one quantity in its unit; empty if there are none.
    fn values(&self, quantity: &Quantity) -> Vec<f64> {
        let runs = self.runs.iter();
        runs.filter_map(|figures| figures.0.get(quantity.key))
            .map(|value| value * quantity.scale)
            .collect()
    }
}

/// Prints all quantities of all sides. The gates are for the first side.
pub(super) fn print(title: &str, sides: &[Side]) {
    println!("\n{title}: median (lowest to highest)\n");
    let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
    println!("| quantity | {} | gate | met |", names.join(" | "));
    println!("|---|{}---|---|", "---:|".repeat(sides.len()));
    for quantity in QUANTITIES.iter().chain(&OURS_ALONE) {
        let values = sides.iter().map(|side| match side.values(quantity) {
            none if none.is_empty() => "-".to_owned(),
            values => spread(&values),
        });
        let values: Vec<String> = values.collect();
        println!(
            "| {}, {} | {} | {} |",
            quantity.name,
            quantity.unit,
            values.join(" | "),
            quantity.verdict(median(&sides[0].values(quantity)))
        );
    }
}

/// Returns the comparisons of our side with PyTorch's default.
pub(super) fn comparisons(ours: &Side, theirs: &Side) -> Vec<Comparison> {
    let compared = TARGETS.iter().map(|(key, target)| {
        let quantity = Quantity::of(key);
        let mut comparison =
            Comparison::new(quantity.name, quantity.unit, quantity.better, *target);
        comparison.ours = ours.values(quantity);
        comparison.theirs = theirs.values(quantity);
        comparison
    });
    compared.collect()
}

/// `true` if a side uses almost no processor time without calls.
pub(super) fn rests(side: &Side) -> bool {
    let quantity = Quantity::of("cores");
    median(&side.values(quantity)) < IDLE * quantity.scale
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_that_nobody_answered_is_missed() {
        let mut figures = Figures::default();
        let all = QUANTITIES.map(|quantity| (quantity.key.to_owned(), json!(0.5)));
        let mut answer: Value = all.into_iter().collect();
        figures.add_all(&answer);
        let side = Side {
            name: "PyTorch",
            runs: vec![figures.complete().unwrap()],
        };
        assert_eq!(side.values(&QUANTITIES[0]), [500_000.0]);

        answer["echo"] = Value::Null;
        let mut figures = Figures::default();
        figures.add_all(&answer);
        let error = figures.complete().unwrap_err().to_string();
        assert_eq!(error, "no worker answered 'echo'");
    }

    #[test]
    fn gates_and_targets_point_the_right_way() {
        let latency = Quantity::of("latency_p50");
        assert_eq!(latency.verdict(3.0), "<= 4.00 | yes");
        assert_eq!(latency.verdict(5.0), "<= 4.00 | NO");
        assert_eq!(Quantity::of("in_flight").verdict(99.0), ">= 100 | NO");

        let side = |name, value| {
            let mut figures = Figures::default();
            for quantity in &QUANTITIES {
                figures.add(quantity.key, value);
            }
            Side {
                name,
                runs: vec![figures],
            }
        };
        let (slow, fast) = (side("slow", 1.0), side("fast", 100.0));
        let met = |ours, theirs| {
            let all: Vec<bool> = comparisons(ours, theirs)
                .iter()
                .map(Comparison::is_met)
                .collect();
            all
        };
        // A small value is good for a time, and a large value for a rate.
        assert_eq!(met(&fast, &slow), [false, true, true, true, false]);
        assert_eq!(met(&slow, &fast), [true, false, false, false, true]);
        assert!(rests(&side("rdzv", 0.009)) && !rests(&slow));
    }
}
