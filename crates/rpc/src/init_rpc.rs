//! The one agent that a process may have without passing it around.
//!
//! [`RpcAgent::init`] makes any number of agents; this makes one of them the agent of the process,
//! found with [`current`] until it has shut down.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;
use rdzv_rendezvous::Environment;
use rdzv_rpc_proto::worker::WorkerName;

use crate::backend::{Agent, Backend, BackendOptions, BackendRegistry, InitArguments};
use crate::init_method::open_store;
use crate::options::{DEFAULT_INIT_DEADLINE, RpcOptions};
use crate::{Methods, RpcAgent, RpcError, RpcErrorKind};

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

/// Makes the agent of this process, and returns when its group is there.
///
/// Without a backend it is the one that knows the options, without either the built-in one. The store
/// is that of the options' init method, `env://` as a rule: `MASTER_ADDR`, `MASTER_PORT`, and `RANK` if
/// no rank is given. Without a world size the group is dynamic.
///
/// # Errors
///
/// [`RpcErrorKind::AlreadyInitialized`] before anything else, if there is an agent or one is being made;
/// then, still before any network work, [`RpcErrorKind::InvalidArgument`]; and whatever keeps the store
/// from being reached or the group from being formed. The process has no agent then, and may try again.
pub fn init_rpc(
    name: &str,
    backend: Option<&Backend>,
    rank: Option<u32>,
    world_size: Option<u32>,
    options: Option<Arc<dyn BackendOptions>>,
    methods: Methods,
) -> Result<RpcAgent, RpcError> {
    let reservation = Reservation::make()?;
    let (backend, options) = BackendRegistry::of_process().resolve(backend.cloned(), options)?;
    let name = WorkerName::new(name).map_err(|error| RpcError::invalid(error.to_string()))?;
    // Options of other backends have no deadline for the beginning.
    let deadline = (&*options as &dyn Any)
        .downcast_ref::<RpcOptions>()
        .map_or(DEFAULT_INIT_DEADLINE, |options| options.init_deadline);
    let meeting = open_store(
        options.init_method(),
        rank,
        world_size,
        deadline,
        Environment::of_process(),
    )?;
    let arguments = InitArguments {
        store: meeting.store,
        name,
        rank: meeting.rank,
        world_size,
        methods,
    };
    let agent = backend.init(arguments, &*options)?;
    let Some(agent) = (&*agent as &dyn Any).downcast_ref::<RpcAgent>() else {
        // What ending it comes to matters less than that it cannot be used here.
        let _ = Agent::shutdown(&*agent, false, deadline);
        let text = format!(
            "the agent of {backend} is not an RpcAgent and cannot be that of the process: use \
             Backend::init"
        );
        return Err(RpcError::invalid(text));
    };
    let agent = agent.clone();
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
