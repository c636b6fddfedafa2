//! Calls between workers: the agent below `rdzv.rpc`.
//!
//! No thread of the agent attaches to the interpreter, except in calls of a store that is an object
//! of Python. Arriving calls, and completed futures with a watcher, are put into queues. Threads of
//! Python take them from there. Python manages its threads at the end of the interpreter.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the agent |
//! | `message.rs` | messages |
//! | `request.rs` | an arrived call |
//! | `calls.rs` | arrived calls that wait for a thread |
//! | `device.rs` | tensors on devices |
//! | `future.rs` | a call of this worker |
//! | `reference.rs` | references |
//! | `queue.rs` | completed futures that wait for a thread |
//! | `pickle.rs` | check of the names in a pickle before it is read |
//! | `errors.rs` | failures as exceptions |

mod calls;
mod device;
mod errors;
mod future;
mod message;
mod pickle;
mod queue;
mod reference;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rdzv_cuda::{Cuda, CudaLimits};
use rdzv_rpc::options::Keywords;
use rdzv_rpc::{
    Arena, CallContext, CallOptions, Destination, Methods, RemoteError, Responder, RpcAgent,
    RpcError, RpcErrorKind, RpcOptions, Timeout, WorkerId, WorkerInfo, deferred, kept,
};
use rdzv_store::interruptible;
use tokio::sync::oneshot;

use self::calls::{Calls, Taken};
use self::device::DeviceTensor;
use self::errors::of_rpc;
use self::future::{Pending, Room, RpcFuture};
use self::message::{CALL, Call, Content, REMOTE, Reply, VALUE};
use self::queue::Queue;
use self::reference::{Kept, RpcReference};
use self::request::{Arrived, Caller, RpcRequest};
use crate::argument::Object;
use crate::handle::{Ending, Handle};
use crate::interrupt::{SLICE, detach, detached, is_to_end, on_thread};
use crate::memory::{ArenaBlock, Received, TensorMemory};
use crate::store::StoreObject;
use crate::timeout::{FOREVER, timeout};

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AgentObject>()?;
    module.add_class::<RpcFuture>()?;
    module.add_class::<RpcReference>()?;
    module.add_class::<RpcRequest>()?;
    module.add_class::<Received>()?;
    module.add_class::<ArenaObject>()?;
    module.add_class::<ArenaBlock>()?;
    module.add_class::<TensorMemory>()?;
    module.add_class::<DeviceTensor>()?;
    module.add_function(wrap_pyfunction!(pickle::pickle_globals, module)?)
}

/// Maximum time between two checks for room for a call.
const ROOM: Duration = Duration::from_millis(10);

/// Maximum time that a shutdown waits.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Agent, with the queues of its threads.
struct Inner {
    agent: RpcAgent,
    cuda: Cuda,
    jobs: Arc<Calls>,
    done: Arc<Queue<Py<PyAny>>>,
    room: Arc<Room>,
    _ending: Ending,
}

/// Agent of a worker. Its errors are those of `rdzv.rpc._errors`.
#[pyclass(frozen, name = "RpcAgent", module = "rdzv._rdzv")]
pub(crate) struct AgentObject(Handle<Arc<Inner>>);

/// Worker, by its name or id.
#[derive(FromPyObject)]
enum To {
    Id(u32),
    Name(String),
}

impl To {
    fn destination(&self) -> Destination<'_> {
        match self {
            Self::Id(id) => Destination::Id(WorkerId(*id)),
            Self::Name(name) => Destination::Name(name),
        }
    }
}

/// Reads the timeout of a call.
///
/// None means the agent's timeout, and infinity means no timeout.
fn call_timeout(value: Option<Object<'_>>) -> PyResult<Timeout> {
    Ok(match timeout("timeout", value)? {
        None => Timeout::Default,
        Some(FOREVER) => Timeout::Never,
        Some(time) => Timeout::After(time),
    })
}

