//! Where all workers are, found out beside the loop: a stack takes a tenth of a second, or for ever.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use rdzv_agent_proto::hang::stacks::WorkerStack;
use tokio::task::JoinSet;

use super::{look, stack};
use crate::worker::WorkerIdentity;

/// An inspection under way.
pub(crate) type Inspection = Pin<Box<dyn Future<Output = Vec<WorkerStack>>>>;

/// Looks at these workers, all at the same time. To be called inside the runtime.
pub(crate) fn begin(workers: Vec<WorkerIdentity>, tool: Option<&PathBuf>) -> Inspection {
    let looks = workers
        .into_iter()
        .map(|worker| inspect(worker, tool.cloned()));
    let looks: JoinSet<WorkerStack> = looks.collect();
    Box::pin(async move {
        let mut stacks = looks.join_all().await;
        stacks.sort_by_key(|stack| stack.local_rank);
        stacks
    })
}

async fn inspect(worker: WorkerIdentity, tool: Option<PathBuf>) -> WorkerStack {
    let pid = worker.pid;
    // First: py-spy itself may show in what the worker does.
    let kernel = look::kernel_place_in(Path::new(&format!("/proc/{pid}")));
    let threads = look::threads(pid);
    let (frames, without_frames) = match &tool {
        None => (Vec::new(), None),
        Some(tool) => match stack::main_thread(tool, pid).await {
            Ok(frames) => (frames, None),
            Err(reason) => (Vec::new(), Some(reason)),
        },
    };
    WorkerStack {
        local_rank: worker.local_rank,
        rank: worker.rank,
        pid,
        frames,
        without_frames,
        kernel,
        threads,
    }
}
