//! The side of the leader: reports come in, members are lost, time is over.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdzv_rpc_proto::worker::{WorkerInfo, WorkerName};

use super::message::{Report, Values, write_answer};
use crate::Method;
use crate::agent::core::{Core, Member, Members};
use crate::call::context::CallContext;
use crate::call::methods::{Answer, Handler, Methods};
use crate::call::slot::Slot;
use crate::error::RpcError;
use crate::payload::Payload;
use rdzv_rpc_proto::gather::{Finished, GatherError, GatherKey, GatherTable, Participant};

/// The method that members report with. Its argument and result are bytes of our own.
pub(super) const GATHER: Method<(), ()> = Method::new("rdzv.gather");

/// How a gather ended, for one of those who wait for it.
pub(super) type Verdict = Arc<Result<Values, GatherError>>;
type Waiting = Arc<Slot<Verdict>>;
type Ended = Finished<Payload, Waiting>;

/// The gathers of an agent.
#[derive(Debug, Default)]
pub(crate) struct Gathers(Mutex<GatherTable<Payload, Waiting>>);

impl Gathers {
    pub(super) fn next(&self, members: Vec<Participant>) -> GatherKey {
        self.0.lock().next(members)
    }

    /// Somebody reports; the slot gets the verdict.
    pub(super) fn report(&self, key: &GatherKey, from: &WorkerName, value: Payload) -> Waiting {
        let waiting = Waiting::default();
        let reported = self.0.lock().report(key, from, value, Arc::clone(&waiting));
        match reported {
            Ok(over) => tell(over),
            Err(refused) => drop(waiting.fill(Arc::new(Err(refused)))),
        }
        waiting
    }

    pub(super) fn expire(&self, key: &GatherKey, within: Duration) {
        let over = self.0.lock().expire(key, &format!("{within:?}"));
        tell(over);
    }

    /// The connection with a worker is over.
    pub(crate) fn disconnected(&self, worker: &WorkerInfo, incarnation: u64) {
        let over = self.0.lock().disconnected(of(worker, incarnation));
        tell(over);
    }

    /// There is a connection with a worker.
    pub(crate) fn connected(&self, worker: &WorkerInfo, incarnation: u64) {
        self.0.lock().connected(&of(worker, incarnation));
    }

    /// The group has changed.
    pub(crate) fn changed(&self, before: &Members, now: &Members) {
        let stays = |member: &&Member| {
            let same = now.get(&member.info.id);
            same.is_some_and(|same| {
                same.info.name == member.info.name && same.incarnation == member.incarnation
            })
        };
        for member in before.values().filter(|member| !stays(member)) {
            let over = self.0.lock().left(participant(member));
            tell(over);
        }
    }

    /// This worker stops.
    pub(crate) fn stop(&self) {
        let over = self.0.lock().stop();
        tell(over);
    }
}

/// A member as somebody who takes part.
pub(super) fn participant(member: &Member) -> Participant {
    of(&member.info, member.incarnation)
}

fn of(worker: &WorkerInfo, incarnation: u64) -> Participant {
    Participant {
        name: worker.name.clone(),
        incarnation,
    }
}

fn tell(over: impl IntoIterator<Item = Ended>) {
    for over in over {
        let verdict = Arc::new(over.result);
        for waiting in over.waiting {
            waiting.fill(Arc::clone(&verdict));
        }
    }
}

/// What every agent offers beside the methods of the application.
pub(crate) fn offered(methods: Methods) -> Methods {
    let take = Handler::Async(Arc::new(|context, payload| {
        Box::pin(reported(context, payload))
    }));
    methods.offer(GATHER.name(), take)
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
        Some(until) => match tokio::time::timeout_at(until.into(), verdict).await {
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
    core.fits(&answer)?;
    Ok(answer)
}
