//! Labels of this node's workers.
//!
//! The label of one worker is `[3]`, or `[node-a 3]` if the job has several nodes.

use rdzv_agent_proto::group::{WorkerRanks, environment};
use rdzv_console::live::Label;

use super::ViewOptions;

#[derive(Debug, Clone)]
pub(super) struct Labels {
    node: String,
    colours: bool,
    workers: u32,
}

impl Labels {
    pub(super) fn new(options: ViewOptions) -> Self {
        let system = rustix::system::uname();
        let node = system.nodename().to_string_lossy();
        Self {
            node: node.split('.').next().unwrap_or_default().to_owned(),
            colours: options.colours,
            workers: options.workers,
        }
    }

    pub(super) fn of(&self, workers: &[WorkerRanks]) -> Label {
        let is_alone = workers
            .iter()
            .all(|worker| worker.world_size <= self.workers);
        let template = if is_alone {
            "[${rank}]"
        } else {
            "[${hostname} ${rank}]"
        };
        let text = environment::line_prefix(template, "", workers, &self.node);
        let rank = match workers {
            [one] => Some(one.rank.0),
            _ => None,
        };
        Label::new(&text, rank, self.colours)
    }
}
