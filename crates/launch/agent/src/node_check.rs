//! Command that must succeed before this node joins a round.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rdzv_agent_proto::node_check::{CheckEnd, judge};
use rdzv_core::escape::escape;
use rdzv_core::reminder::{self, Reminder};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use crate::AgentError;
use crate::config::NodeCheckPlan;

/// Number of bytes that are kept from the end of the output.
const KEPT: usize = 4096;

/// Time limit for reading the remaining output after the command's exit.
const OUTPUT_WITHIN: Duration = Duration::from_millis(200);

/// Runs the command, then kills what is left of its process group.
pub(crate) async fn check(plan: &NodeCheckPlan) -> Result<(), AgentError> {
    let (end, last) = run(plan).await;
    judge(&end, last.as_deref()).map_err(|reason| AgentError::NodeCheck {
        command: plan.command.clone(),
        reason,
    })
}

async fn run(plan: &NodeCheckPlan) -> (CheckEnd, Option<String>) {
    let (child, mut output) = match start(plan) {
        Ok(started) => started,
        Err(error) => return (CheckEnd::NotStarted(error.to_string()), None),
    };
    let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let mut kept = Vec::new();
    let end = {
        let reads = read(&mut output, &mut kept);
        tokio::pin!(reads);
        let ends = wait(child, plan.timeout);
        tokio::pin!(ends);
        let reminds = remind(plan);
        tokio::pin!(reminds);
        let mut is_read = false;
        let end = loop {
            tokio::select! {
                end = &mut ends => break end,
                () = &mut reads, if !is_read => is_read = true,
                () = &mut reminds => {}
            }
        };
        // The children would outlive a command that was killed or that has left them.
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if !is_read {
            let _ = timeout(OUTPUT_WITHIN, reads).await;
        }
        end
    };
    let text = String::from_utf8_lossy(&kept);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    (end, last.map(escape))
}

fn start(plan: &NodeCheckPlan) -> io::Result<(Child, pipe::Receiver)> {
    let (reader, writer) = io::pipe()?;
    let child = Command::new("sh")
        .args(["-c", &plan.command])
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let reader = pipe::Receiver::from_owned_fd(reader.into())?;
    Ok((child, reader))
}

async fn wait(mut child: Child, limit: Duration) -> CheckEnd {
    match timeout(limit, child.wait()).await {
        Ok(Ok(status)) => end_of(status),
        Ok(Err(error)) => CheckEnd::NotStarted(error.to_string()),
        Err(_) => {
            let _ = child.start_kill();
            let _ = child.wait().await;
            CheckEnd::TimedOut(limit)
        }
    }
}

fn end_of(status: ExitStatus) -> CheckEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => CheckEnd::Exited(code),
        (None, signal) => CheckEnd::Signalled(signal.unwrap_or_default()),
    }
}

/// Logs reminders that the command is still running; never returns.
async fn remind(plan: &NodeCheckPlan) {
    let (began, mut reminder) = (Instant::now(), Reminder::default());
    loop {
        sleep_until(began + reminder.next()).await;
        reminder.is_due(began.elapsed());
        let left = plan.timeout.saturating_sub(began.elapsed()).as_secs();
        warn!(
            target: reminder::TARGET,
            left,
            "waiting for the check of this node; {left} s left; the command is `{}`",
            plan.command
        );
    }
}

/// Reads the output to its end, and keeps the last bytes.
async fn read(output: &mut pipe::Receiver, kept: &mut Vec<u8>) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = output.read(&mut piece).await {
        kept.extend_from_slice(&piece[..count]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
}
