//! Agent of `rdzv-agent` for workers of a Python object (`rdzv.elastic`).
//!
//! ```text
//!   thread that calls run              threads of the agent
//!   methods in Python      ◄─ Call ──  ProxySupervisor: WorkerSupervisor
//!   handler in Python      ◄─ Call ──  ProxyRendezvous: RendezvousBackend
//!   polls for signals      ── reply ─► ranks, restarts, exit barrier
//! ```
//!
//! The agent runs on a separate thread. Therefore the calling thread polls for signals after every
//! 100 ms without a call, even during a rendezvous. The agent's threads attach to the interpreter
//! only in calls of a store that is an object of Python.
//!
//! A method in Python may answer before it returns ([`Reply`]), and run further calls after
//! that ([`Agent::pump`]). So one call of `_initialize_workers` answers a join, and then a start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rdzv_agent::AgentError;
use rdzv_agent::api::{
    DEFAULT_ROLE, ElasticAgent, LaunchConfig, MonitorResult, ProcessFailure, RunError, RunResult,
    SimpleElasticAgent, StartRequest, StopHandle, SupervisorError, Worker, WorkerEntrypoint,
    WorkerGroup, WorkerLocation, WorkerSpec, WorkerState, WorkerSupervisor,
};
use rdzv_agent::config::{MasterPort, RendezvousPlan};
use rdzv_agent::launcher::exchange_ranks;
use rdzv_agent::outcome::{Cause, Exit};
use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank, LocalRank, Rank, RoleInfo};
use rdzv_core::time::Wall;
use rdzv_lock::Mutex;
use rdzv_rendezvous::{
    BackendRegistry, Change, JoiningAgent, Observer, RendezvousBackend, RendezvousError,
    RendezvousInfo, RendezvousParameters,
};
use rdzv_store::{Store, interruptible};

use crate::argument::Object;
use crate::errors::{exception, of_store};
use crate::interrupt::{SLICE, detach, detached, is_to_end};
use crate::store::store_call;
use crate::store::{Kind, StoreObject};

/// Signal for the end of the run after an exception of a signal handler.
const SIGINT: i32 = 2;

/// Call of a method in Python, for the thread that has called `run`.
///
/// It returns the exception of the method, if there is one.
type Call = Box<dyn FnOnce(Python<'_>, &Bound<'_, PyAny>) -> Option<PyErr> + Send>;

/// Sender of calls; `None` is the end of the run.
type Calls = Sender<Option<Call>>;

type Known = (Arc<dyn Store>, Py<StoreObject>);

