//! Command line arguments of every benchmark.

use anyhow::{Context, bail, ensure};

/// Returns the number of runs: `--runs N`, or `default`.
pub(super) fn runs(benchmark: &str, arguments: &[String], default: usize) -> anyhow::Result<usize> {
    let runs = match arguments {
        [] => default,
        [flag, number] if flag == "--runs" => number
            .parse()
            .with_context(|| format!("'{number}' is no number of runs"))?,
        _ => bail!("bench {benchmark} takes `--runs N` only"),
    };
    ensure!(runs > 0, "at least one run is needed");
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn the_number_of_runs_is_given_or_the_default() {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(runs("store", &[], 5).unwrap(), 5);
        assert_eq!(runs("store", &words("--runs 3"), 5).unwrap(), 3);
        for wrong in ["--runs 0", "--runs many", "--times 3", "3"] {
            assert!(runs("store", &words(wrong), 5).is_err(), "{wrong}");
        }
    }
}