fn methods(jobs: &Arc<Calls>) -> Methods {
    let (calls, keeps, sends) = (Arc::clone(jobs), Arc::clone(jobs), Arc::clone(jobs));
    let stopping = || RemoteError {
        type_name: "RuntimeError".to_owned(),
        message: "the worker is shutting down".to_owned(),
        ..RemoteError::default()
    };
    // A call that no thread takes fails by its drop.
    let push = |jobs: &Calls, context, call, value, caller| {
        jobs.push(Arrived::new(context, call, value, caller));
    };
    let call = move |context: CallContext, call: Call, responder: Responder<Reply>| {
        push(&calls, context, Some(call), None, Caller::Call(responder));
    };
    let remote = move |context: CallContext, call: Call| {
        let (sender, arrived) = oneshot::channel();
        push(&keeps, context, Some(call), None, Caller::Keep(sender));
        async move { arrived.await.unwrap_or_else(|_| Err(stopping())) }
    };
    let value = move |context: CallContext, value: Arc<Kept>, (): ()| {
        let (sender, arrived) = oneshot::channel();
        push(&sends, context, None, Some(value), Caller::Send(sender));
        async move { arrived.await.unwrap_or_else(|_| Err(stopping())) }
    };
    Methods::new()
        .with(CALL, deferred(call))
        .with(REMOTE, kept(remote))
        .with(VALUE, value)
}

/// Call that Python makes.
///
/// The fields are callee, name of the function, pickle, memory, references, time limit, and the
/// call in which this one is made.
#[derive(FromPyObject)]
struct Asked<'py>(
    To,
    String,
    Bound<'py, PyBytes>,
    Vec<Bound<'py, PyAny>>,
    Vec<PyRef<'py, RpcReference>>,
    Option<Bound<'py, PyAny>>,
    Option<PyRef<'py, RpcRequest>>,
);

/// Call without objects of Python.
struct Outgoing {
    to: To,
    call: Call,
    timeout: Timeout,
    context: Option<CallContext>,
}

impl Asked<'_> {
    fn outgoing(self) -> PyResult<Outgoing> {
        let Self(to, function, body, parts, references, timeout, request) = self;
        let timeout = call_timeout(timeout.as_ref())?;
        let content = Reply::new(&body, &parts, &references)?;
        Ok(Outgoing {
            to,
            call: Call { function, content },
            timeout,
            context: request.map(|request| request.context().clone()),
        })
    }
}

/// Runs `make` inside the call that this thread executes, if there is one.
fn inside<T>(context: Option<&CallContext>, make: impl FnOnce() -> T) -> T {
    match context {
        Some(context) => context.inside(make),
        None => make(),
    }
}

impl Inner {
    /// Stops everything immediately.
    fn stop(&self) {
        self.jobs.close();
        self.agent.stop();
        self.done.close();
    }

    fn pending(&self, call: rdzv_rpc::RpcFuture<Reply>) -> Arc<Pending> {
        Pending::start(call, Arc::clone(&self.room), Arc::clone(&self.done))
    }

    /// Begins a call as soon as there is room for it.
    ///
    /// `None` if the wait of this thread has ended.
    fn begin(&self, outgoing: &Outgoing) -> Option<rdzv_rpc::RpcFuture<Reply>> {
        let begun = Instant::now();
        let options = CallOptions::new().timeout(outgoing.timeout).refuse_excess();
        loop {
            let (to, call) = (outgoing.to.destination(), &outgoing.call);
            let make = || self.agent.call_with(options, to, CALL, call);
            let mut future = inside(outgoing.context.as_ref(), make);
            if !future.is_done() {
                return Some(future);
            }
            let time_is_over = match outgoing.timeout {
                Timeout::After(time) => begun.elapsed() >= time,
                _ => false,
            };
            match future.wait_for(Duration::ZERO) {
                Err(error) if error.kind == RpcErrorKind::Overloaded && !time_is_over => {}
                _ => return Some(future),
            }
            self.room.wait(ROOM);
            if is_to_end() {
                return None;
            }
        }
    }
}

/// Waits for a call in slices; `None` if the wait of this thread has ended.
fn wait_for_call(mut future: rdzv_rpc::RpcFuture<Reply>) -> Option<Result<Reply, RpcError>> {
    loop {
        if !future.is_done() {
            // This ends with the slice or with the call.
            drop(future.wait_for(SLICE));
        }
        if future.is_done() {
            return Some(future.wait());
        }
        if is_to_end() {
            future.cancel();
            return None;
        }
    }
}

