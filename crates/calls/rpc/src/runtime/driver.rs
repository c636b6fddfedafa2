//! The driver: the thread that waits for connections, frames and deadlines.
//!
//! The driver usually also takes the first step of an async function, when its request has arrived.
//! A function with an immediate answer then needs no switch between threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

use rdzv_shm::spin::SpinBudget;

use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::accept::Reception;
use crate::runtime::core::Core;
use crate::runtime::placement::Placement;
use crate::runtime::run::panic_text;
use crate::wire::link::{Endpoint, Pumped, fail, pause, pump, rest};
use crate::wire::poller::{Happening, become_driver};

/// Longest time that the driver spins for the next frame of an active peer.
const SPIN_FOR_FRAMES: Duration = Duration::from_micros(150);

pub(crate) fn start(core: Arc<Core>, reception: Reception) -> std::io::Result<JoinHandle<()>> {
    let name = format!("rpc:{}", core.me.name);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || run(&core, reception))
}

fn run(core: &Arc<Core>, mut reception: Reception) {
    become_driver();
    let runtime = core.executor.enter();
    // Without its driver an agent would be silent, so a panic must become an error.
    let whole = catch_unwind(AssertUnwindSafe(|| drive(core, &mut reception)));
    let text = match whole {
        Ok(()) => "the agent of this worker was shut down".to_owned(),
        Err(panic) => {
            let text = panic_text(panic.as_ref());
            tracing::error!(
                panic = text,
                "the agent of this worker has failed and stops"
            );
            format!("the agent of this worker has failed: {text}")
        }
    };
    core.stop();
    reception.close(core);
    for endpoint in core.poller.all() {
        fail(
            &endpoint,
            RpcError::new(RpcErrorKind::Stopping, text.clone()),
        );
    }
    core.peers.stop();
    drop(runtime);
    core.executor.end();
}

/// Runs the driver until the agent is stopped.
fn drive(core: &Arc<Core>, reception: &mut Reception) {
    let mut happenings = Vec::new();
    let mut hot: Vec<Arc<dyn Endpoint>> = Vec::new();
    let spin = SpinBudget::new(SPIN_FOR_FRAMES);
    let mut placement = Placement::default();
    // Time since which no frames have arrived.
    let mut quiet = Instant::now();
    while !core.is_stopped() {
        let deadline = earliest(core.wake_at(), reception.deadline());
        if let Err(error) = core.poller.wait(deadline, &mut happenings) {
            tracing::error!(%error, "the agent cannot wait for its connections and stops");
            return;
        }
        take(core, reception, &happenings, &mut hot);
        if !hot.is_empty() {
            spin.learn(quiet.elapsed());
            let hot = &mut hot;
            quiet = look(core, reception, &mut happenings, hot, &spin, &mut placement);
            for endpoint in hot.drain(..) {
                if let Some(reader) = endpoint.link().try_reader() {
                    rest(&endpoint, reader);
                }
            }
        }
        let now = Instant::now();
        if core.wake_at().is_some_and(|at| at <= now) {
            core.expire(now);
        }
        reception.expire(now);
        reception.go_on(core);
    }
}

/// Handles the events that the poller has reported.
///
/// A connection with frames is no longer armed. It is added to `hot`, unless another thread reads
/// it, or it is paused or has ended.
fn take(
    core: &Arc<Core>,
    reception: &mut Reception,
    happenings: &[Happening],
    hot: &mut Vec<Arc<dyn Endpoint>>,
) {
    for happening in happenings {
        match *happening {
            Happening::Wake => {
                for endpoint in core.poller.take_returning() {
                    if let Err(error) = endpoint.give_back() {
                        fail(&endpoint, error);
                    }
                }
            }
            Happening::Knock => reception.admit(core),
            Happening::Room(id) => {
                let Some(endpoint) = core.poller.endpoint(id) else {
                    continue;
                };
                if let Err(error) = endpoint.link().flush() {
                    fail(&endpoint, error);
                } else if endpoint.may_take() && endpoint.link().resume() {
                    Arc::clone(&endpoint).goes_on();
                    take_frames(endpoint, hot);
                }
            }
            Happening::Frames(id) => {
                if let Some(endpoint) = core.poller.endpoint(id) {
                    endpoint.link().fired();
                    take_frames(endpoint, hot);
                }
            }
        }
    }
}

/// Reads the frames of a connection that is not armed.
fn take_frames(endpoint: Arc<dyn Endpoint>, hot: &mut Vec<Arc<dyn Endpoint>>) {
    let pumped = endpoint.link().try_reader().map(|mut reader| {
        reader.awake();
        together(&endpoint, |endpoint| pump(endpoint, &mut reader))
    });
    match pumped {
        // The thread that has the reader lock arms the connection again.
        None | Some(Pumped::Ended) => {}
        Some(Pumped::Paused) if pause(&endpoint) => {}
        Some(_) => hot.push(endpoint),
    }
}

/// Polls the hot connections briefly; returns the time of the last frame.
/// A peer that has just sent a frame may send more, and waking up takes longer than polling.
fn look(
    core: &Arc<Core>,
    reception: &mut Reception,
    happenings: &mut Vec<Happening>,
    hot: &mut Vec<Arc<dyn Endpoint>>,
    spin: &SpinBudget,
    placement: &mut Placement,
) -> Instant {
    let mut since = Instant::now();
    if spin.next().is_zero() {
        // Threads that have their answers now may wait for this processor.
        yield_now();
        return since;
    }
    let mut polls = spin.poll_from(since);
    let mut rounds = 0_u32;
    loop {
        let mut came = false;
        hot.retain(|endpoint| {
            // The thread that has the reader lock arms the connection again.
            let Some(mut reader) = endpoint.link().try_reader() else {
                return false;
            };
            match together(endpoint, |endpoint| pump(endpoint, &mut reader)) {
                Pumped::Idle(0) => true,
                Pumped::Paused => !pause(endpoint),
                Pumped::Ended => false,
                Pumped::Idle(_) | Pumped::More => {
                    came = true;
                    true
                }
            }
        });
        let now = Instant::now();
        if came {
            let others_ran = polls.end(now);
            polls = spin.poll_from(now);
            placement.note(others_ran, now);
            since = now;
        }
        rounds += 1;
        // Other connections are served as well.
        if rounds.is_multiple_of(8) {
            if core.poller.wait(Some(now), happenings).is_err() {
                return since;
            }
            take(core, reception, happenings, hot);
        }
        let due = core.wake_at().is_some_and(|at| at <= now);
        if hot.is_empty() || due || core.is_stopped() {
            return since;
        }
        if !came && !polls.go_on(now) {
            return since;
        }
    }
}

/// Runs `work`, and sends all frames from it together.
fn together(
    endpoint: &Arc<dyn Endpoint>,
    work: impl FnOnce(&Arc<dyn Endpoint>) -> Pumped,
) -> Pumped {
    endpoint.link().hold();
    let pumped = work(endpoint);
    if let Err(error) = endpoint.link().let_go() {
        fail(endpoint, error);
        return Pumped::Ended;
    }
    pumped
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
