//! Creation of values by calls, and requests for copies of values.
//!
//! The owner replies to a creating call once it has registered the value, not when the function
//! returns. The body of the call contains a [`Head`], and then the argument in its usual encoding.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rdzv_rpc_proto::frame::method_hash;
use rdzv_rpc_proto::rref::{Fetch, ForkId, Handle, Input, RRefId};
use serde::{Deserialize, Serialize};

use super::question::{FETCH, answer};
use super::reference::RRef;
use super::register::Register;
use crate::channel::failure::no_such_method;
use crate::channel::request::time_is_over;
use crate::channel::slot::Slot;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::{Answer, Payload};
use crate::runtime::call::{CallOptions, Destination, Timeout};
use crate::runtime::codec;
use crate::runtime::core::{CallContext, Core, MethodBody, RpcAgent};
use crate::runtime::method::Method;
use crate::service::cancellation::Cancellation;
use crate::service::code_kind::trace;

const CREATE: &str = "rdzv.rref.create";
/// Fields of the request before the argument.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    rref: RRefId,
    fork: ForkId,
    method: u64,
    /// Name of the method, used only in errors.
    name: String,
    /// Time limit of the function, if the caller has set one.
    within: Option<Duration>,
}

/// Returns the methods that every agent offers for remote references.
pub(crate) fn offered() -> [(&'static str, MethodBody); 2] {
    let create = MethodBody::Async(Arc::new(|context, payload| {
        Box::pin(async move { create(&context, payload) })
    }));
    let fetch = MethodBody::Async(Arc::new(|context, payload| {
        Box::pin(async move {
            let (question, _) = codec::decode_argument::<Fetch>(&context, &payload)?;
            let core = context.agent.core();
            let made = answer(core, question).await?;
            made.encode(&context)
        })
    }));
    [(CREATE, create), (FETCH, fetch)]
}

impl RpcAgent {
    /// Calls a method on a worker that keeps the result; returns a reference.
    ///
    /// This returns before the result exists, and blocks only under load, like
    /// [`call`](Self::call). If the function fails, the reference reports the error. The argument
    /// is encoded immediately. The message shares the memory of its tensors, so do not modify that
    /// memory until the value exists.
    ///
    /// # Errors
    ///
    /// Returns errors that are known before the worker replies, such as an unencodable argument,
    /// [`RpcErrorKind::UnknownWorker`], [`RpcErrorKind::PeerLost`], [`RpcErrorKind::Stopping`].
    pub fn remote<'a, Argument, Output>(
        &self,
        to: impl Into<Destination<'a>>,
        method: Method<Argument, Output>,
        argument: &Argument,
    ) -> Result<RRef<Output>, RpcError>
    where
        Argument: Serialize,
        Output: Send + Sync + 'static,
    {
        self.remote_with(CallOptions::default(), to, method, argument)
    }

    /// Calls a method like [`remote`](Self::remote), with options.
    ///
    /// A timeout limits the time until the owner confirms the request, and the running time of the
    /// function, as in PyTorch. The value of a late function is [`RpcErrorKind::Deadline`] for
    /// every user of the reference. The agent's own timeout does not limit the running time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`remote`](Self::remote).
    pub fn remote_with<'a, Argument, Output>(
        &self,
        options: CallOptions,
        to: impl Into<Destination<'a>>,
        method: Method<Argument, Output>,
        argument: &Argument,
    ) -> Result<RRef<Output>, RpcError>
    where
        Argument: Serialize,
        Output: Send + Sync + 'static,
    {
        let core = self.core();
        let within = match options.timeout {
            Timeout::After(limit) => Some(limit),
            Timeout::Default | Timeout::Never => None,
        };
        let member = core.member(&to.into())?;
        let owner = member.holder();
        let named = |error: RpcError| error.with_method(method.name());
        let (argument, forks) = codec::encode_argument(core, &member, argument).map_err(named)?;
        let created = Register::of(core).with(core, |machine, _| machine.create_on(owner));
        let (rref, fork) = match created {
            Ok(ids) => ids,
            Err(why) => {
                codec::not_sent(core, forks);
                return Err(named(why.into()).with_worker(member.info));
            }
        };
        if owner == Register::of(core).me() {
            let deadline = deadline_of(within);
            let reference = RRef::held(core, Handle::Owner(rref), member.info.clone());
            let context = CallContext {
                agent: RpcAgent::borrowed(Arc::clone(core)),
                caller: member.info,
                caller_incarnation: owner.incarnation,
                deadline,
                cancellation: Cancellation::deadline(deadline),
                trace: trace(),
                connection: None,
            };
            let method = (method.number(), method.name());
            make(&context, rref, method, argument, within).map_err(named)?;
            return Ok(reference);
        }
        let reference = RRef::held(core, Handle::User(rref, fork), member.info.clone());
        let head = Head {
            rref,
            fork,
            method: method.number(),
            name: method.name().to_owned(),
            within,
        };
        let payload = Payload {
            body: behind(&head, &argument.body)?,
            parts: argument.parts,
        };
        let begun = core.begin(
            &member,
            method.name(),
            method_hash(CREATE, 1),
            payload,
            options,
        );
        match begun {
            Ok(begun) => watch(core, fork, begun.slot, forks),
            Err(error) => {
                codec::not_sent(core, forks);
                Register::of(core).creation_failed(core, fork, error.clone());
                return Err(named(error));
            }
        }
        Ok(reference)
    }
}

