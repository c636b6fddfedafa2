//! The method by which members report to the leader.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{Report, write_answer};
use crate::Method;
use crate::channel::request::check_size;
use crate::error::RpcError;
use crate::payload::{Answer, Payload};
use crate::runtime::core::{CallContext, Core, MethodBody};
use crate::runtime::gathers::Verdict;

/// Method by which members report to the leader.
///
/// Argument and result are bytes in the format of [`super::message`].
pub(super) const GATHER: Method<(), ()> = Method::new("rdzv.gather");

/// Returns the method for reports, which every agent offers.
pub(crate) fn offered() -> (&'static str, MethodBody) {
    let take = MethodBody::Async(Arc::new(|context, payload| {
        Box::pin(reported(context, payload))
    }));
    (GATHER.name(), take)
}

async fn reported(context: CallContext, payload: Payload) -> Answer {
    let core = context.agent.core();
    let (report, value) = Report::read(payload)?;
    let leads = report.key.members.first();
    if leads.is_none_or(|leader| leader.name != core.me.name) {
        let text = format!("{} does not lead this gather", core.me.name);
        return Err(RpcError::invalid(text));
    }
    let within = Duration::from_micros(report.within_micros);
    let waiting = core
        .gathers
        .report(&report.key, &context.caller.name, value);
    let verdict = poll_fn(|task| waiting.poll(task));
    let verdict = match Instant::now().checked_add(within) {
        None => verdict.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), verdict).await {
            Ok(verdict) => verdict,
            Err(_) => {
                core.gathers.expire(&report.key, within);
                poll_fn(|task| waiting.poll(task)).await
            }
        },
    };
    answer(core, &verdict)
}

fn answer(core: &Core, verdict: &Verdict) -> Answer {
    let answer = write_answer(verdict.as_ref().as_ref())?;
    check_size(&core.limits, &answer)?;
    Ok(answer)
}
