//! Stacks of workers, and the workers whose stacks differ from the others.

use std::fmt::{self, Write};

use rdzv_core::rank::{LocalRank, Rank, intervals};
use serde::{Deserialize, Serialize};

use super::flight_recorder::{self, FlightRecord};

/// Number of Python frames in a description.
const FRAMES_SHOWN: usize = 8;

/// One call of Python code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFrame {
    /// Name of the function.
    pub function: String,
    /// Path of the file with the function.
    pub file: String,
    /// Line number of the call.
    pub line: u32,
}

impl fmt::Display for PythonFrame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        write!(formatter, "{} ({file}:{})", self.function, self.line)
    }
}

/// State of the main thread of a process in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KernelState {
    /// Letter of the state.
    /// `R` is running, `S` asleep, `D` in an uninterruptible sleep, `Z` ended.
    /// `T` is stopped by a signal, `t` by a debugger.
    pub state: Option<char>,
    /// Kernel function in which the thread sleeps, if the kernel reports it.
    pub wait_channel: Option<String>,
    /// System call of the thread: its name, or its number if the name is unknown.
    pub syscall: Option<String>,
}

impl fmt::Display for KernelState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.state {
            Some('R') => "running",
            Some('S') => "asleep",
            Some('D') => "in an uninterruptible sleep in the kernel",
            Some('T') => "stopped",
            Some('t') => "stopped by a debugger (ptrace)",
            Some('Z' | 'X') => "ended",
            _ => "in an unknown state",
        })?;
        if let Some(channel) = &self.wait_channel {
            write!(formatter, " in {channel}")?;
        }
        if let Some(syscall) = &self.syscall {
            write!(formatter, ", system call {syscall}")?;
        }
        Ok(())
    }
}

/// The stack of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStack {
    /// Node of the worker; empty for this node.
    pub node: String,
    /// Rank within the node.
    pub local_rank: LocalRank,
    /// Rank in the job.
    pub rank: Rank,
    /// Process id of the worker.
    pub pid: u32,
    /// Python stack of the main thread, innermost call first.
    /// Empty if it could not be read.
    pub frames: Vec<PythonFrame>,
    /// Reason why there is no Python stack, if the agent tried to read one.
    pub without_frames: Option<String>,
    /// State of the main thread in the kernel.
    pub kernel: KernelState,
    /// Other threads, grouped by name and kernel wait channel.
    ///
    /// Each group has the number of its threads.
    pub threads: Vec<(String, u32)>,
    /// Collective calls of the worker, if it has a flight recorder.
    #[serde(default)]
    pub recorder: Option<FlightRecord>,
}

impl WorkerStack {
    /// Returns the stack in one line.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (number, frame) in self.frames.iter().take(FRAMES_SHOWN).enumerate() {
            let between = if number == 0 { "" } else { " < " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{between}{frame}");
        }
        if self.frames.len() > FRAMES_SHOWN {
            text.push_str(" < …");
        }
        if !text.is_empty() {
            text.push_str("; ");
        }
        let _ = write!(text, "{}", self.kernel);
        text
    }

    /// Returns the location as a noun phrase.
    /// The location is up to three innermost calls. Without frames, it is the system call, the
    /// kernel function, or both.
    pub fn noun(&self) -> String {
        let calls: Vec<String> = self
            .frames
            .iter()
            .take(3)
            .map(PythonFrame::to_string)
            .collect();
        match (&self.kernel.syscall, &self.kernel.wait_channel) {
            _ if !calls.is_empty() => calls.join(" < "),
            (Some(syscall), Some(channel)) => format!("{syscall} ({channel})"),
            (Some(call), None) | (None, Some(call)) => call.clone(),
            (None, None) => "an unknown location".to_owned(),
        }
    }

    /// Returns the innermost call or, without frames, the kernel state.
    /// For a stopped worker it returns both.
    pub fn innermost(&self) -> String {
        match self.frames.first() {
            Some(frame) if self.is_stopped() => format!("{frame}, {}", self.kernel),
            Some(frame) => frame.to_string(),
            None => self.kernel.to_string(),
        }
    }

    /// `true` if the worker is in a collective or in a backward pass of PyTorch.
    /// A backward pass contains collectives, and code of `torch.cuda` waits for them. Code that
    /// PyTorch calls from there (such as a hook) does not count, and neither does a stopped worker.
    pub fn in_collective(&self) -> bool {
        let mut library = self
            .frames
            .iter()
            .take_while(|frame| frame.file.contains("torch/"));
        let is_there = library.any(|frame| {
            ["torch/distributed/", "torch/autograd/", "torch/cuda/"]
                .iter()
                .any(|folder| frame.file.contains(folder))
        });
        is_there && !self.is_stopped()
    }

    fn is_stopped(&self) -> bool {
        matches!(self.kernel.state, Some('T' | 't'))
    }

    fn name(&self) -> String {
        match &*self.node {
            "" => self.rank.to_string(),
            node => format!("{} ({node})", self.rank),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self.frames.is_empty(), other.frames.is_empty()) {
            (false, false) => self.frames == other.frames,
            (true, true) => {
                let (this, that) = (&self.kernel, &other.kernel);
                (&this.wait_channel, &this.syscall) == (&that.wait_channel, &that.syscall)
            }
            _ => false,
        }
    }
}