#[pymethods]
impl AgentObject {
    #[new]
    fn new(
        py: Python<'_>,
        name: String,
        rank: Option<u32>,
        world_size: Option<u32>,
        store: Option<Object<'_>>,
        options: &str,
        cuda: (u32, usize),
    ) -> PyResult<Self> {
        let words: Keywords = serde_json::from_str(options)
            .map_err(|error| PyValueError::new_err(format!("invalid options: {error}")))?;
        let options = RpcOptions::from_words(&words).map_err(|error| of_rpc(py, &error))?;
        let jobs = Arc::new(Calls::new(options.num_worker_threads as usize));
        // The driver is loaded for the first tensor.
        let (devices, pool) = cuda;
        let limits = CudaLimits {
            pool,
            ..CudaLimits::default()
        };
        let cuda = Cuda::new(devices, limits);
        let mut builder = RpcAgent::builder(name)
            .world_size(world_size)
            .device_backend(Arc::new(cuda.clone()))
            .methods(methods(&jobs))
            .options(options);
        if let Some(rank) = rank {
            builder = builder.rank(rank);
        }
        if let Some(store) = store {
            builder = builder.store(StoreObject::of_argument(store)?);
        }
        let connected = detached(py, || interruptible(is_to_end, || builder.connect()))?;
        let agent = connected.map_err(|error| of_rpc(py, &error))?;
        let inner = Arc::new_cyclic(|inner| Inner {
            agent,
            cuda,
            jobs,
            done: Arc::default(),
            room: Arc::default(),
            _ending: Ending::of(inner, Inner::stop),
        });
        Ok(Self(Handle::new("RPC agent", inner)))
    }

    /// Waits for a call of another worker.
    ///
    /// None if the agent has stopped. The second value is True unless the call is nested. The
    /// argument is this value of the thread's previous call. The third value is True if no other
    /// thread waits.
    fn next_request(
        &self,
        py: Python<'_>,
        was_plain: bool,
    ) -> PyResult<Option<(RpcRequest, bool, bool)>> {
        let jobs = Arc::clone(&self.0.get()?.jobs);
        let next = jobs.next(py, was_plain)?;
        Ok(next.map(
            |Taken {
                 arrived,
                 is_plain,
                 is_last,
             }| { (RpcRequest::new(arrived), is_plain, is_last) },
        ))
    }

    /// Begins a wait inside a call.
    ///
    /// The second argument is True on a thread for calls.
    fn begin_wait(
        &self,
        py: Python<'_>,
        request: PyRef<'_, RpcRequest>,
        on_thread: bool,
    ) -> PyResult<()> {
        let inner = self.0.get()?;
        let (context, jobs) = (request.context(), &inner.jobs);
        jobs.begin_wait(context.trace(), on_thread).map_err(|waits| {
            let text = format!(
                "{} cannot wait for another call: all its threads wait for calls, {waits} of them \
                 inside the chain of calls in which {} has called {}; the calls are nested too \
                 deeply, or call each other in a cycle\nhelp: raise num_worker_threads: 16 \
                 times as many calls, and at least 256, can be nested on a worker",
                inner.agent.me().name,
                context.caller().name,
                request.name(),
            );
            of_rpc(py, &RpcError::new(RpcErrorKind::Overloaded, text))
        })
    }

    /// Ends a wait inside a call.
    fn end_wait(&self, request: PyRef<'_, RpcRequest>, on_thread: bool) {
        // A closed agent has no calls left.
        if let Ok(inner) = self.0.get() {
            let trace = request.context().trace();
            inner.jobs.end_wait(trace, on_thread);
        }
    }

    /// Returns the maximum number of threads for calls, nested ones included.
    #[staticmethod]
    fn most_threads(num_worker_threads: usize) -> usize {
        calls::most_threads(num_worker_threads)
    }

    /// Waits for a future whose call has ended.
    fn next_done(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>, bool)>> {
        let done = Arc::clone(&self.0.get()?.done);
        done.next(py)
    }

