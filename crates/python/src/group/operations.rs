//! Operations of a group: each checks its arguments, and then moves memory.

use std::sync::atomic::Ordering;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use rdzv_collective::{CollectiveError, Element, GroupOptions, PointToPoint, ProcessGroup, Work};
use rdzv_core::quantity::count;
use rdzv_store::interruptible;

use super::arguments::{Arrays, no_overlap, one_sided, reduce_op, rows, splits, tag_argument};
use super::errors::of_group;
use super::work::{Outcome, as_bytes, finish};
use super::{NativeGroup, NativeWork, Shared, callbacks, rank_argument, signals};
use crate::argument::Object;
use crate::interrupt::{detach, is_to_end};
use crate::memory::{Access, Memory, typed};
use crate::store::StoreObject;

type Call = PyResult<Option<NativeWork>>;

/// Last arguments of an operation: its time limit, and `async_`.
pub(super) struct Mode<'py> {
    pub(super) py: Python<'py>,
    pub(super) limit: Option<Bound<'py, PyAny>>,
    pub(super) is_async: bool,
}

impl<'py> Mode<'py> {
    fn here(py: Python<'py>, limit: Option<Bound<'py, PyAny>>) -> Self {
        Self {
            py,
            limit,
            is_async: false,
        }
    }
}

/// Result of an operation, or its work.
#[derive(IntoPyObject)]
enum Ended<T> {
    Now(T),
    Later(NativeWork),
}

impl<T> Ended<T> {
    fn of(result: Result<Outcome, NativeWork>, read: impl FnOnce(Outcome) -> T) -> Self {
        match result {
            Ok(outcome) => Self::Now(read(outcome)),
            Err(work) => Self::Later(work),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Mode<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (limit, is_async) = object.extract()?;
        let py = object.py();
        Ok(Self {
            py,
            limit,
            is_async,
        })
    }
}

#[pymethods]
impl NativeGroup {
    /// Joins a group, and returns when all ranks have joined.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "those of the call in Python")]
    fn new(
        py: Python<'_>,
        store: Object<'_>,
        rank: i64,
        world_size: i64,
        name: String,
        timeout: Object<'_>,
        epoch: i64,
        address: Option<&str>,
    ) -> PyResult<Self> {
        let world_size = u32::try_from(world_size).ok().filter(|size| *size > 0);
        let world_size = world_size
            .ok_or_else(|| PyValueError::new_err("world_size is not a positive number of ranks"))?;
        let rank = rank_argument("rank", rank, world_size)?;
        let epoch = u64::try_from(epoch).map_err(|_| {
            PyValueError::new_err(format!("epoch is {epoch}: it must be 0 or more"))
        })?;
        let address = address
            .map(|address| {
                address.parse().map_err(|_| {
                    PyValueError::new_err(format!("address {address:?} is not an IP address"))
                })
            })
            .transpose()?;
        let limit = crate::timeout::timeout("timeout", Some(timeout))?;
        let timeout = limit
            .ok_or_else(|| PyValueError::new_err("timeout is None: pass a number of seconds"))?;
        let options = GroupOptions {
            name,
            epoch,
            timeout,
            address,
            ..GroupOptions::default()
        };
        let store = StoreObject::of_argument(store)?;
        // Ctrl-C ends the wait for the other ranks.
        let joined = signals::run(py, || {
            interruptible(is_to_end, || {
                ProcessGroup::with_options(&*store, rank, world_size, &options)
            })
        })?;
        let mut group = joined.map_err(|error| of_group(py, &error, "join", rank))?;
        group.watch(signals::is_raised);
        Ok(Self(Shared::of(group, rank, world_size, options)))
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank
    }

