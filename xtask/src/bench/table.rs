//! Final table: medians of both sides, their ratio, and the verdict.

/// Direction in which a value is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    Less,
    More,
}

/// One quantity, measured several times on each side.
#[derive(Debug, Clone)]
pub(super) struct Comparison {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    /// Factor by which rdzv must be better.
    pub(super) target: f64,
    pub(super) ours: Vec<f64>,
    pub(super) theirs: Vec<f64>,
}

impl Comparison {
    pub(super) fn new(name: &'static str, unit: &'static str, better: Better, target: f64) -> Self {
        Self {
            name,
            unit,
            better,
            target,
            ours: Vec::new(),
            theirs: Vec::new(),
        }
    }

    /// Adds the value of one measurement.
    pub(super) fn add(&mut self, is_ours: bool, value: f64) {
        match is_ours {
            true => self.ours.push(value),
            false => self.theirs.push(value),
        }
    }

    /// Returns the factor by which rdzv is better, by the medians.
    pub(super) fn advantage(&self) -> f64 {
        let (ours, theirs) = (median(&self.ours), median(&self.theirs));
        match self.better {
            Better::Less => theirs / ours,
            Better::More => ours / theirs,
        }
    }

    pub(super) fn is_met(&self) -> bool {
        self.advantage() >= self.target
    }
}

/// Prints the table; `true` if every target is met.
pub(super) fn print(title: &str, theirs: &str, comparisons: &[Comparison]) -> bool {
    println!("\n{title}: median (lowest to highest)\n");
    println!("| quantity | rdzv | {theirs} | times better | target | met |");
    println!("|---|---:|---:|---:|---:|---|");
    for comparison in comparisons {
        println!(
            "| {}, {} | {} | {} | {} | {} | {} |",
            comparison.name,
            comparison.unit,
            spread(&comparison.ours),
            spread(&comparison.theirs),
            figure(comparison.advantage()),
            figure(comparison.target),
            if comparison.is_met() { "yes" } else { "NO" },
        );
    }
    comparisons.iter().all(Comparison::is_met)
}

/// Returns the median of `values`, with the lowest and the highest value.
pub(super) fn spread(values: &[f64]) -> String {
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!(
        "{} ({} to {})",
        figure(median(values)),
        figure(lowest),
        figure(highest)
    )
}

/// Formats three significant digits, without an exponent.
pub(super) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns the middle value; for an even number the mean of the middle two.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn an_advantage_points_the_right_way() {
        let mut less = Comparison::new("wall", "s", Better::Less, 50.0);
        less.ours = vec![0.02];
        less.theirs = vec![2.0];
        assert!((less.advantage() - 100.0).abs() < 1e-9 && less.is_met());
        let mut more = Comparison::new("tee", "MB/s", Better::More, 5.0);
        more.ours = vec![100.0];
        more.theirs = vec![37.0];
        assert!(!more.is_met());
    }

    #[test]
    fn nothing_measured_meets_no_target() {
        assert!(!Comparison::new("wall", "s", Better::Less, 1.0).is_met());
    }
}