    /// Ends the waits of the threads.
    fn close_queues(&self) -> PyResult<()> {
        let inner = self.0.get()?;
        inner.jobs.close();
        inner.done.close();
        Ok(())
    }

    /// Calls a function, and waits for its result.
    #[pyo3(signature = (*call))]
    fn call_sync<'py>(&self, py: Python<'py>, call: Asked<'py>) -> PyResult<Content<'py>> {
        let inner = self.0.get()?;
        let outgoing = call.outgoing()?;
        let result = detached(py, || {
            let result = wait_for_call(inner.begin(&outgoing)?);
            inner.room.notify();
            result
        })?;
        match result.unwrap_or_else(|| Err(given_up())) {
            Ok(reply) => reply.into_content(py),
            Err(error) => Err(of_rpc(py, &error)),
        }
    }

    /// Calls a function.
    #[pyo3(signature = (*call))]
    fn call_async(&self, py: Python<'_>, call: Asked<'_>) -> PyResult<RpcFuture> {
        let inner = self.0.get()?;
        let outgoing = call.outgoing()?;
        let begun = detached(py, || inner.begin(&outgoing))?;
        let begun = begun.ok_or_else(|| of_rpc(py, &given_up()))?;
        Ok(RpcFuture::new(detach(py, || inner.pending(begun))))
    }

    /// Calls a function, whose result stays at the callee.
    #[pyo3(signature = (*call))]
    fn remote(&self, py: Python<'_>, call: Asked<'_>) -> PyResult<RpcReference> {
        let inner = self.0.get()?;
        let outgoing = call.outgoing()?;
        let options = CallOptions::new().timeout(outgoing.timeout);
        let made = detached(py, || {
            let (to, call) = (outgoing.to.destination(), &outgoing.call);
            let make = || inner.agent.remote_with(options, to, REMOTE, call);
            inside(outgoing.context.as_ref(), make)
        })?;
        made.map(RpcReference::new)
            .map_err(|error| of_rpc(py, &error))
    }

    /// Creates a reference to an object of this worker.
    fn own(&self, value: Py<PyAny>, py: Python<'_>) -> PyResult<RpcReference> {
        let inner = self.0.get()?;
        let made = rdzv_rpc::RRef::new_local(&inner.agent, Kept(value));
        made.map(RpcReference::new)
            .map_err(|error| of_rpc(py, &error))
    }

    /// Requests a copy of the object from the owner of a reference.
    fn fetch(
        &self,
        reference: PyRef<'_, RpcReference>,
        timeout: Option<Object<'_>>,
        request: Option<PyRef<'_, RpcRequest>>,
    ) -> PyResult<RpcFuture> {
        let inner = self.0.get()?;
        let (rref, timeout) = (reference.rref()?, call_timeout(timeout)?);
        let context = request.as_ref().map(|request| request.context());
        let call = inside(context, || rref.rpc_async(VALUE, &(), timeout));
        Ok(RpcFuture::new(inner.pending(call)))
    }

    /// Returns memory of another library on a device, for a message.
    ///
    /// The last argument is the handle of the stream that writes the memory.
    fn device_tensor(
        &self,
        owner: Py<PyAny>,
        memory: (u32, u64, usize),
        stream: Option<u64>,
    ) -> PyResult<DeviceTensor> {
        let made = DeviceTensor::import(&self.0.get()?.cuda, memory, stream, owner);
        made.map_err(|error| PyValueError::new_err(format!("rpc: {error}")))
    }

    /// Returns the indices of the devices that messages of this worker use.
    #[getter]
    fn devices(&self) -> PyResult<Vec<u32>> {
        let devices = self.0.get()?.agent.devices();
        Ok(devices.iter().filter_map(|device| device.index()).collect())
    }

    /// Returns name and id of this worker.
    #[getter]
    fn me(&self) -> PyResult<(String, u32)> {
        let me = self.0.get()?;
        Ok(named(me.agent.me()))
    }

    /// Returns name and id of a worker.
    fn worker(&self, py: Python<'_>, which: To) -> PyResult<(String, u32)> {
        let found = self.0.get()?.agent.worker(which.destination());
        found
            .map(|worker| named(&worker))
            .map_err(|error| of_rpc(py, &error))
    }