/// Function that answers a call, at most once.
type Answer = Box<dyn FnOnce(Result<&Bound<'_, PyAny>, String>) -> PyResult<()> + Send>;

/// Answer of a method that continues after it.
#[pyclass(frozen, module = "rdzv._rdzv")]
pub(crate) struct Reply(Mutex<Option<Answer>>);

#[pymethods]
impl Reply {
    /// Answers with the result; later answers have no effect.
    fn __call__(&self, result: &Bound<'_, PyAny>) -> PyResult<()> {
        self.answer(Ok(result))
    }

    /// Answers with a failure.
    fn refuse(&self, reason: String) -> PyResult<()> {
        self.answer(Err(reason))
    }
}

impl Reply {
    fn answer(&self, result: Result<&Bound<'_, PyAny>, String>) -> PyResult<()> {
        let answer = self.0.lock().take();
        answer.map_or(Ok(()), |answer| answer(result))
    }
}

/// Makes the calling thread of `run` call Python, and waits for the reply.
///
/// `call` gets the object with the methods, and the reply. `read` converts the result.
fn ask<T: Send + 'static>(
    calls: &Calls,
    call: impl FnOnce(&Bound<'_, PyAny>, Bound<'_, Reply>) -> PyResult<()> + Send + 'static,
    read: fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> Result<T, String> {
    let gone = || "the caller of the agent has returned".to_owned();
    let (sender, answers) = channel();
    let failed = sender.clone();
    // The agent waits for the answer, or has got one.
    let answer: Answer = Box::new(move |result| {
        let (answer, raised) = match result.map(read) {
            Ok(Ok(value)) => (Ok(value), Ok(())),
            Ok(Err(error)) => (Err(error.to_string()), Err(error)),
            Err(reason) => (Err(reason), Ok(())),
        };
        let _ = sender.send(answer);
        raised
    });
    let call: Call = Box::new(move |py, methods| {
        let called = Bound::new(py, Reply(Mutex::new(Some(answer))));
        let error = called.and_then(|reply| call(methods, reply)).err()?;
        let _ = failed.send(Err(error.to_string()));
        Some(error)
    });
    calls.send(Some(call)).map_err(|_| gone())?;
    answers.recv().map_err(|_| gone())?
}

/// Round of a handler in Python, and the agent's observer of it.
#[derive(Default)]
struct Watched {
    round: u64,
    observer: Option<Observer>,
}

/// Rendezvous of a handler in Python.
struct ProxyRendezvous {
    name: String,
    run_id: RunId,
    shares_store: bool,
    calls: Calls,
    watched: Arc<Mutex<Watched>>,
}

impl ProxyRendezvous {
    fn ask<T: Send + 'static>(
        &self,
        method: &'static str,
        read: fn(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, RendezvousError> {
        let call = move |methods: &Bound<'_, PyAny>, reply: Bound<'_, Reply>| {
            methods.call_method1(method, (reply,)).map(drop)
        };
        ask(&self.calls, call, read).map_err(|reason| {
            let name = &self.name;
            RendezvousError::Argument(format!("the handler of backend {name:?} failed: {reason}"))
        })
    }
}

/// Round of a handler.
///
/// The fields are store, rank, number of nodes, endpoint of the workers' store, and ranks.
type Met = (Arc<dyn Store>, u32, u32, String, u16, (u32, u32, u32, u32));

fn met(result: &Bound<'_, PyAny>) -> PyResult<Met> {
    let (store, rank, nodes, host, port, ranks): (Py<PyAny>, _, _, _, _, _) = result.extract()?;
    let store = StoreObject::of_argument(store.bind(result.py()))?;
    Ok((store, rank, nodes, host, port, ranks))
}

impl RendezvousBackend for ProxyRendezvous {
    fn name(&self) -> &str {
        &self.name
    }

    fn run_id(&self) -> &RunId {
        &self.run_id
    }

    fn join(&mut self, _member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        let (store, rank, world_size, master_addr, master_port, ranks) = self.ask("join", met)?;
        let mut watched = self.watched.lock();
        watched.round += 1;
        Ok(RendezvousInfo {
            round: watched.round,
            store,
            rank: GroupRank(rank),
            world_size,
            assignment: Some(Assignment::from(ranks)),
            replaced: Vec::new(),
            master_addr,
            master_port,
            server: None,
            reserved_port: None,
        })
    }

    fn set_observer(&mut self, observer: Observer) {
        self.watched.lock().observer = Some(observer);
    }

    fn shares_store_with_workers(&self) -> bool {
        self.shares_store
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        self.ask("is_closed", |closed| closed.is_truthy())
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        self.ask("set_closed", |_| Ok(()))
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        self.ask("num_nodes_waiting", |number| number.extract())
    }

    /// Does nothing, because the handler belongs to the caller.
    fn shutdown(&mut self) -> bool {
        true
    }
}

/// Supervisor that lets the calling thread of `run` call Python.
struct ProxySupervisor {
    calls: Calls,
    watched: Arc<Mutex<Watched>>,
}

impl ProxySupervisor {
    fn call(
        &self,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()> + Send + 'static,
    ) -> Result<(), SupervisorError> {
        let call = move |methods: &Bound<'_, PyAny>, reply: Bound<'_, Reply>| {
            call(methods)?;
            reply.get().answer(Ok(methods))
        };
        ask(&self.calls, call, |_| Ok(())).map_err(SupervisorError)
    }
}

impl WorkerSupervisor for ProxySupervisor {
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerLocation>, SupervisorError> {
        let (group, workers) = (group.clone(), workers.to_vec());
        let call = move |methods: &Bound<'_, PyAny>, reply: Bound<'_, Reply>| {
            let described = workers.into_iter().map(|worker| {
                let ranks = worker.ranks;
                (
                    ranks.local_rank.0,
                    ranks.rank.0,
                    ranks.role_rank.0,
                    ranks.world_size,
                    ranks.role_world_size,
                    BTreeMap::from_iter(worker.environment),
                )
            });
            let described: Vec<_> = described.collect();
            methods.call_method1("start", (snapshot(&group), described, reply))?;
            Ok(())
        };
        let read = |ids: &Bound<'_, PyAny>| ids.extract::<BTreeMap<u32, String>>();
        let ids = ask(&self.calls, call, read).map_err(SupervisorError)?;
        let remote = |(rank, id)| (LocalRank(rank), WorkerLocation::Remote(id));
        Ok(ids.into_iter().map(remote).collect())
    }

    fn monitor_workers(
        &mut self,
        group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError> {
        // The method returns immediately, so the pause between two calls is here.
        thread::sleep(within);
        let group = group.clone();
        let call = move |methods: &Bound<'_, PyAny>, reply: Bound<'_, Reply>| {
            let found = methods.call_method1("monitor", (snapshot(&group),))?;
            reply.get().answer(Ok(&found))
        };
        let (found, waiting) = ask(&self.calls, call, found_result).map_err(SupervisorError)?;
        if waiting > 0 {
            let watched = self.watched.lock();
            if let Some(observer) = &watched.observer {
                observer(Change::Membership {
                    round: watched.round,
                    reason: format!("the handler reports {waiting} waiting nodes"),
                });
            }
        }
        Ok(found)
    }

    fn stop_workers(
        &mut self,
        group: &WorkerGroup,
        _signal: i32,
        _shutdown_timeout: Duration,
    ) -> Result<(), SupervisorError> {
        let group = group.clone();
        self.call(move |methods| methods.call_method1("stop", (snapshot(&group),)).map(drop))
    }

    fn shutdown(&mut self, signal: i32, shutdown_timeout: Duration) {
        // The calling thread keeps an exception of the method.
        let arguments = (signal, shutdown_timeout.as_secs_f64());
        let _ = self.call(move |methods| methods.call_method1("shutdown", arguments).map(drop));
    }
}

/// Agent whose workers a Python object starts, monitors and stops.
#[pyclass(frozen, module = "rdzv._rdzv")]
pub(crate) struct Agent {
    /// Agent, until `run` takes it.
    agent: Mutex<Option<SimpleElasticAgent<ProxySupervisor>>>,
    sender: Calls,
    /// Calls for the thread in `run`, which alone reads them.
    calls: Mutex<Receiver<Option<Call>>>,
    observer: Box<dyn Fn() -> WorkerGroup + Send + Sync>,
    stop: StopHandle,
    role: String,
    /// Store of the last requested round.
    store: Mutex<Option<Known>>,
}

#[pymethods]
impl Agent {
    /// Checks the settings of `rdzv.elastic.WorkerSpec` and its rendezvous.
    #[new]
    fn new(settings: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (sender, calls) = channel();
        let supervisor = ProxySupervisor {
            calls: sender.clone(),
            watched: Arc::default(),
        };
        let spec = spec_of(settings, &supervisor)?;
        let role = spec.role().to_owned();
        let agent = SimpleElasticAgent::new(spec, supervisor);
        Ok(Self {
            observer: Box::new(agent.observer()),
            stop: agent.stop_handle(),
            agent: Mutex::new(Some(agent)),
            sender,
            calls: Mutex::new(calls),
            role,
            store: Mutex::new(None),
        })
    }

    /// Runs the agent once, and returns the state and the known failures.
    ///
    /// `methods` has `start`, `monitor`, `stop` and `shutdown`. With a rendezvous handler in
    /// Python, it also has `join`, `is_closed`, `set_closed` and `num_nodes_waiting`. This thread
    /// calls them.
    fn run(&self, py: Python<'_>, methods: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let Some(mut agent) = self.agent.lock().take() else {
            return Err(PyRuntimeError::new_err(
                "an agent can run only once: create a new agent for the next run",
            ));
        };
        let role = self.role.clone();
        let end = End(self.sender.clone());
        let running = thread::Builder::new()
            .name("rdzv-agent".to_owned())
            .spawn(move || {
                let _end = end;
                agent.run(&role)
            })?;
        let mut raised = None;
        loop {
            match self.pump(py, methods) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    raised.get_or_insert(error);
                }
            }
        }
        let joined = detach(py, || running.join());
        if let Some(error) = raised {
            return Err(error);
        }
        match joined {
            Ok(Ok(result)) => Ok(ended(&result)),
            Ok(Err(error)) => Err(run_error(py, &error)),
            Err(_) => Err(PyRuntimeError::new_err("the agent thread panicked")),
        }
    }

    /// Waits for one call of the agent, and runs it.
    ///
    /// Returns False at the end of the run. Also returns after a short time without a call. An
    /// exception of a signal handler stops the agent.
    fn pump(&self, py: Python<'_>, methods: &Bound<'_, PyAny>) -> PyResult<bool> {
        match detach(py, || self.calls.lock().recv_timeout(SLICE)) {
            Ok(Some(call)) => call(py, methods).map_or(Ok(true), Err),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| self.stop.stop(SIGINT))?;
                Ok(true)
            }
            Ok(None) | Err(RecvTimeoutError::Disconnected) => Ok(false),
        }
    }

    /// Exchanges the ranks of workers with the other agents of a round.
    ///
    /// Returns the first rank and the number of ranks, in the job and in the role.
    #[staticmethod]
    fn exchange_ranks(
        py: Python<'_>,
        store: Object<'_>,
        role: String,
        rank: u32,
        local_world_size: u32,
        agents: u32,
    ) -> PyResult<(u32, u32, u32, u32)> {
        let store = StoreObject::of_argument(store)?;
        let us = RoleInfo {
            role,
            rank: GroupRank(rank),
            local_world_size,
        };
        let exchanged = detached(py, || {
            let exchanged = || exchange_ranks(&*store, &us, agents).map_err(Box::new);
            interruptible(is_to_end, exchanged)
        })?;
        exchanged
            .map(Assignment::into)
            .map_err(|error| match *error {
                AgentError::Store(error) => of_store(py, &error),
                error => exception(py, "Error", error.to_string(), None),
            })
    }

    /// Returns the current state of the worker group.
    fn snapshot(&self) -> Snapshot {
        snapshot(&(self.observer)())
    }

    /// Returns the store of the round, or None until ranks are assigned.
    ///
    /// Each round has one store object. The first call of a round connects.
    fn store(&self, py: Python<'_>) -> PyResult<Option<Py<StoreObject>>> {
        let Some(round) = (self.observer)().store else {
            return Ok(None);
        };
        let store = store_call(py, || round.connect())?;
        let object = Py::new(py, StoreObject::new(Arc::clone(&store), Kind::Round))?;
        let mut last = self.store.lock();
        if let Some((known, object)) = &*last
            && Arc::ptr_eq(known, &store)
        {
            return Ok(Some(object.clone_ref(py)));
        }
        let before = last.replace((store, object.clone_ref(py)));
        drop(last);
        // The drop may detach from the interpreter, so it must not happen under the lock.
        drop(before);
        Ok(Some(object))
    }
}

