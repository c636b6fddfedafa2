//! The end of a run that succeeded, in one sentence.

use std::time::Duration;

use crate::event::size;
use crate::line::{Line, LineRole, said};
use crate::quantity::time;

/// Maximum number of reasons to list, for restarts and for changes.
const REASONS: usize = 3;

/// A run whose workers have all succeeded.
#[derive(Debug, Clone, Default)]
pub struct Success {
    /// Time from the beginning of the run to its end.
    pub took: Duration,
    /// Number of workers of the last round.
    pub workers: u32,
    /// Number of nodes of the last round.
    pub nodes: u32,
    /// Reason of each restart, in few words: `rank 5: ValueError: boom`.
    pub restarts: Vec<String>,
    /// Changes of nodes, in few words: `node-b lost`.
    pub changes: Vec<String>,
}

impl Success {
    /// Returns the sentence.
    /// For example: `finished in 2 h 03 min, 8 workers on 2 nodes, 1 restart (rank 5: ValueError:
    /// boom)`.
    pub fn sentence(&self) -> String {
        let mut text = format!(
            "finished in {}, {}",
            time(self.took),
            size(self.workers, self.nodes)
        );
        for (one, several, reasons) in [
            ("restart", "restarts", &self.restarts),
            ("membership change", "membership changes", &self.changes),
        ] {
            let number = reasons.len();
            if number > 0 {
                let noun = if number == 1 { one } else { several };
                text += &format!(", {number} {noun} ({})", some(reasons));
            }
        }
        text
    }

    /// Returns the sentence as lines.
    pub fn lines(&self, width: Option<usize>) -> Vec<Line> {
        said(LineRole::Good, &self.sentence(), width)
    }
}

fn some(reasons: &[String]) -> String {
    let (named, others) = reasons.split_at(reasons.len().min(REASONS));
    match others.len() {
        0 => named.join("; "),
        more => format!("{}; {more} more", named.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_is_one_sentence() {
        let mut success = Success {
            took: Duration::from_secs(7_380),
            workers: 8,
            nodes: 2,
            ..Success::default()
        };
        assert_eq!(
            success.sentence(),
            "finished in 2 h 03 min, 8 workers on 2 nodes"
        );
        success.restarts.push("rank 5: out of memory".to_owned());
        success.changes.push("node-b is lost (killed)".to_owned());
        assert_eq!(
            success.sentence(),
            "finished in 2 h 03 min, 8 workers on 2 nodes, 1 restart (rank 5: out of memory), 1 \
             membership change (node-b is lost (killed))"
        );
    }
}
