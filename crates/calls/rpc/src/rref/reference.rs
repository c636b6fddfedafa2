//! Public handle to a value on some worker.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::rref::{Fetch, Handle};
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::kept::Kept;
use super::question::{self, QUESTION_OVER, fetch_method};
use super::register::{Held, Register};
use super::value_method::ValueMethod;
use crate::error::{RpcError, RpcErrorKind};
use crate::message::{deserialize_reference, serialize_reference};
use crate::runtime::call::{CallOptions, Timeout};
use crate::runtime::core::{Core, RpcAgent};
use crate::runtime::future::RpcFuture;
use crate::runtime::method::Method;
use crate::service::code_kind::{CodeKind, code_kind};

/// Reference to a value of type `T` that stays on its owner.
///
/// The value lives until the last reference to it on any worker is dropped, or the owner's agent
/// stops. To pass a reference to another worker, put it into the argument or the result of a call.
/// Clones are cheap, because they share one state.
pub struct RRef<T> {
    held: Arc<Held>,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for RRef<T> {
    fn clone(&self) -> Self {
        Self {
            held: Arc::clone(&self.held),
            value: PhantomData,
        }
    }
}

impl<T: Send + Sync + 'static> RRef<T> {
    /// Creates a reference to a local value that other workers can copy.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Stopping`] if the agent has stopped.
    pub fn new(agent: &RpcAgent, value: T) -> Result<Self, RpcError>
    where
        T: Serialize,
    {
        Self::of(agent, Kept::new(value))
    }

    /// Creates a reference to a local value that cannot be sent.
    ///
    /// Other workers use the value through [`ValueMethod`]s.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Stopping`] if the agent has stopped.
    pub fn new_local(agent: &RpcAgent, value: T) -> Result<Self, RpcError> {
        Self::of(agent, Kept::only_here(value))
    }

    fn of(agent: &RpcAgent, value: Kept) -> Result<Self, RpcError> {
        let core = agent.core();
        let rref = Register::of(core).own(core, value)?;
        Ok(Self::held(core, Handle::Owner(rref), core.me.clone()))
    }

    pub(super) fn held(core: &Arc<Core>, handle: Handle, owner: WorkerInfo) -> Self {
        Self {
            held: Arc::new(Held {
                core: Arc::clone(core),
                handle,
                owner,
                type_name: type_name::<T>().into(),
            }),
            value: PhantomData,
        }
    }

    /// `true` if this worker is the owner of the value.
    pub fn is_owner(&self) -> bool {
        matches!(self.held.handle, Handle::Owner(_))
    }

    /// Returns the worker that owns the value.
    pub fn owner(&self) -> &WorkerInfo {
        &self.held.owner
    }

    /// Returns the name of the worker that owns the value.
    pub fn owner_name(&self) -> &str {
        self.held.owner.name.as_str()
    }

    /// `true` on the owner, and once the owner has confirmed this reference.
    ///
    /// The function that creates the value may still be running.
    pub fn confirmed_by_owner(&self) -> bool {
        let Handle::User(_, fork) = self.held.handle else {
            return true;
        };
        let core = &self.held.core;
        let user = Register::of(core).with(core, |machine, _| machine.user(fork));
        user.is_some_and(|user| user.confirmed)
    }

    fn question(&self, operation: &'static str) -> Result<(&Arc<Core>, Fetch), RpcError> {
        let core = &self.held.core;
        let handle = self.held.handle;
        let asked = Register::of(core).with(core, |machine, _| machine.question(handle, operation));
        let question = asked.map_err(|why| match handle {
            Handle::User(_, fork) => Register::of(core)
                .why(fork, &why)
                .with_worker(self.owner().clone()),
            Handle::Owner(_) => why.into(),
        })?;
        Ok((core, question))
    }

    /// Returns the value on the owner, or a copy of it on any other worker.
    ///
    /// This blocks until the value exists.
    ///
    /// # Errors
    ///
    /// Returns the error of the function that should have created the value, on every call;
    /// [`RpcErrorKind::Deadline`] after the timeout; [`RpcErrorKind::PeerLost`] if the owner is
    /// lost. [`RpcErrorKind::InvalidArgument`] in an async function that serves a call, unless this
    /// worker already has the value; such a function must await [`fetch`](Self::fetch) instead.
    pub fn to_here(&self, timeout: Timeout) -> Result<Arc<T>, RpcError>
    where
        T: DeserializeOwned,
    {
        if self.is_owner() {
            return self.local(timeout, "to_here()");
        }
        let (core, question) = self.question("to_here()")?;
        self.ask(core, &question, timeout).wait().map(Arc::new)
    }

    /// Returns the value like [`to_here`](Self::to_here), without blocking.
    ///
    /// # Panics
    ///
    /// Panics on the owner if it is polled outside of a Tokio runtime, unless there is no timeout.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`to_here`](Self::to_here), except that async functions may call this.
    pub async fn fetch(&self, timeout: Timeout) -> Result<Arc<T>, RpcError>
    where
        T: DeserializeOwned,
    {
        let (core, question) = self.question("to_here()")?;
        if self.is_owner() {
            let limit = timeout.limit(|| core.timeout())?;
            let answer = question::answer(core, question);
            let made = match limit {
                None => answer.await,
                Some(limit) => tokio::time::timeout(limit, answer)
                    .await
                    .unwrap_or_else(|_| Err(over(limit))),
            };
            return made?.get();
        }
        self.ask(core, &question, timeout).await.map(Arc::new)
    }