fn behind(head: &Head, argument: &Bytes) -> Result<Bytes, RpcError> {
    let mut body = postcard::to_stdvec(head)
        .map_err(RpcError::internal("cannot serialise the head of the call"))?;
    body.extend_from_slice(argument);
    Ok(BytesMut::from(body.as_slice()).freeze())
}

/// Waker that handles the owner's confirmation without a thread or task.
///
/// This waker usually runs on the thread that reads the confirmation.
struct Watch {
    core: Weak<Core>,
    fork: ForkId,
    slot: Arc<Slot<Answer>>,
    /// References in the argument.
    carried: Vec<ForkId>,
}

fn watch(core: &Arc<Core>, fork: ForkId, slot: Arc<Slot<Answer>>, carried: Vec<ForkId>) {
    let watch = Arc::new(Watch {
        core: Arc::downgrade(core),
        fork,
        slot,
        carried,
    });
    let waker = Waker::from(Arc::clone(&watch));
    if let Poll::Ready(answer) = watch.slot.poll(&mut Context::from_waker(&waker)) {
        watch.answered(answer);
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        if let Some(answer) = self.slot.take() {
            self.answered(answer);
        }
    }
}

impl Watch {
    fn answered(&self, answer: Answer) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        match answer {
            Ok(_) => Register::of(&core).tell(&core, Input::Accepted(self.fork)),
            Err(error) => {
                Register::of(&core).creation_failed(&core, self.fork, error);
                codec::strayed(&core, &self.carried);
            }
        }
    }
}

/// Registers a value on the owner, and starts the function that creates it.
fn create(context: &CallContext, payload: Payload) -> Answer {
    let (head, rest) = postcard::take_from_bytes::<Head>(&payload.body).map_err(|error| {
        let text = format!("cannot deserialise the call for a remote value: {error}");
        RpcError::new(RpcErrorKind::Serialization, text)
    })?;
    let argument = Payload {
        body: payload.body.slice_ref(rest),
        parts: payload.parts,
    };
    let core = context.agent.core();
    let arrived = Register::of(core).with(core, |machine, _| {
        machine.creation_arrived(context.holder(), head.rref, head.fork)
    });
    arrived?;
    // Without a limit, the caller waits only for the confirmation.
    let deadline = deadline_of(head.within);
    let context = CallContext {
        deadline,
        cancellation: Cancellation::deadline(deadline),
        ..context.clone()
    };
    // The value reports errors to the workers that request it. A request may already be waiting.
    drop(make(
        &context,
        head.rref,
        (head.method, &head.name),
        argument,
        head.within,
    ));
    Ok(Payload::default())
}

/// Returns the deadline of a function that has this time from now on.
fn deadline_of(within: Option<Duration>) -> Option<Instant> {
    within.and_then(|within| Instant::now().checked_add(within))
}

fn unknown(core: &Core, method: &str) -> RpcError {
    let text = no_such_method(method, &core.functions.listed());
    RpcError::new(RpcErrorKind::NoSuchMethod, text)
}

fn make(
    context: &CallContext,
    rref: RRefId,
    (method, name): (u64, &str),
    argument: Payload,
    within: Option<Duration>,
) -> Result<(), RpcError> {
    let core = context.agent.core();
    let Some(keep) = Register::of(core).keep(method) else {
        let error = unknown(core, name);
        Register::of(core).made(core, rref, Err(error.clone()));
        return Err(error);
    };
    let deadline = context.deadline;
    let making = keep(context.clone(), argument);
    let kept_by = Arc::clone(core);
    core.executor.spawn(async move {
        let made = match within.zip(deadline) {
            Some((limit, deadline)) => {
                let made = tokio::time::timeout_at(deadline.into(), making).await;
                // A function that notices its cancellation may return a value.
                match made {
                    Ok(made) if Instant::now() < deadline => made,
                    _ => Err(time_is_over(
                        limit,
                        "the function of the reference has not returned",
                    )),
                }
            }
            None => making.await,
        };
        let made = made.map_err(|error| match error.worker {
            None => error.with_worker(kept_by.me.clone()),
            Some(_) => error,
        });
        Register::of(&kept_by).made(&kept_by, rref, made);
    });
    Ok(())
}
