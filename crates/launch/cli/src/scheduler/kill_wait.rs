//! The time that Slurm leaves between SIGTERM and SIGKILL: an agent has to be done with its workers before.

use std::path::PathBuf;
use std::time::Duration;

use super::Variables;

/// Where Slurm's configuration is without a variable: as installed, and as a node without a file of its own caches it.
const USUAL: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// `KillWait` where the configuration does not have it.
const UNSAID: u64 = 30;

/// The longest grace of workers after which their agent still ends before Slurm kills it; none if Slurm's configuration
/// cannot be read here, as in a container.
pub(super) fn longest_grace(variables: &Variables<'_>) -> Option<Duration> {
    let paths = match variables.text("SLURM_CONF") {
        Some(path) => vec![PathBuf::from(path)],
        None => USUAL.map(PathBuf::from).to_vec(),
    };
    let texts = paths.into_iter().map(std::fs::read_to_string);
    let text = texts.flatten().next()?;
    grace_within(kill_wait(&text))
}

/// Seconds of `KillWait` in a configuration. Slurm takes the last one, and no notice of upper and lower case.
fn kill_wait(configuration: &str) -> u64 {
    let lines = configuration.lines().rev();
    let words = lines.flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    let mut pairs = words.filter_map(|word| word.split_once('='));
    let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case("KillWait"));
    found
        .and_then(|(_, seconds)| seconds.parse().ok())
        .unwrap_or(UNSAID)
}

/// A tenth of the time is kept for the end of the agent and its report, and at least a second.
fn grace_within(kill_wait: u64) -> Option<Duration> {
    let kept = u64::max(kill_wait / 10, 1);
    let grace = kill_wait.saturating_sub(kept);
    (grace > 0).then_some(Duration::from_secs(grace))
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
        for (wait, grace) in [(4, 3), (8, 7), (30, 27), (300, 270), (2, 1)] {
            assert_eq!(grace_within(wait), Some(Duration::from_secs(grace)));
        }
        // There is no time for any grace.
        assert_eq!([grace_within(1), grace_within(0)], [None, None]);
    }
}
