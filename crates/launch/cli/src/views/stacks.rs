//! `rdzv stacks`: where all ranks of a job are, with equal stacks collapsed.

use std::process::ExitCode;

use clap::Args;
use rdzv_agent::observe::{NodeReport, ShownStack};
use rdzv_core::rank::intervals;

use super::client::{JobArgs, ViewError, ended};
use super::job::{ALONE, parse};
use crate::terminal::{complain, show};

/// Print the stacks of all ranks of a running job.
///
/// Without c10d on a store of rdzv, the command prints only the stacks of this agent's ranks. Equal
/// stacks are printed once, with their ranks. The stack of the fewest ranks comes first. The
/// innermost call is the first line. `py-spy` reads Python's calls without stopping the workers. If
/// the agent finds no `py-spy` in PATH or next to the workers' interpreter, or if `py-spy` fails,
/// the command prints the kernel's state.
#[derive(Debug, Args)]
pub(crate) struct StacksArgs {
    #[command(flatten)]
    job: JobArgs,

    /// Print only the stack of this rank.
    #[arg(long, value_name = "N")]
    rank: Option<u32>,

    /// Print one JSON array with a stack for each rank.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &StacksArgs) -> ExitCode {
    ended("stacks", print(arguments))
}

fn print(arguments: &StacksArgs) -> Result<(), ViewError> {
    let rank = arguments
        .rank
        .map_or_else(String::new, |rank| format!("?rank={rank}"));
    let target = arguments.job.find()?;
    let text = target.get(&format!("/stacks{rank}"))?;
    // The agent may have exited since.
    let status = target.get("/status").unwrap_or_default();
    if parse::<NodeReport>(status.as_bytes()).is_ok_and(|node| node.is_alone) {
        complain(&format!("rdzv stacks: this node only: {ALONE}"));
    }
    let stacks: Vec<ShownStack> = parse(text.as_bytes())
        .map_err(|error| ViewError::Answer(format!("cannot parse the stacks: {error}")))?;
    show(&if arguments.json {
        text + "\n"
    } else {
        collapsed(&stacks)
    });
    Ok(())
}

/// Returns the stacks, equal ones once, those of the fewest ranks first.
pub(crate) fn collapsed(stacks: &[ShownStack]) -> String {
    if stacks.is_empty() {
        return "no worker of the job is running\n".to_owned();
    }
    let mut groups: Vec<(&ShownStack, Vec<u32>)> = Vec::new();
    for stack in stacks {
        match groups
            .iter_mut()
            .find(|(known, _)| known.frames == stack.frames)
        {
            Some((_, ranks)) => ranks.push(stack.rank),
            None => groups.push((stack, vec![stack.rank])),
        }
    }
    groups.sort_by_key(|(stack, ranks)| (ranks.len(), stack.rank));
    let all = stacks.len();
    let texts = groups.iter().map(|(stack, ranks)| {
        let who = match ranks.as_slice() {
            [rank] => format!("rank {rank} on {} (pid {})", stack.node, stack.pid),
            _ => format!("{} of {all} ranks: {}", ranks.len(), intervals(ranks)),
        };
        let reason = stack.without_frames.as_ref();
        let reason = reason.map_or_else(String::new, |it| format!(" (no Python stack: {it})"));
        let frames: String = stack
            .frames
            .iter()
            .map(|it| format!("    {it}\n"))
            .collect();
        format!("{who}{reason}\n{frames}")
    });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_and_the_odd_one_comes_first() {
        let stack = |rank, frame: &str| ShownStack {
            rank,
            node: "n".to_owned(),
            pid: 100 + rank,
            frames: vec![frame.to_owned(), "main (train.py:9)".to_owned()],
            without_frames: None,
        };
        let calls = [
            "wait (a.py:1)",
            "wait (a.py:1)",
            "read (b.py:2)",
            "wait (a.py:1)",
        ];
        let stacks: Vec<_> = (0..).zip(calls).map(|(rank, it)| stack(rank, it)).collect();
        let expected = "\
rank 2 on n (pid 102)
    read (b.py:2)
    main (train.py:9)

3 of 4 ranks: 0-1, 3
    wait (a.py:1)
    main (train.py:9)
";
        assert_eq!(collapsed(&stacks), expected);
    }
}
