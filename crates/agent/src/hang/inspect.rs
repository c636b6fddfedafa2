//! Where all workers are, found out beside the loop: a stack takes a tenth of a second, or for ever.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;

use rdzv_agent_proto::hang::stacks::WorkerStack;

use super::{look, stack};
use crate::worker::WorkerIdentity;

/// An inspection under way.
pub(crate) type Inspection = Pin<Box<dyn Future<Output = Vec<WorkerStack>>>>;

/// Looks at these workers, all at the same time.
pub(crate) fn begin(workers: Vec<WorkerIdentity>, tool: Option<PathBuf>) -> Inspection {
    Box::pin(async move {
        let mut looks: Vec<Pin<Box<dyn Future<Output = WorkerStack>>>> = Vec::new();
        for worker in workers {
            looks.push(Box::pin(inspect(worker, tool.clone())));
        }
        let mut places: Vec<Option<WorkerStack>> = looks.iter().map(|_| None).collect();
        poll_fn(|context| {
            for (look, place) in looks.iter_mut().zip(&mut places) {
                if place.is_none()
                    && let Poll::Ready(found) = look.as_mut().poll(context)
                {
                    *place = Some(found);
                }
            }
            match places.iter().all(Option::is_some) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        places.into_iter().flatten().collect()
    })
}

async fn inspect(worker: WorkerIdentity, tool: Option<PathBuf>) -> WorkerStack {
    let pid = worker.pid;
    // First: py-spy itself may show in what the worker does.
    let kernel = look::kernel_place(pid);
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