/// The workers whose stacks differ from those of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outliers {
    /// Indexes of their stacks.
    pub indexes: Vec<usize>,
    /// One sentence about these workers.
    pub text: String,
}

/// Returns the indexes of the workers that may block the group.
///
/// These are the outliers, or all workers if there are none. If other nodes participate (`alone` is
/// `false`), all workers here may be waiting for a worker that computes there. Then only workers
/// with a known stack outside a collective count; there may be none.
pub fn suspects(stacks: &[WorkerStack], odd: Option<&Outliers>, alone: bool) -> Vec<usize> {
    let candidates = match odd {
        Some(odd) => odd.indexes.clone(),
        None => (0..stacks.len()).collect(),
    };
    let known_elsewhere = |index: &usize| {
        let stack = &stacks[*index];
        !stack.frames.is_empty() && !stack.in_collective()
    };
    if alone {
        candidates
    } else {
        candidates.into_iter().filter(known_elsewhere).collect()
    }
}

/// Finds the outliers, if they are clear.
/// The outliers are clear if only they are stopped, or if more than half of all workers share one
/// stack. They are also clear if all stacks are known, and only the outliers are not in a
/// collective.
pub fn outliers(stacks: &[WorkerStack]) -> Option<Outliers> {
    let apart = |most: &dyn Fn(&WorkerStack) -> bool| -> Option<Vec<usize>> {
        let indexes: Vec<usize> = (0..stacks.len())
            .filter(|index| !most(&stacks[*index]))
            .collect();
        (!indexes.is_empty() && indexes.len() < stacks.len()).then_some(indexes)
    };
    let by_stack = || {
        stacks.iter().find_map(|stack| {
            let indexes = apart(&|other| other.is_same(stack))?;
            (indexes.len() * 2 < stacks.len()).then_some(indexes)
        })
    };
    let stopped = apart(&|stack| !stack.is_stopped());
    let indexes = stopped.or_else(by_stack).or_else(|| {
        let all_known = stacks.iter().all(|stack| !stack.frames.is_empty());
        all_known
            .then(|| apart(&WorkerStack::in_collective))
            .flatten()
    })?;
    let others = stacks.len() - indexes.len();
    let example = (0..stacks.len()).find(|index| !indexes.contains(index))?;
    let odd: Vec<String> = indexes.iter().map(|index| stacks[*index].name()).collect();
    let (ranks, are, they_are) = match &odd[..] {
        [_] => ("rank", "is", "it is"),
        _ => ("ranks", "are", "they are"),
    };
    let text = format!(
        "{ranks} {} {are} not where the others are: {they_are} in {}, {} in {}",
        odd.join(", "),
        stacks[indexes[0]].innermost(),
        match others {
            1 => format!("rank {} is", stacks[example].name()),
            _ => format!("the other {others} are"),
        },
        stacks[example].innermost(),
    );
    Some(Outliers { indexes, text })
}

/// Workers of one node that makes no progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStacks {
    /// Name of the node.
    pub node: String,
    /// Number of this report of the node.
    pub number: u64,
    /// Stacks of its workers; empty if all workers have exited.
    pub workers: Vec<WorkerStack>,
}

/// Comparison of all workers of a job that hangs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// Numbers of the compared reports, by node.
    pub numbers: Vec<u64>,
    /// Sentence about workers that differ from the others, if that is clear.
    pub odd: Option<String>,
    /// Sentences about collective calls that differ or are missing.
    #[serde(default)]
    pub collectives: Vec<String>,
    /// Workers that may block the job.
    pub blamed: Vec<Rank>,
    /// Stacks of the other nodes; only on node 0.
    #[serde(skip)]
    pub elsewhere: Vec<WorkerStack>,
}

