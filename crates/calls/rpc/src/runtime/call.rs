//! Calls that this worker makes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::request::{Excess, IN_LINE, NESTED, Request, check_size};
use crate::channel::slot::Slot;
use crate::channel::span::CallSpan;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::Payload;
use crate::runtime::codec;
use crate::runtime::core::{Core, RpcAgent};
use crate::runtime::future::{Begun, InFlight, RpcFuture};
use crate::runtime::member::Member;
use crate::runtime::method::Method;
use crate::service::code_kind::{CodeKind, code_kind, trace};

/// Callee of a call: a worker by its name, by its id, or by both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination<'a> {
    /// By name.
    Name(&'a str),
    /// By id, which is its rank.
    Id(WorkerId),
    /// By name and id, which must both match.
    Worker(&'a WorkerInfo),
}

impl<'a> From<&'a str> for Destination<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a String> for Destination<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name)
    }
}

impl From<u32> for Destination<'_> {
    fn from(id: u32) -> Self {
        Self::Id(WorkerId(id))
    }
}

impl From<WorkerId> for Destination<'_> {
    fn from(id: WorkerId) -> Self {
        Self::Id(id)
    }
}

impl<'a> From<&'a WorkerInfo> for Destination<'a> {
    fn from(worker: &'a WorkerInfo) -> Self {
        Self::Worker(worker)
    }
}

/// Time limit of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timeout {
    /// The default limit.
    /// A call uses the limit of its agent ([`RpcAgent::timeout`]); an agent uses 60 s.
    #[default]
    Default,
    /// No limit.
    Never,
    /// This time; at least 1 µs.
    After(Duration),
}

impl Timeout {
    /// Returns the limit, if there is one; `default` is the default limit.
    pub(crate) fn limit(
        self,
        default: impl FnOnce() -> Option<Duration>,
    ) -> Result<Option<Duration>, RpcError> {
        match self {
            Self::Default => Ok(default()),
            Self::Never => Ok(None),
            Self::After(time) if time < Duration::from_micros(1) => Err(RpcError::invalid(
                "RPC timeout must be positive: use at least 1 µs, or Timeout::Never for calls \
                 without a deadline",
            )),
            Self::After(time) => Ok(Some(time)),
        }
    }
}

impl From<Duration> for Timeout {
    fn from(time: Duration) -> Self {
        Self::After(time)
    }
}

/// Options of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallOptions {
    pub(crate) timeout: Timeout,
    line: Option<u64>,
    refuse: bool,
}

impl CallOptions {
    /// Creates options with the agent's timeout, without a line or `refuse_excess`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit of the call.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Timeout>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Puts the call into a line.
    ///
    /// The callee serves this worker's calls with the same `key` in the order in which they were
    /// sent. A call from a function that serves a call can overtake calls that wait to be sent.
    /// Calls without a line run concurrently, in any order.
    #[must_use]
    pub fn line(mut self, key: u64) -> Self {
        self.line = Some(key);
        self
    }

    /// Makes the call fail with [`RpcErrorKind::Overloaded`] under load.
    ///
    /// Without this option, the call waits until fewer calls to the worker are in flight, unless
    /// 65,536 calls already wait. Calls from functions that serve a call are sent immediately in
    /// both cases.
    #[must_use]
    pub fn refuse_excess(mut self) -> Self {
        self.refuse = true;
        self
    }
}

impl RpcAgent {
    /// Calls a method of a worker, and returns before the result arrives.
    ///
    /// The argument is encoded immediately. The message shares the memory of its tensors, so do not
    /// modify that memory until the result arrives. This blocks if 256 calls are in flight to the
    /// worker. It also blocks if this call would bring the bytes in flight above 64 MiB, unless
    /// nothing is in flight. In async code this does not block; the call waits in a queue instead.
    /// A call from a function that serves a call is sent immediately.
    ///
    /// The future reports all errors, including those from before the call was sent.
    pub fn call<'a, Argument, Output>(
        &self,
        to: impl Into<Destination<'a>>,
        method: Method<Argument, Output>,
        argument: &Argument,
    ) -> RpcFuture<Output>
    where
        Argument: Serialize,
        Output: DeserializeOwned + Send + 'static,
    {
        self.call_with(CallOptions::default(), to, method, argument)
    }

    /// Calls a method like [`call`](Self::call), with options.
    pub fn call_with<'a, Argument, Output>(
        &self,
        options: CallOptions,
        to: impl Into<Destination<'a>>,
        method: Method<Argument, Output>,
        argument: &Argument,
    ) -> RpcFuture<Output>
    where
        Argument: Serialize,
        Output: DeserializeOwned + Send + 'static,
    {
        let core = self.core();
        let begun = core.member(&to.into()).and_then(|member| {
            let (payload, forks) = codec::encode_argument(core, &member, argument)?;
            match core.begin(&member, method.name(), method.number(), payload, options) {
                Ok(begun) => Ok((member, begun, forks)),
                Err(error) => {
                    codec::not_sent(core, forks);
                    Err(error)
                }
            }
        });
        match begun {
            Ok((member, begun, forks)) => RpcFuture::of_call(InFlight {
                core: Arc::clone(core),
                worker: member.info,
                method: method.name(),
                begun,
                read: codec::decode_output,
                forks,
            }),
            Err(error) => RpcFuture::ready(Arc::clone(core), Err(error.with_method(method.name()))),
        }
    }
}

