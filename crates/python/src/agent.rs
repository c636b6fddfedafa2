//! Agent of `rdzv-agent` for workers of a Python object (`rdzv.elastic`).
//!
//! ```text
//!   thread that calls run              thread of the agent
//!   Python's four methods  ◄─ Call ──  ProxySupervisor: WorkerSupervisor
//!   polls for signals      ── reply ─► rendezvous, ranks, restarts, exit barrier
//! ```
//!
//! The agent runs on a separate thread. Therefore the calling thread polls for signals at least
//! every 100 ms, even during a rendezvous. The agent's thread never attaches to the interpreter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rdzv_agent::api::{
    DEFAULT_ROLE, ElasticAgent, LaunchConfig, MonitorResult, ProcessFailure, RunError, RunResult,
    SimpleElasticAgent, StartRequest, StopHandle, SupervisorError, Worker, WorkerEntrypoint,
    WorkerGroup, WorkerId, WorkerSpec, WorkerState, WorkerSupervisor,
};
use rdzv_agent::{Cause, Exit, MasterPort};
use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;
use rdzv_lock::Mutex;
use rdzv_store::Store;

use crate::errors::exception;
use crate::interrupt::{SLICE, detach};
use crate::store::store_call;
use crate::store::{Kind, StoreObject};

/// Signal for the end of the run after an exception of a signal handler.
const SIGINT: i32 = 2;

/// Call of one of the four methods, for the thread that has called `run`.
///
/// It returns the exception of the method, if there is one.
type Call = Box<dyn FnOnce(Python<'_>, &Bound<'_, PyAny>) -> Option<PyErr> + Send>;

/// Store, and its Python object.
type Known = (Arc<dyn Store>, Py<StoreObject>);

/// Supervisor that lets the calling thread of `run` call Python.
struct ProxySupervisor(Sender<Call>);

impl ProxySupervisor {
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T, SupervisorError> {
        let gone = || SupervisorError("the caller of the agent has returned".to_owned());
        let (sender, reply) = channel();
        let call: Call = Box::new(move |py, methods| {
            let called = call(py, methods);
            let (answer, raised) = match called {
                Ok(value) => (Ok(value), None),
                Err(error) => (Err(SupervisorError(error.to_string())), Some(error)),
            };
            // The agent waits for the answer.
            let _ = sender.send(answer);
            raised
        });
        self.0.send(call).map_err(|_| gone())?;
        reply.recv().map_err(|_| gone())?
    }
}

impl WorkerSupervisor for ProxySupervisor {
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerId>, SupervisorError> {
        let (group, workers) = (group.clone(), workers.to_vec());
        self.call(move |_, methods| {
            let described = workers.into_iter().map(|worker| {
                let place = worker.ranks;
                (
                    place.local_rank.0,
                    place.rank.0,
                    place.role_rank.0,
                    place.world_size,
                    place.role_world_size,
                    BTreeMap::from_iter(worker.environment),
                )
            });
            let described: Vec<_> = described.collect();
            let ids = methods.call_method1("start", (snapshot(&group), described))?;
            let ids: BTreeMap<u32, String> = ids.extract()?;
            let remote = |(rank, id)| (LocalRank(rank), WorkerId::Remote(id));
            Ok(ids.into_iter().map(remote).collect())
        })
    }

    fn monitor_workers(
        &mut self,
        group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError> {
        // The method returns immediately, so the pause between two calls is here.
        thread::sleep(within);
        let group = group.clone();
        self.call(move |_, methods| {
            found_result(&methods.call_method1("monitor", (snapshot(&group),))?)
        })
    }

    fn stop_workers(
        &mut self,
        group: &WorkerGroup,
        _signal: i32,
        _grace: Duration,
    ) -> Result<(), SupervisorError> {
        let group = group.clone();
        self.call(move |_, methods| {
            methods.call_method1("stop", (snapshot(&group),))?;
            Ok(())
        })
    }

    fn shutdown(&mut self, signal: i32, grace: Duration) {
        // The calling thread keeps an exception of the method.
        let _ = self.call(move |_, methods| {
            methods.call_method1("shutdown", (signal, grace.as_secs_f64()))?;
            Ok(())
        });
    }
}

/// Agent whose workers a Python object starts, monitors and stops.
#[pyclass(frozen, module = "rdzv._rdzv")]
pub(crate) struct Agent {
    /// Agent and its calls, until `run` takes them.
    agent: Mutex<Option<(SimpleElasticAgent<ProxySupervisor>, Receiver<Call>)>>,
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
        let spec = spec_of(settings)?;
        let role = spec.role().to_owned();
        let (sender, calls) = channel();
        let agent = SimpleElasticAgent::new(spec, ProxySupervisor(sender));
        Ok(Self {
            observer: Box::new(agent.observer()),
            stop: agent.stop_handle(),
            agent: Mutex::new(Some((agent, calls))),
            role,
            store: Mutex::new(None),
        })
    }

    /// Runs the agent once, and returns the state and the known failures.
    ///
    /// `methods` has `start`, `monitor`, `stop` and `shutdown`. This thread calls them.
    fn run(&self, py: Python<'_>, methods: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let Some((mut agent, mut calls)) = self.agent.lock().take() else {
            return Err(PyRuntimeError::new_err(
                "an agent can run only once: create a new agent for the next run",
            ));
        };
        let role = self.role.clone();
        let running = thread::Builder::new()
            .name("rdzv-agent".to_owned())
            .spawn(move || agent.run(&role))?;
        let mut raised = None;
        loop {
            let next = &mut calls;
            match detach(py, move || next.recv_timeout(SLICE)) {
                Ok(call) => {
                    if let Some(error) = call(py, methods) {
                        raised.get_or_insert(error);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = py.check_signals() {
                        raised.get_or_insert(error);
                        self.stop.stop(SIGINT);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
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

    /// Returns the current state of the worker group.
    fn snapshot(&self) -> Snapshot {
        snapshot(&(self.observer)())
    }

    /// Returns the store of the round, or None before the first round.
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

/// Failure from Python: rank, local rank, exit code, seconds since 1970, cause.
type Described = (u32, u32, i32, f64, String);

/// Reads the result of a poll of the workers: a state by name, and failures.
///
/// Return values of workers stay in Python.
fn found_result(found: &Bound<'_, PyAny>) -> PyResult<MonitorResult> {
    let (state, failures): (String, Vec<Described>) = found.extract()?;
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
    Ok(RunResult {
        state,
        ..RunResult::failed(failures)
    })
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
/// Missing keys keep the defaults of the crate.
fn spec_of(settings: &Bound<'_, PyDict>) -> PyResult<WorkerSpec> {
    let text = |key: &str| optional::<String>(settings, key);
    let seconds = |key: &str| {
        let duration = |seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| PyValueError::new_err(format!("{key} is {seconds} s")))
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
        builder = builder.exit_barrier_timeout(timeout);
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