/// Compares the workers of all nodes of a job.
/// The first in the list is node 0.
pub fn compare(nodes: Vec<NodeStacks>) -> Comparison {
    let numbers = nodes.iter().map(|node| node.number).collect();
    let own = nodes.first().map_or(0, |node| node.workers.len());
    let named = nodes
        .into_iter()
        .flat_map(|NodeStacks { node, workers, .. }| {
            workers.into_iter().map(move |stack| WorkerStack {
                node: node.clone(),
                ..stack
            })
        });
    let mut stacks: Vec<WorkerStack> = named.collect();
    let odd = outliers(&stacks);
    let blamed = suspects(&stacks, odd.as_ref(), true);
    Comparison {
        numbers,
        odd: odd.map(|odd| odd.text),
        collectives: mismatches(&stacks),
        blamed: blamed.iter().map(|index| stacks[*index].rank).collect(),
        elsewhere: stacks.split_off(own),
    }
}

/// Names the ranks whose collective calls differ, if flight recorders show it.
pub fn mismatches(stacks: &[WorkerStack]) -> Vec<String> {
    let recorded = stacks.iter().filter_map(|stack| {
        let record = stack.recorder.as_ref()?;
        Some((stack.rank, stack.name(), record))
    });
    flight_recorder::compare(&recorded.collect::<Vec<_>>())
}

