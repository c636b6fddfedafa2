//! Driver of the watch for slow ranks.
//!
//! Node 0 compares the ranks of all nodes. All nodes take their samples at about the same instant:
//! node 0 before it sends its request, and the other nodes when they receive it. So the clocks of
//! the nodes need not agree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdzv_agent_proto::hang::heartbeat::Heartbeats;
use rdzv_agent_proto::hang::straggler::{RankSample, StragglerChange, StragglerWatch};
use rdzv_core::rank::GroupRank;
use rdzv_core::time::Mono;
use tokio::time::sleep_until;

use super::exchange::{Link, LinkEvent, Peers};
use crate::clock::{Clock, or_forever};
use crate::host;
use crate::process_stat::{ProcessStat, runnable};
use crate::worker::WorkerIdentity;

/// Event of the watch.
#[derive(Debug)]
pub(crate) enum Look {
    /// The next comparison is due.
    Due,
    Link(Option<LinkEvent>),
}

pub(super) struct Stragglers {
    watch: StragglerWatch,
    link: Option<Link>,
    /// Time of the next comparison; `None` if another node compares.
    next: Option<Mono>,
    number: u64,
    /// Samples of this node for the request that is in progress.
    own: Vec<RankSample>,
    used: BTreeMap<u32, (Mono, Duration)>,
}

impl Stragglers {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            watch: StragglerWatch::new(window),
            link: None,
            next: None,
            number: 0,
            own: Vec::new(),
            used: BTreeMap::new(),
        }
    }

    pub(super) fn joined(&mut self, peers: &Peers) {
        self.clear();
        let period = self.watch.period();
        self.link = (peers.nodes > 1).then(|| peers.link(period));
        self.next = (peers.node == GroupRank(0)).then_some(Mono::ZERO);
    }

    pub(super) fn clear(&mut self) {
        self.watch.clear();
        self.used.clear();
        (self.link, self.next) = (None, None);
    }

    /// Waits for the next event. Cancel-safe: the caller may drop the future.
    pub(super) async fn next(&mut self, clock: Clock, healthy: bool) -> Look {
        let next = self.next.filter(|_| healthy);
        tokio::select! {
            event = or_forever(self.link.as_mut().map(|link| link.events.recv())) => {
                Look::Link(event)
            }
            () = or_forever(next.map(|at| sleep_until(clock.instant(at)))) => Look::Due,
        }
    }

    /// Handles an event, and returns the changes.
    pub(super) fn handle(
        &mut self,
        now: Mono,
        look: Look,
        beats: &Heartbeats,
        running: &[WorkerIdentity],
    ) -> Vec<StragglerChange> {
        match look {
            Look::Due => {
                self.next = Some(now + self.watch.period());
                self.own = self.samples(now, now, beats, running);
                self.number += 1;
                match &self.link {
                    Some(link) => link.ask(self.number),
                    None => return self.watch.judge(now, &self.own),
                }
            }
            Look::Link(Some(LinkEvent::Asked { number, at })) => {
                let asked = Mono::ZERO + now.since(Mono::ZERO + Instant::now().duration_since(at));
                let samples = self.samples(now, asked, beats, running);
                if let Some(link) = &self.link {
                    link.answer(&number, &samples);
                }
            }
            Look::Link(Some(LinkEvent::Samples(mut samples))) => {
                samples.extend(std::mem::take(&mut self.own));
                return self.watch.judge(now, &samples);
            }
            Look::Link(None) => self.link = None,
        }
        Vec::new()
    }

    fn samples(
        &mut self,
        now: Mono,
        asked: Mono,
        beats: &Heartbeats,
        running: &[WorkerIdentity],
    ) -> Vec<RankSample> {
        let node = host::name_so_far();
        let steps: BTreeMap<_, _> = beats.steps().collect();
        let mut used = BTreeMap::new();
        let samples = running.iter().filter_map(|worker| {
            let steps = steps.get(&worker.local_rank)?;
            // On a busy machine, a worker that computes waits for a processor.
            let cpu = ProcessStat::of(worker.pid)?.cpu;
            let cpu = runnable(worker.pid).map_or(cpu, |runnable| runnable.max(cpu));
            used.insert(worker.pid, (now, cpu));
            let share = self.used.get(&worker.pid).map(|(then, before)| {
                let took = now.since(*then).as_secs_f64().max(1e-3);
                cpu.saturating_sub(*before).as_secs_f64() / took
            });
            Some(RankSample {
                rank: worker.rank,
                node: node.clone(),
                step: steps.last(),
                marks: steps.relative_to(asked),
                processor: share,
            })
        });
        let samples = samples.collect();
        self.used = used;
        samples
    }
}