    /// Returns names and ids of all workers, by id.
    fn workers(&self) -> PyResult<Vec<(String, u32)>> {
        let inner = self.0.get()?;
        Ok(inner.agent.workers().iter().map(named).collect())
    }

    /// `True` if no worker joins or leaves the group.
    #[getter]
    fn is_static(&self) -> PyResult<bool> {
        Ok(self.0.get()?.agent.is_static_group())
    }

    /// Returns the default timeout of calls in seconds; infinity for no limit.
    #[getter]
    fn timeout(&self) -> PyResult<f64> {
        Ok(match self.0.get()?.agent.timeout() {
            Timeout::After(time) => time.as_secs_f64(),
            _ => f64::INFINITY,
        })
    }

    fn set_timeout(&self, py: Python<'_>, timeout: Object<'_>) -> PyResult<()> {
        let timeout = call_timeout(Some(timeout))?;
        let set = self.0.get()?.agent.set_timeout(timeout);
        set.map_err(|error| of_rpc(py, &error))
    }

    /// Returns the counters, the connections and facts about the devices.
    fn traffic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.0.get()?;
        let traffic = detach(py, || inner.agent.traffic());
        let references = inner.agent.references();
        let dict = PyDict::new(py);
        for (key, value) in [
            ("calls", traffic.calls),
            ("failures", traffic.failures),
            ("served", traffic.served),
            ("in_flight", traffic.in_flight),
            ("running", traffic.running),
            ("connections", traffic.connections),
            ("num_owner_rrefs", references.num_owner_rrefs as u64),
            ("num_forks", references.num_forks as u64),
            ("num_pending_users", references.num_pending_users as u64),
            ("num_pending_futures", references.num_pending_futures as u64),
        ] {
            dict.set_item(key, value)?;
        }
        let peers = PyDict::new(py);
        for peer in traffic.peers {
            peers.set_item(
                peer.worker.name.as_str(),
                (peer.transport, peer.reason, peer.reads_memory),
            )?;
        }
        dict.set_item("peers", peers)?;
        dict.set_item("devices", inner.agent.device_facts())?;
        Ok(dict)
    }

    /// Shuts the agent down, gracefully within this time, or immediately.
    ///
    /// Another thread shuts the agent down, so that an exception of a signal handler can end the
    /// wait. The agent then stops immediately.
    fn shutdown(&self, py: Python<'_>, graceful: bool, within: Option<Object<'_>>) -> PyResult<()> {
        let within = timeout("timeout", within)?.unwrap_or(FOREVER).min(LONGEST);
        let inner = self.0.get()?;
        let ends = Arc::clone(&inner);
        let ended = on_thread(py, "rdzv-shutdown", move || {
            if graceful {
                ends.agent.shutdown(within)
            } else {
                ends.agent.stop();
                Ok(())
            }
        });
        detach(py, || inner.stop());
        drop(self.0.close(py));
        match ended? {
            Some(Err(error)) => Err(of_rpc(py, &error)),
            _ => Ok(()),
        }
    }
}

fn named(worker: &WorkerInfo) -> (String, u32) {
    (worker.name.to_string(), worker.id.0)
}

fn given_up() -> RpcError {
    RpcError::new(
        RpcErrorKind::Cancelled,
        "the wait for the call was cancelled",
    )
}

/// Memory that calls share with other workers of the host without a copy.
#[pyclass(frozen, name = "RpcArena", module = "rdzv._rdzv")]
pub(crate) struct ArenaObject(Handle<Arena>);

#[pymethods]
impl ArenaObject {
    #[new]
    fn new(bytes: usize) -> PyResult<Self> {
        let arena = Arena::new(bytes).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(Handle::new("Arena", arena)))
    }

    #[getter]
    fn free(&self) -> PyResult<usize> {
        Ok(self.0.get()?.free())
    }

    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        Ok(self.0.get()?.capacity())
    }

    /// Returns a block of this many bytes; None if the arena has no room for it.
    fn allocate(&self, bytes: usize) -> PyResult<Option<ArenaBlock>> {
        Ok(self.0.get()?.allocate(bytes).map(ArenaBlock::new))
    }
}