impl Core {
    pub(crate) fn member(&self, to: &Destination<'_>) -> Result<Member, RpcError> {
        let members = self.members();
        let (found, what) = match to {
            Destination::Id(id) => (members.get(id), format!("id {id}")),
            Destination::Name(name) => {
                let mut all = members.values();
                let found = all.find(|member| member.info.name.as_str() == *name);
                (found, format!("name {name}"))
            }
            Destination::Worker(worker) => {
                let found = members.get(&worker.id);
                let same = found.filter(|member| member.info.name == worker.name);
                (same, format!("name {}", worker.name))
            }
        };
        found.cloned().ok_or_else(|| {
            let names: Vec<_> = members
                .values()
                .map(|member| member.info.name.as_str())
                .take(20)
                .collect();
            let text = format!(
                "name:{},rank:{} could not find destination {what}; the group has {}: {}",
                self.me.name,
                self.me.id,
                members.len(),
                names.join(", ")
            );
            RpcError::new(RpcErrorKind::UnknownWorker, text)
        })
    }

    pub(crate) fn begin(
        self: &Arc<Self>,
        member: &Member,
        method: &'static str,
        number: u64,
        mut payload: Payload,
        options: CallOptions,
    ) -> Result<Begun, RpcError> {
        let begun = Instant::now();
        let nested = code_kind() != CodeKind::Application;
        if self.is_stopped() || (!nested && !self.in_flight.is_running()) {
            return Err(RpcError::stopping().with_worker(member.info.clone()));
        }
        let timeout = options.timeout.limit(|| self.timeout())?;
        check_size(&self.limits, &payload)
            .map_err(|error| error.with_worker(member.info.clone()).with_method(method))?;
        let mut flags = 0;
        if let Some(key) = options.line {
            flags |= IN_LINE;
            payload.body = behind(key, &payload.body);
        }
        if nested {
            flags |= NESTED;
        }
        let excess = match (nested, options.refuse) {
            // The call is part of a call that counts at its caller. If such calls waited for one
            // another, they could deadlock.
            (true, _) => Excess::Send,
            (false, true) => Excess::Refuse,
            (false, false) => Excess::Queue,
        };
        let id = self.next_call();
        let slot = Arc::new(Slot::default());
        let sent = Arc::new(Slot::default());
        let trace = match trace() {
            0 => u128::from(self.incarnation) << 64 | u128::from(id),
            trace => trace,
        };
        self.counters.made();
        let span = CallSpan::client(trace, id, method, &member.info, payload.len());
        let request = Request {
            id,
            method,
            number,
            flags,
            trace,
            span,
            payload,
            begun,
            timeout,
            slot: Arc::clone(&slot),
            lend: false,
            sent: Arc::clone(&sent),
            counted: Arc::new(self.in_flight.begin()),
        };
        let full = self.send_request(member, request, excess);
        let deadline = timeout.map(|timeout| begun + timeout);
        if let Some(deadline) = deadline {
            self.note_deadline(deadline);
        }
        let async_code = tokio::runtime::Handle::try_current().is_ok();
        if !sent.is_filled() && !nested && !async_code {
            self.wait_sent(member, &sent, full, deadline);
        }
        Ok(Begun {
            id,
            slot,
            deadline,
            limit: timeout,
        })
    }

    /// Blocks until a request has left the queue.
    ///
    /// For a connection that is not yet open, this waits only if too much is queued.
    fn wait_sent(&self, member: &Member, sent: &Slot<()>, full: bool, deadline: Option<Instant>) {
        match self.peers.client(member.info.id) {
            Some(client) => client.wait(sent, deadline),
            None if full => sent.park(deadline),
            None => {}
        }
    }
}

/// Prepends the key of the line to the body.
fn behind(key: u64, body: &Bytes) -> Bytes {
    let mut whole = BytesMut::with_capacity(8 + body.len());
    whole.put_u64_le(key);
    whole.extend_from_slice(body);
    whole.freeze()
}
