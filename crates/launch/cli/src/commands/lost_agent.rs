//! Removal of a killed agent from the rendezvous, by its keeper.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdzv_agent::config::RendezvousPlan;
use rdzv_rendezvous::dynamic::C10dRendezvous;
use tracing::warn;

use crate::args::own_directory;
use crate::launch::{Called, Environment, RunArgs, ThisHost, resolve};

/// Limit for the removal of a killed agent from the rendezvous.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// Removes a killed agent from the rendezvous.
///
/// Otherwise the other nodes would wait for its heartbeats. Only a file, or a store that does not
/// run the rendezvous itself, needs this.
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
    // On a thread, because a name lookup cannot be cancelled.
    let (done, ended) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().spawn(move || {
        let _ = done.send(C10dRendezvous::remove_agent(&parameters, pid));
    });
    if thread.is_ok()
        && let Ok(Err(error)) = ended.recv_timeout(LEAVE_WITHIN)
    {
        warn!(
            "cannot notify the other nodes, which will miss the heartbeats of this agent: {error}"
        );
    }
}
