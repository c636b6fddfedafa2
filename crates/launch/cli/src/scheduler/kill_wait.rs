//! `KillWait`: the time that Slurm leaves between SIGTERM and SIGKILL.
//!
//! An agent must have stopped its workers within this time.

use std::path::PathBuf;
use std::time::Duration;

use super::Variables;

/// Usual paths of Slurm's configuration, if no variable names it.
///
/// The first is that of an installed file. A node without such a file caches the configuration at
/// the second.
const USUAL: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// Default of `KillWait`, in seconds.
const UNSAID: u64 = 30;

/// Returns the longest shutdown timeout that ends before Slurm's SIGKILL.
///
/// `None` if Slurm's configuration cannot be read here, as in a container, or leaves no time.
pub(super) fn longest_shutdown_timeout(variables: &Variables<'_>) -> Option<Duration> {
    let paths = match variables.text("SLURM_CONF") {
        Some(path) => vec![PathBuf::from(path)],
        None => USUAL.map(PathBuf::from).to_vec(),
    };
    let texts = paths.into_iter().map(std::fs::read_to_string);
    let text = texts.flatten().next()?;
    timeout_within(kill_wait(&text))
}

/// Returns the seconds of `KillWait` in a configuration.
///
/// As in Slurm, the last line counts, and names are case-insensitive.
fn kill_wait(configuration: &str) -> u64 {
    let lines = configuration.lines().rev();
    let words = lines.flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    let mut pairs = words.filter_map(|word| word.split_once('='));
    let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case("KillWait"));
    found
        .and_then(|(_, seconds)| seconds.parse().ok())
        .unwrap_or(UNSAID)
}

/// Returns the shutdown timeout that fits into `kill_wait` seconds.
///
/// A tenth of the time, but at least one second, remains for the agent's report and exit.
fn timeout_within(kill_wait: u64) -> Option<Duration> {
    let kept = u64::max(kill_wait / 10, 1);
    let shutdown_timeout = kill_wait.saturating_sub(kept);
    (shutdown_timeout > 0).then_some(Duration::from_secs(shutdown_timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_says_how_long_slurm_waits() {
        for (text, seconds) in [
            ("ClusterName=a\nKillWait=4\nSlurmdTimeout=9\n", 4),
            ("# KillWait=4\nclustername=a killwait=120 # as asked\n", 120),
            ("KillWait=4\nKillWait=60\n", 60),
            ("KillWait=soon\n", UNSAID),
            ("", UNSAID),
        ] {
            assert_eq!(kill_wait(text), seconds, "{text}");
        }
    }

    #[test]
    fn an_agent_ends_before_slurm_kills_it() {
        for (wait, shutdown_timeout) in [(4, 3), (8, 7), (30, 27), (300, 270), (2, 1)] {
            assert_eq!(
                timeout_within(wait),
                Some(Duration::from_secs(shutdown_timeout))
            );
        }
        // No time is left for the workers.
        assert_eq!([timeout_within(1), timeout_within(0)], [None, None]);
    }
}