/// Describes the workers in lines, equal ones of a node once.
pub fn describe_all(stacks: &[WorkerStack]) -> Vec<String> {
    let mut kinds: Vec<(&str, String, Vec<u32>)> = Vec::new();
    for stack in stacks {
        let text = stack.describe();
        let known = kinds
            .iter_mut()
            .find(|(node, known, _)| *node == stack.node && *known == text);
        match known {
            Some((_, _, ranks)) => ranks.push(stack.rank.0),
            None => kinds.push((&stack.node, text, vec![stack.rank.0])),
        }
    }
    kinds
        .iter()
        .map(|(node, text, ranks)| format!("{} ({node}): {text}", intervals(ranks)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(rank: u32, frames: &[(&str, &str, u32)], syscall: &str) -> WorkerStack {
        WorkerStack {
            node: String::new(),
            local_rank: LocalRank(rank),
            rank: Rank(rank),
            pid: 100 + rank,
            frames: frames
                .iter()
                .map(|(function, file, line)| PythonFrame {
                    function: (*function).to_owned(),
                    file: (*file).to_owned(),
                    line: *line,
                })
                .collect(),
            without_frames: None,
            kernel: KernelState {
                state: Some('S'),
                wait_channel: Some("do_wait".to_owned()),
                syscall: Some(syscall.to_owned()),
            },
            threads: Vec::new(),
            recorder: None,
        }
    }

    const REDUCE: (&str, &str, u32) = (
        "all_reduce",
        "/lib/torch/distributed/distributed_c10d.py",
        2810,
    );

    #[test]
    fn a_description_leads_from_the_innermost_call_to_the_kernel() {
        let stack = stack(1, &[REDUCE, ("main", "/home/me/train.py", 17)], "futex");
        assert_eq!(
            stack.describe(),
            "all_reduce (distributed_c10d.py:2810) < main (train.py:17); asleep in do_wait, \
             system call futex"
        );
        assert_eq!(
            stack.noun(),
            "all_reduce (distributed_c10d.py:2810) < main (train.py:17)"
        );
    }

    #[test]
    fn the_one_that_is_elsewhere_is_named() {
        let waits = |rank| stack(rank, &[REDUCE, ("main", "train.py", 17)], "futex");
        let sleeps = stack(2, &[("save", "train.py", 9)], "clock_nanosleep");
        let odd = outliers(&[waits(0), waits(1), sleeps.clone(), waits(3)]).unwrap();
        assert_eq!(odd.indexes, [2]);
        assert_eq!(
            odd.text,
            "rank 2 is not where the others are: it is in save (train.py:9), the other 3 are in \
             all_reduce (distributed_c10d.py:2810)"
        );
        // Of two workers, the one in the collective waits for the other, even if that one is in a
        // hook.
        let backward = ("run", "/lib/torch/autograd/graph.py", 1113);
        let hook = stack(1, &[("hook", "train.py", 5), backward], "clock_nanosleep");
        let odd = outliers(&[stack(0, &[backward], "futex"), hook]).unwrap();
        assert_eq!(odd.indexes, [1]);
        let odd = outliers(&[waits(0), sleeps]).unwrap();
        assert_eq!(odd.indexes, [1]);
    }

    #[test]
    fn a_collective_that_others_call_elsewhere_is_odd() {
        let waits = |rank, line| stack(rank, &[REDUCE, ("main", "train.py", line)], "futex");
        let odd = outliers(&[waits(0, 17), waits(1, 18), waits(2, 17)]).unwrap();
        assert_eq!(odd.indexes, [1]);
    }

    #[test]
    fn without_python_the_kernel_decides() {
        let waits = |rank| stack(rank, &[], "futex");
        let sleeps = stack(0, &[], "clock_nanosleep");
        let odd = outliers(&[sleeps.clone(), waits(1), waits(2)]).unwrap();
        assert_eq!(odd.indexes, [0]);
        assert_eq!(outliers(&[sleeps, waits(1)]), None);
    }

    #[test]
    fn workers_that_may_wait_for_another_node_are_not_to_blame() {
        let waits = |rank| stack(rank, &[REDUCE], "futex");
        let sleeps = stack(1, &[("save", "train.py", 9)], "clock_nanosleep");
        let unknown = stack(1, &[], "clock_nanosleep");
        let blamed =
            |stacks: &[WorkerStack], alone| suspects(stacks, outliers(stacks).as_ref(), alone);
        assert_eq!(blamed(&[waits(0), waits(1)], true), [0, 1]);
        assert_eq!(blamed(&[waits(0), waits(1)], false), [0; 0]);
        assert_eq!(blamed(&[waits(0), sleeps.clone()], true), [1]);
        assert_eq!(blamed(&[waits(0), sleeps.clone()], false), [1]);
        assert_eq!(blamed(&[sleeps], false), [0]);
        assert_eq!(blamed(std::slice::from_ref(&unknown), false), [0; 0]);
        assert_eq!(blamed(&[unknown], true), [0]);
    }

    #[test]
    fn all_nodes_are_compared_and_the_odd_rank_is_named_with_its_node() {
        let node = |name: &str, workers| NodeStacks {
            node: name.to_owned(),
            number: 1,
            workers,
        };
        let waits = |rank| stack(rank, &[REDUCE, ("main", "train.py", 17)], "futex");
        let sleeps = stack(3, &[("save", "train.py", 9)], "clock_nanosleep");
        let here = node("a", vec![waits(0), waits(1)]);
        let there = node("b", vec![waits(2), sleeps]);
        let found = compare(vec![here.clone(), there, node("c", Vec::new())]);
        assert_eq!(
            (&found.numbers[..], &found.blamed[..]),
            (&[1, 1, 1][..], &[Rank(3)][..])
        );
        assert_eq!(
            found.odd.as_deref(),
            Some(
                "rank 3 (b) is not where the others are: it is in save (train.py:9), the other 3 \
                 are in all_reduce (distributed_c10d.py:2810)"
            )
        );
        let lines = describe_all(&found.elsewhere);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("2 (b): all_reduce"), "{lines:?}");
        // All ranks are in the same collective, so all may be at fault.
        let there = node("b", vec![waits(2), waits(3)]);
        let found = compare(vec![here, there]);
        assert_eq!((found.odd, found.blamed.len()), (None, 4));
        let lines = describe_all(&found.elsewhere);
        assert!(
            lines.len() == 1 && lines[0].starts_with("2-3 (b): "),
            "{lines:?}"
        );
    }

    #[test]
    fn a_rank_that_a_debugger_holds_is_odd_even_in_the_same_collective() {
        let waits = |rank| stack(rank, &[REDUCE], "futex");
        let mut held = waits(1);
        held.kernel.state = Some('t');
        for stacks in [vec![waits(0), held.clone()], vec![waits(0), held, waits(2)]] {
            let odd = outliers(&stacks).unwrap();
            assert_eq!(odd.indexes, [1]);
            assert!(odd.text.contains("stopped by a debugger"), "{}", odd.text);
        }
    }

    #[test]
    fn nobody_is_odd_where_all_are_together_or_all_are_apart() {
        let waits = |rank| stack(rank, &[REDUCE], "futex");
        assert_eq!(outliers(&[waits(0), waits(1), waits(2)]), None);
        let apart: Vec<WorkerStack> = (0..4)
            .map(|rank| stack(rank, &[("main", "train.py", rank)], "futex"))
            .collect();
        assert_eq!(outliers(&apart), None);
        assert_eq!(outliers(&apart[..1]), None);
        assert_eq!(outliers(&[]), None);
    }
}
