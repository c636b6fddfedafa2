//! The keeper's service for the other nodes when its agent was killed.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdzv_agent::RendezvousPlan;
use rdzv_rendezvous::dynamic::C10dRendezvous;
use tracing::warn;

use crate::args::own_directory;
use crate::launch::{Called, Environment, RunArgs, ThisHost, resolve};

/// Limit for taking a killed agent out of the rendezvous.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// Takes a killed agent out of the rendezvous, so that the other nodes need not wait for its
/// heartbeats. Only a store that does not run the rendezvous itself needs that.
pub(super) fn leave_for(arguments: &RunArgs, environment: &Environment, pid: u32) {
    let called = Called {
        beside: None,
        own: own_directory(),
        local_rank_argument: false,
        is_strict: false,
    };
    let Ok(launch) = resolve(arguments, &called, environment, &ThisHost) else {
        return;
    };
    let RendezvousPlan::Dynamic { parameters } = launch.plan.rendezvous.plan else {
        return;
    };
    if parameters.backend != C10dRendezvous::NAME {
        return;
    }
    // On a thread, since a look-up of a name cannot be ended.
    let (done, ended) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().spawn(move || {
        let _ = done.send(C10dRendezvous::remove_agent(&parameters, pid));
    });
    if thread.is_ok()
        && let Ok(Err(error)) = ended.recv_timeout(LEAVE_WITHIN)
    {
        warn!("the other nodes will miss the heartbeats of this one: {error}");
    }
}