    #[getter]
    fn world_size(&self) -> u32 {
        self.0.world_size
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// Returns the number of collective operations that were called.
    #[getter]
    fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn address(&self) -> Option<String> {
        self.0.address.map(|address| address.to_string())
    }

    #[getter]
    fn timeout(&self) -> f64 {
        crate::timeout::seconds(*self.0.timeout.lock())
    }

    fn set_timeout(&self, timeout: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(timeout) = crate::timeout::timeout("timeout", Some(timeout))? {
            *self.0.timeout.lock() = timeout;
        }
        Ok(())
    }

    /// Leaves the group; operations in progress end with an error.
    ///
    /// Later errors name `location`.
    fn close(&self, py: Python<'_>, location: String) {
        if self.0.origin.is_foreign() {
            return;
        }
        self.0.closed.lock().get_or_insert(location);
        detach(py, || self.0.close());
    }

    /// Ends operations in progress on this rank, and breaks the group.
    ///
    /// The other ranks are notified at the latest when the next operation of this rank fails.
    fn abort(&self, py: Python<'_>) {
        if !self.0.origin.is_foreign() {
            detach(py, || self.0.interrupt());
        }
    }

    #[pyo3(signature = (tensor, op, factor, *mode))]
    fn all_reduce(
        &self,
        tensor: Object<'_>,
        op: &str,
        factor: Option<f64>,
        mode: Mode<'_>,
    ) -> Call {
        const NAME: &str = "all_reduce";
        let op = reduce_op(NAME, op, factor)?;
        let mut memory = Memory::of(tensor, NAME, "tensor", Access::Write)?;
        memory.check(op)?;
        self.start(mode, NAME, move |group| {
            typed!(memory.kind().element, T => group.all_reduce(memory.values_mut::<T>(), op))?;
            Ok(vec![memory].into())
        })
    }

    #[pyo3(signature = (tensor, root, op, factor, *mode))]
    fn reduce(
        &self,
        tensor: Object<'_>,
        root: i64,
        op: &str,
        factor: Option<f64>,
        mode: Mode<'_>,
    ) -> Call {
        const NAME: &str = "reduce";
        let op = reduce_op(NAME, op, factor)?;
        let root = self.peer("root", root)?;
        let is_root = root == self.0.rank;
        let access = if is_root { Access::Write } else { Access::Read };
        let mut memory = Memory::of(tensor, NAME, "tensor", access)?;
        memory.check(op)?;
        self.start(mode, NAME, move |group| {
            typed!(memory.kind().element, T => if is_root {
                group.reduce(memory.values_mut::<T>(), op, root)
            } else {
                // The values of the other ranks stay unchanged.
                group.reduce(&mut memory.values::<T>().to_vec(), op, root)
            })?;
            Ok(vec![memory].into())
        })
    }

    #[pyo3(signature = (tensor, root, *mode))]
    fn broadcast(&self, tensor: Object<'_>, root: i64, mode: Mode<'_>) -> Call {
        const NAME: &str = "broadcast";
        let root = self.peer("root", root)?;
        let is_root = root == self.0.rank;
        let access = if is_root { Access::Read } else { Access::Write };
        let mut memory = Memory::of(tensor, NAME, "tensor", access)?;
        self.start(mode, NAME, move |group| {
            typed!(memory.kind().element, T => if is_root {
                // Nothing is written at the root. Its memory may be read-only, so the values are
                // sent from a copy.
                group.broadcast(&mut memory.values::<T>().to_vec(), root)
            } else {
                group.broadcast(memory.values_mut::<T>(), root)
            })?;
            Ok(vec![memory].into())
        })
    }

    #[pyo3(signature = (output, input, *mode))]
    fn all_gather(&self, output: Object<'_>, input: Object<'_>, mode: Mode<'_>) -> Call {
        const NAME: &str = "all_gather";
        let (rank, world_size) = (self.0.rank, self.0.world_size);
        let mut output = Arrays::of(output, NAME, "output", Access::Write)?;
        let input = Memory::of(input, NAME, "input", Access::Read)?;
        output.check_against(&input, world_size)?;
        let mut in_place = false;
        if let [all] = &output.arrays[..]
            && !output.is_list
        {
            in_place = all.has_part(&input, rank as usize, world_size as usize);
            if !in_place {
                no_overlap(all, &input)?;
            }
        }
        self.start(mode, NAME, move |group| {
            typed!(input.kind().element, T => match &mut output.arrays[..] {
                [all] if in_place => group.all_gather_inplace(all.values_mut::<T>()),
                [all] if !output.is_list => group.all_gather(input.values::<T>(), all.values_mut::<T>()),
                _ => {
                    let own = input.values::<T>();
                    let mut all = vec![T::default(); own.len() * world_size as usize];
                    group.all_gather(own, &mut all).map(|()| output.fill(&all))
                }
            })?;
            Ok(output.with(input))
        })
    }

    #[pyo3(signature = (output, input, op, factor, *mode))]
    fn reduce_scatter(
        &self,
        output: Object<'_>,
        input: Object<'_>,
        op: &str,
        factor: Option<f64>,
        mode: Mode<'_>,
    ) -> Call {
        const NAME: &str = "reduce_scatter";
        let op = reduce_op(NAME, op, factor)?;
        let mut output = Memory::of(output, NAME, "output", Access::Write)?;
        let input = Arrays::of(input, NAME, "input", Access::Read)?;
        input.check_against(&output, self.0.world_size)?;
        output.check(op)?;
        self.start(mode, NAME, move |group| {
            typed!(output.kind().element, T => {
                // The input stays unchanged, and may share memory with the output.
                let mut all = input.joined::<T>().into_owned();
                group.reduce_scatter(&mut all, op).map(|own| {
                    output.values_mut::<T>().copy_from_slice(&all[own]);
                })
            })?;
            Ok(input.with(output))
        })
    }

    #[pyo3(signature = (output, input, output_splits, input_splits, *mode))]
    fn all_to_all(
        &self,
        output: Object<'_>,
        input: Object<'_>,
        output_splits: Option<Vec<i64>>,
        input_splits: Option<Vec<i64>>,
        mode: Mode<'_>,
    ) -> Call {
        const NAME: &str = "all_to_all";
        let world_size = self.0.world_size;
        let (output_rows, input_rows) = (rows(output), rows(input));
        let mut output = Arrays::of(output, NAME, "output", Access::Write)?;
        let input = Arrays::of(input, NAME, "input", Access::Read)?;
        output.check_list(world_size)?;
        input.check_list(world_size)?;
        for to in &output.arrays {
            for from in &input.arrays {
                to.check_same_kind(from)?;
                no_overlap(to, from)?;
            }
        }
        let lengths = |arrays: &Arrays, name, given, rows| {
            if arrays.is_list {
                return Ok(Some(arrays.arrays.iter().map(Memory::len).collect()));
            }
            splits(NAME, name, given, arrays.len(), rows, world_size)
        };
        let to = lengths(&output, "output_splits", output_splits, output_rows)?;
        let from = lengths(&input, "input_splits", input_splits, input_rows)?;
        let even = |name: &str, len: usize| {
            if len.is_multiple_of(world_size as usize) {
                return Ok(vec![len / world_size as usize; world_size as usize]);
            }
            Err(PyValueError::new_err(format!(
                "{NAME}: {name} has {}, which is not a multiple of the world size, {world_size}; \
                 pass {name}_splits",
                count(len, "element")
            )))
        };
        let split = to.is_some() || from.is_some();
        let to = to.map_or_else(|| even("output", output.len()), Ok)?;
        let from = from.map_or_else(|| even("input", input.len()), Ok)?;
        if !split && output.len() != input.len() {
            return Err(PyValueError::new_err(format!(
                "{NAME}: output has {} and input has {}; without splits they must be the same",
                count(output.len(), "element"),
                input.len()
            )));
        }
        let lanes = output.arrays[0].lanes();
        let in_elements = |lengths: Vec<usize>| -> Vec<usize> {
            lengths.iter().map(|length| length * lanes).collect()
        };
        let (to, from) = (in_elements(to), in_elements(from));
        let own = self.0.rank as usize;
        if to[own] != from[own] {
            return Err(PyValueError::new_err(format!(
                "{NAME}: this rank, {own}, has {} for itself, but room for {}",
                count(from[own] / lanes, "element"),
                to[own] / lanes
            )));
        }
        let kind = input.arrays[0].kind();
        self.start(mode, NAME, move |group| {
            typed!(kind.element, T => {
                exchange(group, &input.joined::<T>(), &from, &mut output, &to, split)
            })?;
            let mut memory = output.arrays;
            memory.extend(input.arrays);
            Ok(memory.into())
        })
    }

    #[pyo3(signature = (output, input, root, *mode))]
    fn gather(
        &self,
        output: Option<Object<'_>>,
        input: Object<'_>,
        root: i64,
        mode: Mode<'_>,
    ) -> Call {
        const NAME: &str = "gather";
        let root = self.peer("root", root)?;
        let input = Memory::of(input, NAME, "input", Access::Read)?;
        let mut output = one_sided(output, NAME, "output", Access::Write, root == self.0.rank)?;
        if let Some(output) = &output {
            output.check_against(&input, self.0.world_size)?;
        }
        self.start(mode, NAME, move |group| {
            typed!(input.kind().element, T => {
                group.gather(input.values::<T>(), root).map(|all| {
                    if let (Some(output), Some(all)) = (&mut output, all) {
                        output.fill(&all);
                    }
                })
            })?;
            Ok(output.map_or_else(Outcome::default, |output| output.with(input)))
        })
    }

    #[pyo3(signature = (output, input, root, *mode))]
    fn scatter(
        &self,
        output: Object<'_>,
        input: Option<Object<'_>>,
        root: i64,
        mode: Mode<'_>,
    ) -> Call {
        const NAME: &str = "scatter";
        let root = self.peer("root", root)?;
        let mut output = Memory::of(output, NAME, "output", Access::Write)?;
        let input = one_sided(input, NAME, "input", Access::Read, root == self.0.rank)?;
        if let Some(input) = &input {
            input.check_against(&output, self.0.world_size)?;
        }
        self.start(mode, NAME, move |group| {
            typed!(output.kind().element, T => {
                let all = input.as_ref().map(Arrays::joined::<T>).unwrap_or_default();
                group.scatter(&all, output.values_mut::<T>(), root)
            })?;
            Ok(vec![output].into())
        })
    }

    #[pyo3(signature = (*mode))]
    fn barrier(&self, mode: Mode<'_>) -> Call {
        self.start(mode, "barrier", |group| {
            group.barrier().map(|()| Outcome::default())
        })
    }

    fn monitored_barrier(&self, py: Python<'_>, timeout: Option<Object<'_>>) -> PyResult<()> {
        let limit = self.limit(timeout)?;
        let act = move |group: &mut ProcessGroup| {
            group.monitored_barrier(limit).map(|()| Outcome::default())
        };
        self.run(Mode::here(py, None), "monitored_barrier", act)
            .map(drop)
    }

    /// Returns the bytes of all ranks, in their order.
    ///
    /// With `async_`, returns the work, which then has the bytes.
    #[pyo3(signature = (own, *mode))]
    fn all_gather_bytes<'py>(
        &self,
        own: Vec<u8>,
        mode: Mode<'py>,
    ) -> PyResult<Ended<Vec<Bound<'py, PyByteArray>>>> {
        let py = mode.py;
        let result = self.run(mode, "all_gather_objects", move |group| {
            group.all_gather_unequal(&own).map(Outcome::of_objects)
        })?;
        Ok(Ended::of(result, |outcome| as_bytes(py, &outcome.objects)))
    }

