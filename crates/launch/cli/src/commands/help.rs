//! `rdzv help TOPIC`: prints pages of the documentation from `docs/`.

use std::process::ExitCode;

use crate::exit::Exit;
use crate::suggestion::did_you_mean;
use crate::terminal::{complain, show};

/// Name, summary and page of each topic.
const TOPICS: [(&str, &str, &str); 14] = [
    (
        "exit-codes",
        "exit codes of a launch",
        include_str!("../../docs/exit-codes.md"),
    ),
    (
        "report",
        "the first failure of a run, on the screen and as JSON",
        include_str!("../../docs/report.md"),
    ),
    (
        "accidents",
        "frequent accidents, under torchrun and under rdzv",
        include_str!("../../docs/accidents.md"),
    ),
    (
        "logs",
        "the output of the workers: files, console, labels",
        include_str!("../../docs/logs.md"),
    ),
    (
        "hangs",
        "workers that hang, and the location of each rank",
        include_str!("../../docs/hangs.md"),
    ),
    (
        "events",
        "events, metrics, status pages",
        include_str!("../../docs/events.md"),
    ),
    (
        "views",
        "a running job on the terminal or in a browser",
        include_str!("../../docs/views.md"),
    ),
    (
        "placement",
        "processors and devices of the workers; --explain",
        include_str!("../../docs/placement.md"),
    ),
    (
        "security",
        "the token of a job, TLS",
        include_str!("../../docs/security.md"),
    ),
    (
        "supervision",
        "signals; what happens when rdzv is killed",
        include_str!("../../docs/supervision.md"),
    ),
    (
        "high-availability",
        "what happens when the store of the rendezvous is killed",
        include_str!("../../docs/high-availability.md"),
    ),
    (
        "replacing-torchrun",
        "rdzv instead of torchrun, under accelerate and others",
        include_str!("../../docs/replacing-torchrun.md"),
    ),
    (
        "slurm",
        "jobs under Slurm",
        include_str!("../../docs/slurm.md"),
    ),
    (
        "kubernetes",
        "jobs on Kubernetes",
        include_str!("../../docs/kubernetes.md"),
    ),
];

pub(super) fn topics() -> impl Iterator<Item = &'static str> + use<> {
    TOPICS.iter().map(|(name, ..)| *name)
}

/// Shows the page of a topic, or the list of topics if `topic` is `None`.
///
/// `commands` are names that `rdzv help` also accepts; they serve for suggestions.
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
        "rdzv help: topic '{topic}' does not exist{meant}; `rdzv help` lists the topics"
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
