//! Suggestion of a known name for an unknown one.

/// Minimum similarity of two names, from 0 to 1: two letters of ten may differ.
const ALIKE: f64 = 0.75;

/// Returns ` (did you mean 'x'?)` with the closest known name.
///
/// The text is empty if no name is similar enough.
pub(crate) fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    closest(given, known).map_or_else(String::new, |name| format!(" (did you mean '{name}'?)"))
}

fn closest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| {
        name.trim_start_matches('-')
            .replace('-', "_")
            .to_lowercase()
    };
    let given = plain(given);
    known
        .into_iter()
        .map(|name| {
            (
                strsim::normalized_damerau_levenshtein(&given, &plain(name)),
                name,
            )
        })
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn the_closest_name_is_suggested_if_it_is_close() {
        let known = ["--nnodes", "--nproc-per-node", "--node-rank"];
        for (given, expected) in [
            ("--nproc_per_nodes", " (did you mean '--nproc-per-node'?)"),
            ("--nodes", " (did you mean '--nnodes'?)"),
            ("--bogus", ""),
        ] {
            assert_eq!(did_you_mean(given, known), expected, "{given}");
        }
        let options = ["join_timeout", "close_timeout"];
        assert_eq!(
            did_you_mean("join_timout", options),
            " (did you mean 'join_timeout'?)"
        );
    }
}
