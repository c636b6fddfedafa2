//! What is measured, and the table of it.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;

use crate::bench::table::spread;

/// One quantity: how it is called in the answers of workers and in the table.
struct Quantity {
    key: &'static str,
    name: &'static str,
    unit: &'static str,
    /// What an answer is multiplied with to be in that unit.
    scale: f64,
}

const fn quantity(
    key: &'static str,
    name: &'static str,
    unit: &'static str,
    scale: f64,
) -> Quantity {
    Quantity {
        key,
        name,
        unit,
        scale,
    }
}

const QUANTITIES: [Quantity; 14] = [
    quantity("latency_p50", "empty call, median", "us", 1e6),
    quantity("latency_p99", "empty call, 99th percentile", "us", 1e6),
    quantity("paced_p50", "empty call every 10 ms, median", "us", 1e6),
    quantity("in_flight", "64 in flight", "thousand calls/s", 1e-3),
    quantity("one_way", "64 MiB one way", "GB/s", 1e-9),
    quantity("echo", "64 MiB there and back", "GB/s", 1e-9),
    quantity("cores", "idle", "% of a core", 100.0),
    quantity("threads", "added", "threads", 1.0),
    quantity("descriptors", "added", "descriptors", 1.0),
    quantity("megabytes", "added", "MiB", 1.0),
    quantity("init_2", "2 workers start", "ms", 1e3),
    quantity("init_4", "4 workers start", "ms", 1e3),
    quantity("shutdown_2", "2 workers shut down", "ms", 1e3),
    quantity("shutdown_4", "4 workers shut down", "ms", 1e3),
];

/// What was measured once of one side, by key.
#[derive(Debug, Default)]
pub(super) struct Figures(BTreeMap<&'static str, f64>);

impl Figures {
    pub(super) fn add(&mut self, key: &'static str, value: f64) {
        self.0.insert(key, value);
    }

    /// Adds every quantity that is in a worker's answer.
    pub(super) fn add_all(&mut self, answer: &Value) {
        for quantity in &QUANTITIES {
            if let Some(value) = answer[quantity.key].as_f64() {
                self.add(quantity.key, value);
            }
        }
    }

    /// Itself, if nothing is missing.
    pub(super) fn complete(self) -> anyhow::Result<Self> {
        for Quantity { key, .. } in &QUANTITIES {
            let value = self.0.get(key);
            value.with_context(|| format!("nobody answered '{key}'"))?;
        }
        Ok(self)
    }
}

/// Who is measured, and what came of it in each run.
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

    /// What was measured of one quantity, in its unit.
    fn values(&self, quantity: &Quantity) -> Vec<f64> {
        let runs = self.runs.iter();
        runs.map(|figures| figures.0[quantity.key] * quantity.scale)
            .collect()
    }
}

/// Prints all quantities of all sides.
pub(super) fn print(title: &str, sides: &[Side]) {
    println!("\n{title}: median (lowest to highest)\n");
    let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
    println!("| quantity | {} |", names.join(" | "));
    println!("|---|{}", "---:|".repeat(sides.len()));
    for quantity in &QUANTITIES {
        let values = sides.iter().map(|side| spread(&side.values(quantity)));
        let values: Vec<String> = values.collect();
        println!(
            "| {}, {} | {} |",
            quantity.name,
            quantity.unit,
            values.join(" | ")
        );
    }
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
        assert_eq!(error, "nobody answered 'echo'");
    }
}