    /// Returns the bytes of the rank `root`.
    fn broadcast_bytes<'py>(
        &self,
        py: Python<'py>,
        own: Option<Vec<u8>>,
        root: i64,
        timeout: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let root = self.peer("root", root)?;
        let is_root = root == self.0.rank;
        let result = self.run(Mode::here(py, timeout), "broadcast_object", move |group| {
            let mut bytes = own.filter(|_| is_root).unwrap_or_default();
            let mut length = [bytes.len() as u64];
            group.broadcast(&mut length, root)?;
            if !is_root {
                bytes = group.room(length[0], root)?;
            }
            group.broadcast(&mut bytes, root)?;
            Ok(Outcome::of_objects(vec![bytes]))
        })?;
        let objects = result.map_or_else(|_| Vec::new(), |outcome| outcome.objects);
        Ok(PyByteArray::new(py, &objects.concat()))
    }

    #[pyo3(signature = (tensor, to, tag, *mode))]
    fn send(&self, tensor: Object<'_>, to: i64, tag: i64, mode: Mode<'_>) -> Call {
        const NAME: &str = "send";
        let to = self.other("to", to)?;
        let tag = tag_argument(tag)?;
        let memory = Memory::of(tensor, NAME, "tensor", Access::Read)?;
        let sent = self.message(mode, NAME, |messages| messages.send(memory, to, tag))?;
        Ok(sent.err())
    }

    /// Receives a message, and returns the sender.
    ///
    /// With `async_`, returns the work, which then has the sender.
    #[pyo3(signature = (tensor, source, tag, *mode))]
    fn recv(
        &self,
        tensor: Object<'_>,
        source: Option<i64>,
        tag: i64,
        mode: Mode<'_>,
    ) -> PyResult<Ended<Option<u32>>> {
        const NAME: &str = "recv";
        let source = source
            .map(|source| self.other("source", source))
            .transpose()?;
        let tag = tag_argument(tag)?;
        let memory = Memory::of(tensor, NAME, "tensor", Access::Write)?;
        let received =
            self.message(mode, NAME, |messages| messages.receive(memory, source, tag))?;
        Ok(Ended::of(received, |outcome| outcome.from))
    }
}