/// Notice that the agent's thread has ended.
struct End(Calls);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

/// Failure from Python: rank, local rank, exit code, seconds since 1970, cause.
type Described = (u32, u32, i32, f64, String);

/// Reads the result of a poll of the workers.
///
/// It has a state by name, failures, and the number of waiting nodes. Return values of workers stay
/// in Python.
fn found_result(found: &Bound<'_, PyAny>) -> PyResult<(MonitorResult, u32)> {
    let (state, failures, waiting): (String, Vec<Described>, u32) = found.extract()?;
    let state = [
        WorkerState::Unknown,
        WorkerState::Init,
        WorkerState::Healthy,
        WorkerState::Unhealthy,
        WorkerState::Stopped,
        WorkerState::Succeeded,
        WorkerState::Failed,
    ]
    .into_iter()
    .find(|known| known.name() == state)
    .ok_or_else(|| PyValueError::new_err(format!("_monitor_workers found the state {state:?}")))?;
    let failures = failures
        .into_iter()
        .map(|(rank, local_rank, exit, seconds, cause)| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the time of a failure is in range"
            )]
            let at = Wall::from_unix_micros((seconds * 1e6) as i64);
            let exit = Exit::from_number(exit);
            let mut failure = ProcessFailure::new(Rank(rank), LocalRank(local_rank), exit, at);
            if !cause.is_empty() {
                failure.cause = Cause::exception(&cause);
            }
            failure
        })
        .collect();
    let found = RunResult {
        state,
        ..RunResult::failed(failures)
    };
    Ok((found, waiting))
}

