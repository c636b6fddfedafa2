//! The state of every thread of this process, as the kernel sees it.
//!
//! A thread cannot read another thread's stack without stopping that thread, and a signal handler
//! that walks a stack may hang. Four facts about a thread can be read without stopping it: its
//! name, its state, and, if the kernel shows them, the kernel function and the system call in which
//! it waits. They distinguish a deadlock (all in a futex), a wait for a peer (in `recvfrom` or
//! `poll`) and a computation (running).

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Returns a heading, and one line for each thread.
pub(super) fn describe() -> String {
    let mut text = format!("Threads of process {}:\n", std::process::id());
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return text + "  unknown, because /proc cannot be read\n";
    };
    let mut tasks: Vec<_> = tasks.flatten().map(|task| task.path()).collect();
    tasks.sort_by_key(|path| number(path));
    for task in tasks {
        // A thread may have exited since the directory was read.
        if let Some(line) = line(&task) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn number(task: &Path) -> Option<u32> {
    task.file_name()?.to_str()?.parse().ok()
}

fn line(task: &Path) -> Option<String> {
    let read = |name: &str| {
        let text = fs::read_to_string(task.join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    let state = state(&read("stat")?)?;
    let mut line = format!("thread {} \"{}\": {state}", number(task)?, read("comm")?);
    if let Some(function) = read("wchan").filter(|function| !function.is_empty() && function != "0")
    {
        let _ = write!(line, ", in {function}");
    }
    let call = read("syscall").unwrap_or_default();
    let call = call.split(' ').next().unwrap_or_default();
    if call.parse::<u32>().is_ok() {
        let _ = write!(line, ", system call {call}");
    }
    Some(line)
}

/// Returns the state, from the field after the name.
/// The name itself may contain parentheses.
fn state(stat: &str) -> Option<&'static str> {
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(match rest.chars().next()? {
        'R' => "running",
        'S' => "sleeping",
        'D' => "in an uninterruptible wait",
        'T' | 't' => "stopped",
        'Z' | 'X' | 'x' => "dead",
        'I' => "idle",
        _ => "in an unknown state",
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_waits_and_one_that_runs_are_both_there() {
        let (end, ended) = channel::<()>();
        let (ready, is_ready) = channel();
        let waiting = std::thread::Builder::new()
            .name("waits) for".to_owned())
            .spawn(move || {
                ready.send(()).unwrap();
                let _ = ended.recv();
            })
            .unwrap();
        is_ready.recv().unwrap();
        let text = describe();
        assert!(text.contains("\"waits) for\": "), "{text}");
        // The thread that reads the states.
        assert!(text.contains(": running"), "{text}");
        drop(end);
        waiting.join().unwrap();
    }

    #[test]
    fn the_state_stands_behind_the_last_parenthesis() {
        assert_eq!(
            state("7 (a) S b) D 1 7"),
            Some("in an uninterruptible wait")
        );
        assert_eq!(state("7 (a) S 1 7"), Some("sleeping"));
        assert_eq!(state("nonsense"), None);
    }
}