    fn ask(&self, core: &Arc<Core>, question: &Fetch, timeout: Timeout) -> RpcFuture<T>
    where
        T: DeserializeOwned,
    {
        let agent = RpcAgent::borrowed(Arc::clone(core));
        let options = CallOptions::new().timeout(timeout);
        agent.call_with(options, self.owner(), fetch_method::<T>(), question)
    }

    /// Returns the value itself, on the owner. This blocks until the value exists.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`] on any other worker, and in an async function if the value
    /// does not exist yet. [`RpcErrorKind::Deadline`] after the agent's timeout. Otherwise the
    /// error of the function that should have created the value.
    pub fn local_value(&self) -> Result<Arc<T>, RpcError> {
        self.local(Timeout::Default, "local_value()")
    }

    /// Returns the value like [`local_value`](Self::local_value), within a timeout.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`local_value`](Self::local_value), with this timeout.
    pub fn local_value_within(&self, timeout: Timeout) -> Result<Arc<T>, RpcError> {
        self.local(timeout, "local_value()")
    }

    fn local(&self, timeout: Timeout, operation: &'static str) -> Result<Arc<T>, RpcError> {
        let (core, question) = self.question(operation)?;
        if !self.is_owner() {
            let text = format!(
                "For {}, can't call localValue() on user {}. Call it on owner {}",
                self.held.handle,
                core.me,
                self.owner()
            );
            return Err(RpcError::invalid(text));
        }
        let (fetch, answer) = Register::of(core).ask(core, question);
        if let Some(made) = answer.take() {
            return made?.get();
        }
        if code_kind() == CodeKind::Async {
            Register::of(core).no_answer(core, question.rref, fetch);
            let text = "an async function must not block: await RRef::fetch";
            return Err(RpcError::invalid(text));
        }
        let limit = timeout.limit(|| core.timeout())?;
        answer.park(limit.map(|limit| Instant::now() + limit));
        let Some(made) = answer.take() else {
            Register::of(core).no_answer(core, question.rref, fetch);
            return Err(over(limit.unwrap_or_default()));
        };
        made?.get()
    }

    /// Calls a method on the value at its owner, in one round trip.
    pub fn rpc_async<Argument, Output>(
        &self,
        method: ValueMethod<T, Argument, Output>,
        argument: &Argument,
        timeout: Timeout,
    ) -> RpcFuture<Output>
    where
        Argument: Serialize,
        Output: DeserializeOwned + Send + 'static,
    {
        let core = &self.held.core;
        let agent = RpcAgent::borrowed(Arc::clone(core));
        match self.question("rpc_async()") {
            Err(error) => RpcFuture::ready(Arc::clone(core), Err(error)),
            Ok((_, question)) => {
                let options = CallOptions::new().timeout(timeout);
                let asked: Method<(Fetch, &Argument), Output> = method.wire();
                agent.call_with(options, self.owner(), asked, &(question, argument))
            }
        }
    }

    /// Calls a method on the value at its owner, and waits for the result.
    ///
    /// # Errors
    ///
    /// Returns the errors of any call; [`RpcErrorKind::PeerLost`] if the owner is lost; the error
    /// of the function that should have created the value.
    pub fn rpc_sync<Argument, Output>(
        &self,
        method: ValueMethod<T, Argument, Output>,
        argument: &Argument,
        timeout: Timeout,
    ) -> Result<Output, RpcError>
    where
        Argument: Serialize,
        Output: DeserializeOwned + Send + 'static,
    {
        self.rpc_async(method, argument, timeout).wait()
    }

    /// Calls a method on the value at its owner, which also keeps the result.
    ///
    /// # Errors
    ///
    /// Returns errors that are known before the owner replies. The returned reference reports later
    /// errors.
    pub fn remote<Argument, Output>(
        &self,
        method: ValueMethod<T, Argument, Output>,
        argument: &Argument,
    ) -> Result<RRef<Output>, RpcError>
    where
        Argument: Serialize,
        Output: Send + Sync + 'static,
    {
        let (core, question) = self.question("remote()")?;
        let asked: Method<(Fetch, &Argument), Output> = method.wire();
        let agent = RpcAgent::borrowed(Arc::clone(core));
        agent.remote(self.owner(), asked, &(question, argument))
    }
}

fn over(limit: Duration) -> RpcError {
    let text = format!("{QUESTION_OVER} within {} s", limit.as_secs_f64());
    RpcError::new(RpcErrorKind::Deadline, text)
}

impl<T> fmt::Display for RRef<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.handle.fmt(formatter)
    }
}

impl<T> fmt::Debug for RRef<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.held.handle, self.held.owner)
    }
}

/// Fails outside of a message.
impl<T> Serialize for RRef<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_reference(self.held.clone(), serializer)
    }
}

/// Fails outside of a message.
impl<'de, T: 'static> Deserialize<'de> for RRef<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let held = deserialize_reference(deserializer)?
            .downcast::<Held>()
            .map_err(|_| de::Error::custom("it is not a remote reference"))?;
        let wanted = type_name::<T>();
        if &*held.type_name != wanted {
            let is = &held.type_name;
            let text = format!("the remote reference is to a {is}, not to a {wanted}");
            return Err(de::Error::custom(text));
        }
        Ok(Self {
            held,
            value: PhantomData,
        })
    }
}
