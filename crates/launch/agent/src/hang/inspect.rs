//! Inspection of all workers in parallel with the agent's loop.
//!
//! Reading a stack takes 0.1 s, or up to its time limit.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use rdzv_agent_proto::hang::stacks::WorkerStack;
use tokio::task::JoinSet;

use super::recorder::{Recorder, Recorders};
use super::{look, stack};
use crate::worker::WorkerIdentity;

pub(crate) type Inspection = Pin<Box<dyn Future<Output = Vec<WorkerStack>> + Send>>;

/// Begins to inspect these workers, all at the same time.
/// Must be called inside the runtime.
pub(crate) fn begin(
    workers: Vec<WorkerIdentity>,
    tool: Option<&PathBuf>,
    recorders: &Recorders,
) -> Inspection {
    let looks = workers.into_iter().map(|worker| {
        let recorder = recorders.get(&worker.local_rank).cloned();
        inspect(worker, tool.cloned(), recorder)
    });
    let looks: JoinSet<WorkerStack> = looks.collect();
    Box::pin(async move {
        let mut stacks = looks.join_all().await;
        stacks.sort_by_key(|stack| stack.local_rank);
        stacks
    })
}

async fn inspect(
    worker: WorkerIdentity,
    tool: Option<PathBuf>,
    recorder: Option<Recorder>,
) -> WorkerStack {
    let pid = worker.pid;
    // The kernel state comes first, because py-spy itself may change what the worker does.
    let kernel = look::kernel_state_in(Path::new(&format!("/proc/{pid}")));
    let threads = look::threads(pid);
    let frames = async {
        match &tool {
            None => (Vec::new(), None),
            Some(tool) => match stack::main_thread(tool, pid).await {
                Ok(frames) => (frames, None),
                Err(reason) => (Vec::new(), Some(reason)),
            },
        }
    };
    let recorder = async { recorder?.read(worker.rank).await };
    let ((frames, without_frames), recorder) = tokio::join!(frames, recorder);
    WorkerStack {
        node: String::new(),
        local_rank: worker.local_rank,
        rank: worker.rank,
        pid,
        frames,
        without_frames,
        kernel,
        threads,
        recorder,
    }
}
