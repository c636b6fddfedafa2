//! The one agent that a process may have without passing it around.
//!
//! [`RpcAgentBuilder::connect`] makes any number of agents; this makes one of them the agent of the process,
//! found with [`current`] until it has shut down.

use rdzv_lock::Mutex;

use crate::{RpcAgent, RpcAgentBuilder, RpcError, RpcErrorKind};

/// The place of the agent of this process.
enum Place {
    Free,
    /// Somebody is making an agent.
    Taken,
    Of(RpcAgent),
}

static PLACE: Mutex<Place> = Mutex::new(Place::Free);

/// Frees the place again if no agent comes of it, whatever the reason.
struct Reservation;

impl Reservation {
    fn make() -> Result<Self, RpcError> {
        let mut place = PLACE.lock();
        let former = match &*place {
            Place::Of(agent) if !agent.core().is_stopped() => None,
            Place::Taken => None,
            Place::Free | Place::Of(_) => Some(std::mem::replace(&mut *place, Place::Taken)),
        };
        // Outside of the lock: it may be the last handle of an agent.
        drop(place);
        match former {
            Some(_) => Ok(Self),
            None => Err(RpcError::new(
                RpcErrorKind::AlreadyInitialized,
                "RPC is already initialized",
            )),
        }
    }

    fn fill(self, agent: RpcAgent) {
        // It was made just now, so nothing is called yet.
        let _ = agent.core().on_stop.set(ended);
        *PLACE.lock() = Place::Of(agent);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut place = PLACE.lock();
        if matches!(*place, Place::Taken) {
            *place = Place::Free;
        }
    }
}

/// Connects, and makes the agent that of this process.
///
/// # Errors
///
/// [`RpcErrorKind::AlreadyInitialized`] before anything else, if there is an agent or one is being made;
/// and those of [`RpcAgentBuilder::connect`]. The process has no agent then, and may try again.
pub fn init_rpc(builder: RpcAgentBuilder) -> Result<RpcAgent, RpcError> {
    let reservation = Reservation::make()?;
    let agent = builder.connect()?;
    reservation.fill(agent.clone());
    Ok(agent)
}

/// The agent of this process.
///
/// # Errors
///
/// [`RpcErrorKind::NotInitialized`] before [`init_rpc`] has returned and after the agent has shut down.
pub fn current() -> Result<RpcAgent, RpcError> {
    match &*PLACE.lock() {
        Place::Of(agent) if !agent.core().is_stopped() => Ok(agent.clone()),
        _ => Err(RpcError::new(
            RpcErrorKind::NotInitialized,
            "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first.",
        )),
    }
}

/// An agent has stopped: if it is that of the process, there is none any more.
fn ended(agent: &RpcAgent) {
    let mut place = PLACE.lock();
    let is_it = matches!(&*place, Place::Of(current) if current.is(agent));
    let former = is_it.then(|| std::mem::replace(&mut *place, Place::Free));
    drop(place);
    // Outside of the lock: it may be the last handle of the agent.
    drop(former);
}
