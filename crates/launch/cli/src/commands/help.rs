//! `rdzv help TOPIC`: pages of the documentation, as they are in `docs/`.

use std::process::ExitCode;

use crate::exit::Exit;
use crate::suggestion::did_you_mean;
use crate::terminal::{complain, show};

/// Name, one line about it, and the page.
const TOPICS: [(&str, &str, &str); 13] = [
    (
        "exit-codes",
        "the codes that a launch ends with",
        include_str!("../../../../../docs/exit-codes.md"),
    ),
    (
        "report",
        "the first failure of a run, on the screen and as JSON",
        include_str!("../../../../../docs/report.md"),
    ),
    (
        "accidents",
        "usual accidents, as they look under torchrun and here",
        include_str!("../../../../../docs/accidents.md"),
    ),
    (
        "logs",
        "the output of the workers: files, console, labels",
        include_str!("../../../../../docs/logs.md"),
    ),
    (
        "hangs",
        "workers that stand still, and where each rank is",
        include_str!("../../../../../docs/hangs.md"),
    ),
    (
        "events",
        "events, metrics, status pages",
        include_str!("../../../../../docs/events.md"),
    ),
    (
        "placement",
        "processors and devices of the workers; --explain",
        include_str!("../../../../../docs/placement.md"),
    ),
    (
        "security",
        "the token of a job, TLS",
        include_str!("../../../../../docs/security.md"),
    ),
    (
        "supervision",
        "signals; what happens when rdzv is killed",
        include_str!("../../../../../docs/supervision.md"),
    ),
    (
        "high-availability",
        "what happens when the store of the rendezvous is killed",
        include_str!("../../../../../docs/high-availability.md"),
    ),
    (
        "replacing-torchrun",
        "in the place of torchrun, under accelerate and others",
        include_str!("../../../../../docs/replacing-torchrun.md"),
    ),
    (
        "slurm",
        "jobs of Slurm",
        include_str!("../../../../../docs/slurm.md"),
    ),
    (
        "kubernetes",
        "jobs of Kubernetes",
        include_str!("../../../../../docs/kubernetes.md"),
    ),
];

/// The names of the topics.
pub(super) fn topics() -> impl Iterator<Item = &'static str> + use<> {
    TOPICS.iter().map(|(name, ..)| *name)
}

/// Shows the page of a topic; without one, the list of them. `commands` have a help of their own.
pub(super) fn run(topic: Option<&str>, commands: &[&str]) -> ExitCode {
    let Some(topic) = topic else {
        return show(&list());
    };
    if let Some((.., page)) = TOPICS.iter().find(|(name, ..)| *name == topic) {
        return show(page);
    }
    let names = TOPICS.iter().map(|(name, ..)| *name);
    let known: Vec<&str> = names.chain(commands.iter().copied()).collect();
    let meant = did_you_mean(topic, known);
    complain(&format!(
        "rdzv help: there is no topic '{topic}'{meant}; `rdzv help` lists them"
    ));
    Exit::Usage.into()
}

fn list() -> String {
    let rows = TOPICS
        .iter()
        .map(|(name, about, _)| format!("  {name:<20} {about}\n"));
    let rows: String = rows.collect();
    format!(
        "Usage: rdzv help TOPIC, or rdzv help COMMAND\n\nTopics:\n{rows}\nCommands: see rdzv --help. \
         Variables: see rdzv env.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_is_a_page_and_its_row_fits_on_80_columns() {
        for (name, _, page) in TOPICS {
            assert!(page.starts_with("# "), "{name}");
        }
        assert!(list().lines().all(|line| line.len() <= 80), "{}", list());
    }
}
