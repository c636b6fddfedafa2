#![doc = include_str!("../README.md")]
//!
//! Functions run on threads that belong to the agent. An async function usually takes its first
//! step on the thread that serves the connections. Its other steps run on the one worker thread of
//! a tokio runtime. Blocking functions run on the blocking pool of that runtime. The application
//! itself does not need tokio.
//!
//! | to use | start with |
//! |---|---|
//! | one or several agents | [`RpcAgent::builder`] |
//! | a single agent per process, found with [`current`] | [`init_rpc()`] |
//! | agents of other backends, by name | [`backend::RpcBackendRegistry`] |
//! | a group without an agent | [`group::Group`] |
//! | connections without calls | [`transport::Listener`], [`transport::connect()`] |
//! | values encoded as messages | [`message::encode`], [`message::decode`] |
//! | tensors from other libraries | [`dlpack`] |
//!
//! This crate re-exports every type in its public signatures, either at its root or in the module
//! of the signature.

#![warn(clippy::missing_errors_doc)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rdzv-rpc needs Linux (epoll and /proc): build it for a Linux target, in a container or \
     virtual machine if necessary"
);

/// Examples of the guide, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/rpc.md")]
mod guide {}

mod agent;
pub mod backend;
mod bulk;
mod call;
mod channel;
pub mod device;
pub mod dlpack;
mod error;
pub mod group;
pub mod init_method;
mod init_rpc;
pub mod message;
pub mod options;
mod payload;
mod rref;
mod runtime;
mod service;
pub mod tensor;
pub mod transport;
mod wire;

pub use agent::{PeerTraffic, RpcAgentBuilder, Traffic};
pub use call::handler::{
    Argument, Blocking, Deferred, Function, Handler, KeptHere, Offered, Output, Recognised,
    Responder, blocking, deferred, kept,
};
pub use call::methods::Methods;
pub use channel::failure::FunctionFailure;
pub use error::{RemoteError, RpcError, RpcErrorKind};
pub use init_rpc::{current, init_rpc};
pub use options::RpcOptions;
pub use payload::Payload;
pub use rdzv_rpc_proto::frame::FrameLimits;
pub use rdzv_rpc_proto::worker::{BadName, WorkerId, WorkerInfo, WorkerName};
pub use rdzv_shm::{Arena, Block, is_leased};
pub use rdzv_store::Store;
pub use rref::{RRef, ReferenceCounters, ReferenceSettings, ValueMethod};
pub use runtime::call::{CallOptions, Destination, Timeout};
pub use runtime::core::{CallContext, RpcAgent};
pub use runtime::future::RpcFuture;
pub use runtime::method::Method;
pub use service::cancellation::Cancellation;
pub use tensor::Tensor;
