//! The figures of the experiments, beside what is asked for.

use crate::bench::table::figure;

/// All figures so far.
#[derive(Default)]
pub(super) struct Figures(Vec<Figure>);

struct Figure {
    name: String,
    measured: String,
    asked: String,
    /// None if nothing is asked for.
    met: Option<bool>,
}

impl Figures {
    /// A figure that is to be one value.
    pub(super) fn exactly(&mut self, name: impl Into<String>, measured: usize, asked: usize) {
        self.add(
            name,
            measured.to_string(),
            asked.to_string(),
            Some(measured == asked),
        );
    }

    /// A time in milliseconds that is not to be longer than asked for.
    pub(super) fn within(&mut self, name: impl Into<String>, measured: f64, asked: f64) {
        let met = measured <= asked;
        self.add(
            name,
            format!("{} ms", figure(measured)),
            format!("≤ {} ms", figure(asked)),
            Some(met),
        );
    }

    /// Times in milliseconds, whose 99th percentile is not to be longer than asked for. None at all is a failure.
    pub(super) fn times(&mut self, name: &str, times: &[f64], asked: Option<f64>) {
        let (middle, high) = (percentile(times, 0.5), percentile(times, 0.99));
        let measured = format!(
            "{} ms (median {}, longest {}, of {})",
            figure(high),
            figure(middle),
            figure(percentile(times, 1.0)),
            times.len()
        );
        let bound = asked.map_or_else(|| "–".to_owned(), |asked| format!("≤ {} ms", figure(asked)));
        self.add(
            format!("{name}, p99"),
            measured,
            bound,
            asked.map(|asked| high <= asked),
        );
    }

    /// Something that is told only.
    pub(super) fn tell(&mut self, name: impl Into<String>, measured: impl Into<String>) {
        self.add(name, measured.into(), "–".to_owned(), None);
    }

    fn add(&mut self, name: impl Into<String>, measured: String, asked: String, met: Option<bool>) {
        let name = name.into();
        println!("    {name}: {measured}");
        self.0.push(Figure {
            name,
            measured,
            asked,
            met,
        });
    }

    /// Prints all, and says whether everything is as asked for.
    pub(super) fn print(&self) -> bool {
        println!("\n| bench ha | measured | asked for | met |\n|---|---|---|---|");
        for figure in &self.0 {
            let met = match figure.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            };
            println!(
                "| {} | {} | {} | {met} |",
                figure.name, figure.measured, figure.asked
            );
        }
        self.0.iter().all(|figure| figure.met != Some(false))
    }
}

/// The least value that so large a part of all values does not exceed.
pub(super) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (part * sorted.len() as f64).ceil() as usize;
    sorted
        .get(place.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert!((percentile(&hundred, 0.99) - 99.0).abs() < 1e-9);
        assert!((percentile(&hundred, 1.0) - 100.0).abs() < 1e-9);
        assert!((percentile(&[3.0, 1.0], 0.5) - 1.0).abs() < 1e-9);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn times_that_were_not_measured_meet_nothing() {
        let mut figures = Figures::default();
        figures.times("back", &[], Some(150.0));
        assert!(!figures.print());
    }
}
