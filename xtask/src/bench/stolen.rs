//! What the host of a virtual machine took of its processors' time: noise that neither side makes.

use std::fs;

use anyhow::Context;

/// The processor time of this machine so far, in ticks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Processors {
    all: u64,
    stolen: u64,
}

impl Processors {
    /// As it is now.
    pub(super) fn now() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("failed to read /proc/stat")?;
        let first = text.lines().next().unwrap_or_default();
        Self::of(first).with_context(|| format!("/proc/stat begins with '{first}'"))
    }

    /// Of a line `cpu user nice system idle iowait irq softirq steal …`. What follows is counted in user
    /// and nice already.
    fn of(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let ticks = words.by_ref().skip(1).take(8).map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
        Some(Self {
            all: ticks.iter().sum(),
            stolen: *ticks.get(7)?,
        })
    }

    /// How much of the time since then was stolen, in per cent.
    pub(super) fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        100.0 * self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let before = Processors::of("cpu  10 0 10 70 0 0 0 10 5 0").unwrap();
        let after = Processors::of("cpu  60 0 20 90 0 0 0 30 9 0").unwrap();
        assert!((after.stolen_since(before) - 20.0).abs() < 1e-9);
        assert!(before.stolen_since(before).abs() < 1e-9);
        assert_eq!(Processors::of("cpu  10 0 10 70"), None);
    }

    #[test]
    fn this_machine_says_so() {
        let now = Processors::now().unwrap();
        assert!(now.all > now.stolen);
    }
}
