//! Python stacks from `py-spy`, if that program is installed.
//!
//! `py-spy` reads the memory of a worker without stopping the worker, which requires the right to
//! trace it. A process of the same user has this right if `kernel.yama.ptrace_scope` is 0 or Yama
//! is absent. With 1, each worker grants it to the agent and its children at its start. With 2,
//! only `CAP_SYS_PTRACE` gives the right. With 3, no process has it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rdzv_agent_proto::hang::stacks::PythonFrame;
use rdzv_core::escape::escape;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

/// Time limit for reading a stack, so that the report is not late.
const LIMIT: Duration = Duration::from_secs(4);

/// Maximum size of the output: enough for a thousand threads with deep stacks.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

const LONGEST_NAME: usize = 300;

const MOST_FRAMES: usize = 64;

#[derive(Deserialize)]
struct Thread {
    os_thread_id: Option<u32>,
    frames: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    name: String,
    filename: String,
    line: u32,
}

/// Returns the stack of the main thread, innermost call first.
/// The error states in a few words why there is no stack.
pub(crate) async fn main_thread(tool: &Path, pid: u32) -> Result<Vec<PythonFrame>, String> {
    match timeout(LIMIT, dump(tool, pid)).await {
        Ok(Ok(output)) => parse(&output, pid),
        Ok(Err(reason)) => Err(reason),
        Err(_) => Err(format!("py-spy took more than {} s", LIMIT.as_secs())),
    }
}

async fn dump(tool: &Path, pid: u32) -> Result<Vec<u8>, String> {
    let mut child = Command::new(tool)
        .args(["dump", "--nonblocking", "--json", "--pid"])
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start py-spy: {error}"))?;
    let (mut output, mut complaint) = (Vec::new(), Vec::new());
    let read_output = async {
        let stdout = child.stdout.take()?;
        stdout.take(MOST_BYTES).read_to_end(&mut output).await.ok()
    };
    let stderr = child.stderr.take();
    let read_complaint = async {
        stderr?
            .take(MOST_BYTES)
            .read_to_end(&mut complaint)
            .await
            .ok()
    };
    tokio::join!(read_output, read_complaint);
    let status = child
        .wait()
        .await
        .map_err(|error| format!("cannot wait for py-spy: {error}"))?;
    if status.success() {
        return Ok(output);
    }
    let complaint = String::from_utf8_lossy(&complaint);
    let first = complaint.lines().find(|line| !line.trim().is_empty());
    let first = escape(first.unwrap_or("it failed without a message"));
    let reason = first.strip_prefix("Error: ").unwrap_or(&first);
    Err(format!("py-spy: {reason}"))
}

fn parse(output: &[u8], pid: u32) -> Result<Vec<PythonFrame>, String> {
    let threads: Vec<Thread> = serde_json::from_slice(output)
        .map_err(|error| format!("cannot parse py-spy's output: {error}"))?;
    let main = threads
        .into_iter()
        .find(|thread| thread.os_thread_id == Some(pid))
        .ok_or("py-spy did not find the main thread")?;
    let frames = main.frames.into_iter().take(MOST_FRAMES);
    let frames: Vec<PythonFrame> = frames
        .map(|call| PythonFrame {
            function: shown(&call.name),
            file: shown(&call.filename),
            line: call.line,
        })
        .collect();
    if frames.is_empty() {
        return Err("the main thread runs no Python code".to_owned());
    }
    Ok(frames)
}

/// Escapes a name that the program has chosen, and shortens it.
fn shown(name: &str) -> String {
    escape(name).chars().take(LONGEST_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_is_the_one_with_the_number_of_the_process() {
        let output = br#"[
            {"pid": 7, "os_thread_id": 8, "frames": [{"name": "other", "filename": "o.py", "line": 1}]},
            {"pid": 7, "os_thread_id": 7, "thread_name": null, "frames": [
                {"name": "main", "filename": "/a/train.py", "short_filename": "train.py", "line": 17}
            ]}
        ]"#;
        let frame = PythonFrame {
            function: "main".to_owned(),
            file: "/a/train.py".to_owned(),
            line: 17,
        };
        assert_eq!(parse(output, 7), Ok(vec![frame]));
        assert!(parse(output, 9).is_err());
        assert_eq!(shown("a\n\u{1b}[31m.py"), "a\\n\\u{1b}[31m.py");
        assert!(parse(b"", 7).is_err());
        assert!(parse(b"[]", 7).is_err());
        assert!(parse(br#"[{"os_thread_id": 7, "frames": []}]"#, 7).is_err());
    }
}