/// Worker group for Python.
///
/// The fields are state, group rank, number of groups, restarts, and address and port of the store.
/// Each worker has local rank, rank, rank in its role, and the sizes of world and role.
type Snapshot = (
    &'static str,
    Option<u32>,
    Option<u32>,
    u32,
    Option<String>,
    Option<u16>,
    Vec<(u32, i64, i64, i64, i64)>,
);

fn snapshot(group: &WorkerGroup) -> Snapshot {
    let ranks = |worker: &Worker| {
        (
            worker.local_rank.0,
            worker.global_rank_or_unset(),
            worker.role_rank_or_unset(),
            worker.world_size_or_unset(),
            worker.role_world_size_or_unset(),
        )
    };
    (
        group.state.name(),
        group.group_rank.map(|rank| rank.0),
        group.group_world_size,
        group.restart_count,
        group.master_addr().map(str::to_owned),
        group.master_port(),
        group.workers.iter().map(ranks).collect(),
    )
}

/// Result for Python: state, rank of the first failure, and all failures.
///
/// Each failure has rank, local rank, exit code and cause.
type Ended = (&'static str, Option<u32>, Vec<(u32, u32, i32, String)>);

fn ended(result: &RunResult) -> Ended {
    let failures = result.failures.iter().map(|(rank, failure)| {
        let exit = failure.exit.as_number();
        let cause = failure.cause.to_string();
        (rank.0, failure.local_rank.0, exit, cause)
    });
    let first = result.first.map(|rank| rank.0);
    (result.state.name(), first, failures.collect())
}

fn run_error(py: Python<'_>, error: &RunError) -> PyErr {
    match error {
        RunError::Spec(_) | RunError::UnknownRole { .. } => {
            PyValueError::new_err(error.to_string())
        }
        RunError::Agent(agent) => {
            let text = agent.to_string();
            let class = agent.class();
            if class == "ValueError" {
                return PyValueError::new_err(text);
            }
            let known = class.starts_with("Rendezvous") && class.ends_with("Error");
            exception(py, if known { class } else { "Error" }, text, None)
        }
        _ => exception(py, "Error", error.to_string(), None),
    }
}

/// Creates the specification from a dictionary.
///
/// Missing keys get defaults.
fn spec_of(settings: &Bound<'_, PyDict>, supervisor: &ProxySupervisor) -> PyResult<WorkerSpec> {
    let text = |key: &str| optional::<String>(settings, key);
    let seconds = |key: &str| {
        let duration = |seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                PyValueError::new_err(format!("{key} is {seconds} s: pass a finite number from 0"))
            })
        };
        optional(settings, key)?.map(duration).transpose()
    };
    fn refused(error: impl std::fmt::Display) -> PyErr {
        PyValueError::new_err(error.to_string())
    }
    let number = |key: &str| optional::<u32>(settings, key);
    let nodes = number("min_nodes")?.unwrap_or(1);
    let workers = number("local_world_size")?.unwrap_or(1);
    let mut config = LaunchConfig::new(nodes, workers);
    config.max_nodes = number("max_nodes")?.unwrap_or(nodes);
    config.rdzv_backend = text("rdzv_backend")?.unwrap_or(config.rdzv_backend);
    config.rdzv_endpoint = text("rdzv_endpoint")?.unwrap_or_default();
    config.run_id = text("run_id")?.unwrap_or_default();
    config.role = text("role")?.unwrap_or_else(|| DEFAULT_ROLE.to_owned());
    config.local_addr = text("local_addr")?;
    let options = optional::<BTreeMap<String, String>>(settings, "rdzv_config")?;
    config.rdzv_config.extend(options.into_iter().flatten());
    config.max_restarts = number("max_restarts")?.unwrap_or(config.max_restarts);
    config.monitor_interval = seconds("monitor_interval")?.unwrap_or(config.monitor_interval);
    config.shutdown_timeout = seconds("shutdown_timeout")?.unwrap_or(config.shutdown_timeout);
    config.event_log_handler = text("event_log_handler")?.unwrap_or(config.event_log_handler);
    // A library must not install signal handlers in the process of its user.
    config.signals = Vec::new();
    let name = text("name")?.unwrap_or_else(|| "workers".to_owned());
    let builder = config.builder(WorkerEntrypoint::command(name));
    let mut builder = builder.map_err(refused)?;
    if let Some(timeout) = seconds("exit_barrier_timeout")? {
        builder = builder.exit_barrier_timeout(Some(timeout));
    }
    if let Some(shares_store) = optional::<bool>(settings, "use_agent_store")? {
        let (name, run_id) = (config.rdzv_backend.clone(), config.run_id.clone());
        let parameters =
            RendezvousParameters::new(&name, "", &run_id, 1, u32::MAX, BTreeMap::new());
        let parameters = parameters.map_err(refused)?;
        let (calls, watched) = (supervisor.calls.clone(), Arc::clone(&supervisor.watched));
        let constructor = move |parameters: &RendezvousParameters| {
            Ok(Box::new(ProxyRendezvous {
                name: parameters.backend.clone(),
                run_id: RunId::new(&parameters.run_id),
                shares_store,
                calls: calls.clone(),
                watched: Arc::clone(&watched),
            }) as Box<dyn RendezvousBackend>)
        };
        let mut backends = BackendRegistry::default();
        let registered = backends.register(&name, Arc::new(constructor));
        registered.map_err(refused)?;
        builder = builder
            .backends(backends)
            .rendezvous(RendezvousPlan::Dynamic { parameters });
    }
    if let Some(address) = text("master_addr")? {
        builder = builder.master_addr(address);
    }
    if let Some(port) = optional::<u16>(settings, "master_port")? {
        builder = builder.master_port(MasterPort::Fixed(port));
    }
    builder.build().map_err(refused)
}

fn optional<'py, T: FromPyObjectOwned<'py>>(
    settings: &Bound<'py, PyDict>,
    key: &str,
) -> PyResult<Option<T>> {
    match settings.get_item(key)? {
        Some(value) if !value.is_none() => value.extract().map(Some).map_err(|error: T::Error| {
            let error: PyErr = error.into();
            PyValueError::new_err(format!("{key}: {error}"))
        }),
        _ => Ok(None),
    }
}