impl NativeGroup {
    fn peer(&self, name: &str, value: i64) -> PyResult<u32> {
        rank_argument(name, value, self.0.world_size)
    }

    fn other(&self, name: &str, value: i64) -> PyResult<u32> {
        let rank = self.peer(name, value)?;
        if rank != self.0.rank {
            return Ok(rank);
        }
        Err(PyValueError::new_err(format!(
            "{name} is {rank}, which is this rank; the group has ranks 0 to {}",
            self.0.world_size - 1
        )))
    }

    /// Runs an operation without a result, and returns nothing or its work.
    fn start(
        &self,
        mode: Mode<'_>,
        operation: &'static str,
        act: impl FnOnce(&mut ProcessGroup) -> Result<Outcome, CollectiveError> + Send + 'static,
    ) -> Call {
        Ok(self.run(mode, operation, act)?.err())
    }

    /// Sends or receives a message.
    fn message<R: Into<Outcome> + Send + 'static>(
        &self,
        mode: Mode<'_>,
        operation: &'static str,
        begin: impl FnOnce(&PointToPoint) -> Result<Work<R>, CollectiveError>,
    ) -> PyResult<Result<Outcome, NativeWork>> {
        let py = mode.py;
        let failed = |error: CollectiveError| self.failed(py, &error, operation);
        let work = begin(&self.messages(mode.limit.as_ref())?).map_err(failed)?;
        if mode.is_async {
            return Ok(Err(NativeWork::new(work, operation, &self.0)));
        }
        callbacks::refuse(self.0.number, operation)?;
        finish(py, &work, || self.0.interrupt())?
            .map(Ok)
            .map_err(failed)
    }
}

fn exchange<T: Element>(
    group: &mut ProcessGroup,
    source: &[T],
    from: &[usize],
    output: &mut Arrays,
    to: &[usize],
    split: bool,
) -> Result<(), CollectiveError> {
    let mut run = |target: &mut [T]| {
        if split {
            group.all_to_all_split(source, from, target, to)
        } else {
            group.all_to_all(source, target)
        }
    };
    if let [only] = &mut output.arrays[..]
        && !output.is_list
    {
        return run(only.values_mut::<T>());
    }
    let mut target = vec![T::default(); to.iter().sum()];
    run(&mut target)?;
    output.fill(&target);
    Ok(())
}
