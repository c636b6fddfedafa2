//! Optional process-wide agent that any code can look up.
//!
//! [`RpcAgentBuilder::connect`] creates any number of agents. [`init_rpc`] creates the process-wide
//! agent. [`current`] returns this agent until the agent has shut down.

use rdzv_lock::Mutex;

use crate::{RpcAgent, RpcAgentBuilder, RpcError, RpcErrorKind};

enum AgentSlot {
    Free,
    /// A thread is creating an agent.
    Taken,
    Of(RpcAgent),
}

static AGENT: Mutex<AgentSlot> = Mutex::new(AgentSlot::Free);

/// Guard that releases the reservation if no agent results from it.
struct Reservation;

impl Reservation {
    fn make() -> Result<Self, RpcError> {
        let mut slot = AGENT.lock();
        let former = match &*slot {
            AgentSlot::Of(agent) if !agent.core().is_stopped() => None,
            AgentSlot::Taken => None,
            AgentSlot::Free | AgentSlot::Of(_) => {
                Some(std::mem::replace(&mut *slot, AgentSlot::Taken))
            }
        };
        // Dropped outside of the lock, because it may be the last handle of an agent.
        drop(slot);
        match former {
            Some(_) => Ok(Self),
            None => Err(RpcError::new(
                RpcErrorKind::AlreadyInitialized,
                "RPC is already initialized",
            )),
        }
    }

    fn fill(self, agent: RpcAgent) {
        // The agent is new, so no other code can have set `on_stop`.
        let _ = agent.core().on_stop.set(ended);
        *AGENT.lock() = AgentSlot::Of(agent);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut slot = AGENT.lock();
        if matches!(*slot, AgentSlot::Taken) {
            *slot = AgentSlot::Free;
        }
    }
}

/// Creates the process-wide agent and joins the group.
///
/// # Errors
///
/// [`RpcErrorKind::AlreadyInitialized`], without connecting, if there is a process-wide agent or
/// another thread is creating it. Otherwise the errors of [`RpcAgentBuilder::connect`]; after such
/// an error there is no process-wide agent, and the caller can retry.
pub fn init_rpc(builder: RpcAgentBuilder) -> Result<RpcAgent, RpcError> {
    let reservation = Reservation::make()?;
    let agent = builder.connect()?;
    reservation.fill(agent.clone());
    Ok(agent)
}

/// Returns the process-wide agent.
///
/// # Errors
///
/// [`RpcErrorKind::NotInitialized`] before [`init_rpc`] has returned and after the agent has shut
/// down.
pub fn current() -> Result<RpcAgent, RpcError> {
    match &*AGENT.lock() {
        AgentSlot::Of(agent) if !agent.core().is_stopped() => Ok(agent.clone()),
        _ => Err(RpcError::new(
            RpcErrorKind::NotInitialized,
            "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first.",
        )),
    }
}

/// Clears the process-wide agent if `agent`, which has stopped, is that agent.
fn ended(agent: &RpcAgent) {
    let mut slot = AGENT.lock();
    let is_it = matches!(&*slot, AgentSlot::Of(current) if current.is(agent));
    let former = is_it.then(|| std::mem::replace(&mut *slot, AgentSlot::Free));
    drop(slot);
    // Dropped outside of the lock, because it may be the last handle of the agent.
    drop(former);
}
