//! The operations of a group: each checks its arguments before anything is sent, and then moves memory.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};
use rdzv_collective::{CollectiveError, Element, ProcessGroup};

use super::arguments::{
    Arrays, fits, no_overlap, one_sided, reduce_op, rows, same_kind, splits, tag_argument,
};
use super::work::{AnyWork, Outcome, as_bytes, finish};
use super::{NativeGroup, NativeWork, callbacks, rank_argument};
use crate::interrupt::detach;
use crate::memory::{Access, Argument, Memory, typed};

impl NativeGroup {
    /// The result of a call: nothing, or its work.
    fn ended(
        &self,
        py: Python<'_>,
        result: Result<Outcome, NativeWork>,
    ) -> PyResult<Option<Py<NativeWork>>> {
        match result {
            Ok(_) => Ok(None),
            Err(work) => Py::new(py, work).map(Some),
        }
    }

    fn peer(&self, name: &str, value: i64) -> PyResult<u32> {
        rank_argument(name, value, self.0.world_size)
    }
}

type Limit<'a, 'py> = Option<&'a Bound<'py, PyAny>>;
type Call = PyResult<Option<Py<NativeWork>>>;

#[pymethods]
impl NativeGroup {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "those of the call in Python")]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, PyAny>,
        rank: i64,
        world_size: i64,
        name: String,
        timeout: &Bound<'_, PyAny>,
        epoch: i64,
        address: Option<&str>,
    ) -> PyResult<Self> {
        Self::join(py, store, rank, world_size, name, timeout, epoch, address)
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

    /// Number of collective operations that were called.
    #[getter]
    fn calls(&self) -> u64 {
        self.0.calls.load(std::sync::atomic::Ordering::Relaxed)
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
        let timeout = *self.0.timeout.lock();
        if timeout == crate::timeout::FOREVER {
            return f64::INFINITY;
        }
        timeout.as_secs_f64()
    }

    fn set_timeout(&self, timeout: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(timeout) = crate::timeout::timeout("timeout", Some(timeout))? {
            *self.0.timeout.lock() = timeout;
        }
        Ok(())
    }

    /// Leaves the group; operations in progress end with an error. `place` is for later errors.
    fn close(&self, py: Python<'_>, place: String) {
        if self.0.origin.is_foreign() {
            return;
        }
        self.0.closed.lock().get_or_insert(place);
        detach(py, || self.0.close());
    }

    /// Ends operations in progress, here and at the other ranks; the group is broken.
    fn abort(&self, py: Python<'_>) {
        if !self.0.origin.is_foreign() {
            detach(py, || (self.0.breaker)());
        }
    }

    #[pyo3(signature = (tensor, op="sum", factor=None, timeout=None, async_=false))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "all_reduce";
        let argument = Argument {
            operation: NAME,
            name: "tensor",
        };
        let op = reduce_op(NAME, op, factor)?;
        let mut memory = Memory::of(tensor, argument, Access::Write)?;
        memory.kind().check(argument, op)?;
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(memory.kind().element, T => group.all_reduce(memory.values_mut::<T>(), op))?;
            Ok(vec![memory].into())
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (tensor, root=0, op="sum", factor=None, timeout=None, async_=false))]
    #[expect(clippy::too_many_arguments, reason = "those of the call in Python")]
    fn reduce(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        root: i64,
        op: &str,
        factor: Option<f64>,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "reduce";
        let argument = Argument {
            operation: NAME,
            name: "tensor",
        };
        let op = reduce_op(NAME, op, factor)?;
        let root = self.peer("root", root)?;
        let is_root = root == self.0.rank;
        let access = if is_root { Access::Write } else { Access::Read };
        let mut memory = Memory::of(tensor, argument, access)?;
        memory.kind().check(argument, op)?;
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(memory.kind().element, T => if is_root {
                group.reduce(memory.values_mut::<T>(), op, root)
            } else {
                // The values of the other ranks stay as they are.
                group.reduce(&mut memory.values::<T>().to_vec(), op, root)
            })?;
            Ok(vec![memory].into())
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (tensor, root=0, timeout=None, async_=false))]
    fn broadcast(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        root: i64,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "broadcast";
        let argument = Argument {
            operation: NAME,
            name: "tensor",
        };
        let root = self.peer("root", root)?;
        let access = if root == self.0.rank {
            Access::Read
        } else {
            Access::Write
        };
        let mut memory = Memory::of(tensor, argument, access)?;
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(memory.kind().element, T => if access == Access::Read {
                // Nothing is written at the root; what is sent is read from a copy where the memory is read-only.
                group.broadcast(&mut memory.values::<T>().to_vec(), root)
            } else {
                group.broadcast(memory.values_mut::<T>(), root)
            })?;
            Ok(vec![memory].into())
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (output, input, timeout=None, async_=false))]
    fn all_gather(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "all_gather";
        let (rank, world_size) = (self.0.rank, self.0.world_size);
        let mut output = Arrays::of(output, NAME, "output", Access::Write)?;
        let argument = Argument {
            operation: NAME,
            name: "input",
        };
        let input = Memory::of(input, argument, Access::Read)?;
        output.check_list(NAME, "output", world_size, Some(input.len()))?;
        let (of_output, of_input) = (("output", output.len()), ("input", input.len()));
        fits(NAME, of_output, of_input, world_size)?;
        let mut in_place = false;
        for array in &output.arrays {
            same_kind(NAME, ("output", array), ("input", &input))?;
            in_place |=
                !output.is_list && array.has_part(&input, rank as usize, world_size as usize);
            if !in_place && !output.is_list {
                no_overlap(NAME, array, &input)?;
            }
        }
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(input.kind().element, T => match &mut output.arrays[..] {
                [all] if in_place => group.all_gather_in_place(all.values_mut::<T>()),
                [all] if !output.is_list => group.all_gather(input.values::<T>(), all.values_mut::<T>()),
                _ => {
                    let own = input.values::<T>();
                    let mut all = vec![T::default(); own.len() * world_size as usize];
                    group.all_gather(own, &mut all).map(|()| output.fill(&all))
                }
            })?;
            Ok(output.with(input))
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (output, input, op="sum", factor=None, timeout=None, async_=false))]
    #[expect(clippy::too_many_arguments, reason = "those of the call in Python")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        op: &str,
        factor: Option<f64>,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "reduce_scatter";
        let argument = Argument {
            operation: NAME,
            name: "output",
        };
        let op = reduce_op(NAME, op, factor)?;
        let mut output = Memory::of(output, argument, Access::Write)?;
        let input = Arrays::of(input, NAME, "input", Access::Read)?;
        input.check_list(NAME, "input", self.0.world_size, Some(output.len()))?;
        let (of_input, of_output) = (("input", input.len()), ("output", output.len()));
        fits(NAME, of_input, of_output, self.0.world_size)?;
        for array in &input.arrays {
            same_kind(NAME, ("output", &output), ("input", array))?;
        }
        output.kind().check(argument, op)?;
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(output.kind().element, T => {
                // The input stays as it is, and may share memory with the output.
                let all = input.joined::<T>();
                let mut all = all.unwrap_or_else(|| input.arrays[0].values::<T>().to_vec());
                group.reduce_scatter(&mut all, op).map(|own| {
                    output.values_mut::<T>().copy_from_slice(&all[own]);
                })
            })?;
            Ok(input.with(output))
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (output, input, output_splits=None, input_splits=None, timeout=None, async_=false))]
    #[expect(clippy::too_many_arguments, reason = "those of the call in Python")]
    fn all_to_all(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: &Bound<'_, PyAny>,
        output_splits: Option<Vec<i64>>,
        input_splits: Option<Vec<i64>>,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "all_to_all";
        let world_size = self.0.world_size;
        let (output_rows, input_rows) = (rows(output), rows(input));
        let mut output = Arrays::of(output, NAME, "output", Access::Write)?;
        let input = Arrays::of(input, NAME, "input", Access::Read)?;
        output.check_list(NAME, "output", world_size, None)?;
        input.check_list(NAME, "input", world_size, None)?;
        for to in &output.arrays {
            for from in &input.arrays {
                same_kind(NAME, ("output", to), ("input", from))?;
                no_overlap(NAME, to, from)?;
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
                "{NAME}: {name} has {len} elements, which is no multiple of the world size, {world_size}; pass \
                 {name}_splits"
            )))
        };
        let split = to.is_some() || from.is_some();
        let to = to.map_or_else(|| even("output", output.len()), Ok)?;
        let from = from.map_or_else(|| even("input", input.len()), Ok)?;
        if !split && output.len() != input.len() {
            return Err(PyValueError::new_err(format!(
                "{NAME}: output has {} elements and input has {}; without splits they must be the same",
                output.len(),
                input.len()
            )));
        }
        let lanes = output.arrays.first().map_or(1, Memory::lanes);
        let in_elements = |lengths: Vec<usize>| -> Vec<usize> {
            lengths.iter().map(|length| length * lanes).collect()
        };
        let (to, from) = (in_elements(to), in_elements(from));
        let own = self.0.rank as usize;
        if to[own] != from[own] {
            return Err(PyValueError::new_err(format!(
                "{NAME}: this rank, {own}, has {} elements for itself, and room for {}",
                from[own] / lanes,
                to[own] / lanes
            )));
        }
        let Some(kind) = input.arrays.first().map(Memory::kind) else {
            return Err(PyTypeError::new_err(format!(
                "{NAME}: input is an empty list"
            )));
        };
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(kind.element, T => {
                let joined = input.joined::<T>();
                let source = joined.as_deref().unwrap_or_else(|| input.arrays[0].values::<T>());
                exchange(group, source, &from, &mut output, &to, split)
            })?;
            let mut memory = output.arrays;
            memory.extend(input.arrays);
            Ok(memory.into())
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (output, input, root=0, timeout=None, async_=false))]
    fn gather(
        &self,
        py: Python<'_>,
        output: Option<&Bound<'_, PyAny>>,
        input: &Bound<'_, PyAny>,
        root: i64,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "gather";
        let root = self.peer("root", root)?;
        let argument = Argument {
            operation: NAME,
            name: "input",
        };
        let input = Memory::of(input, argument, Access::Read)?;
        let mut output = one_sided(output, NAME, "output", Access::Write, root == self.0.rank)?;
        if let Some(output) = &output {
            output.check_list(NAME, "output", self.0.world_size, Some(input.len()))?;
            let (of_output, of_input) = (("output", output.len()), ("input", input.len()));
            fits(NAME, of_output, of_input, self.0.world_size)?;
            for array in &output.arrays {
                same_kind(NAME, ("output", array), ("input", &input))?;
            }
        }
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(input.kind().element, T => {
                group.gather(input.values::<T>(), root).map(|all| {
                    if let (Some(output), Some(all)) = (&mut output, all) {
                        output.fill(&all);
                    }
                })
            })?;
            Ok(output.map_or_else(Outcome::default, |output| output.with(input)))
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (output, input, root=0, timeout=None, async_=false))]
    fn scatter(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyAny>,
        input: Option<&Bound<'_, PyAny>>,
        root: i64,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "scatter";
        let root = self.peer("root", root)?;
        let argument = Argument {
            operation: NAME,
            name: "output",
        };
        let mut output = Memory::of(output, argument, Access::Write)?;
        let input = one_sided(input, NAME, "input", Access::Read, root == self.0.rank)?;
        if let Some(input) = &input {
            input.check_list(NAME, "input", self.0.world_size, Some(output.len()))?;
            let (of_input, of_output) = (("input", input.len()), ("output", output.len()));
            fits(NAME, of_input, of_output, self.0.world_size)?;
            for array in &input.arrays {
                same_kind(NAME, ("output", &output), ("input", array))?;
            }
        }
        let result = self.run(py, NAME, timeout, async_, move |group| {
            typed!(output.kind().element, T => {
                let all = match &input {
                    Some(input) => {
                        let joined = input.joined::<T>();
                        joined.unwrap_or_else(|| input.arrays[0].values::<T>().to_vec())
                    }
                    None => Vec::new(),
                };
                group.scatter(&all, output.values_mut::<T>(), root)
            })?;
            Ok(vec![output].into())
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (timeout=None, async_=false))]
    fn barrier(&self, py: Python<'_>, timeout: Limit<'_, '_>, async_: bool) -> Call {
        let result = self.run(py, "barrier", timeout, async_, |group| {
            group.barrier().map(|()| Outcome::default())
        })?;
        self.ended(py, result)
    }

    #[pyo3(signature = (timeout=None))]
    fn monitored_barrier(&self, py: Python<'_>, timeout: Limit<'_, '_>) -> PyResult<()> {
        let limit = crate::timeout::timeout("timeout", timeout)?;
        let limit = limit.unwrap_or(*self.0.timeout.lock());
        let act = move |group: &mut ProcessGroup| {
            group.monitored_barrier(limit).map(|()| Outcome::default())
        };
        self.run(py, "monitored_barrier", None, false, act)
            .map(drop)
    }

    /// The bytes of all ranks, in their order; with `async_` the work, which has them.
    #[pyo3(signature = (own, timeout=None, async_=false))]
    fn all_gather_bytes(
        &self,
        py: Python<'_>,
        own: Vec<u8>,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> PyResult<Py<PyAny>> {
        let result = self.run(py, "all_gather_objects", timeout, async_, move |group| {
            let objects = group.all_gather_unequal(&own)?;
            Ok(Outcome {
                objects,
                ..Outcome::default()
            })
        })?;
        match result {
            Ok(outcome) => Ok(PyList::new(py, as_bytes(py, &outcome.objects))?
                .into_any()
                .unbind()),
            Err(work) => Ok(Py::new(py, work)?.into_any()),
        }
    }

    /// The bytes of the rank `root`.
    #[pyo3(signature = (own, root, timeout=None))]
    fn broadcast_bytes<'py>(
        &self,
        py: Python<'py>,
        own: Option<Vec<u8>>,
        root: i64,
        timeout: Limit<'_, '_>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let root = self.peer("root", root)?;
        let is_root = root == self.0.rank;
        let result = self.run(py, "broadcast_object", timeout, false, move |group| {
            let mut bytes = own.filter(|_| is_root).unwrap_or_default();
            let mut length = [bytes.len() as u64];
            group.broadcast(&mut length, root)?;
            if !is_root {
                bytes = group.room(length[0], root)?;
            }
            group.broadcast(&mut bytes, root)?;
            Ok(Outcome {
                objects: vec![bytes],
                ..Outcome::default()
            })
        })?;
        let objects = result.map_or_else(|_| Vec::new(), |outcome| outcome.objects);
        Ok(PyByteArray::new(
            py,
            objects.first().map_or(&[], Vec::as_slice),
        ))
    }

    #[pyo3(signature = (tensor, to, tag=0, timeout=None, async_=false))]
    fn send(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        to: i64,
        tag: i64,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> Call {
        const NAME: &str = "send";
        let argument = Argument {
            operation: NAME,
            name: "tensor",
        };
        let to = self.other("to", to)?;
        let tag = tag_argument(tag)?;
        let memory = Memory::of(tensor, argument, Access::Read)?;
        let work = self.messages(timeout)?.send(memory, to, tag);
        let work = work.map_err(|error| self.failed(py, &error, NAME))?;
        if async_ {
            let work = NativeWork::new(work, NAME, self.0.rank, self.0.number);
            return Py::new(py, work).map(Some);
        }
        self.end_message(py, &work, NAME)?;
        Ok(None)
    }

    /// Receives a message. The result is the sender; with `async_` the work, which has it.
    #[pyo3(signature = (tensor, source=None, tag=0, timeout=None, async_=false))]
    fn recv(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        source: Option<i64>,
        tag: i64,
        timeout: Limit<'_, '_>,
        async_: bool,
    ) -> PyResult<Py<PyAny>> {
        const NAME: &str = "recv";
        let argument = Argument {
            operation: NAME,
            name: "tensor",
        };
        let source = source
            .map(|source| self.other("source", source))
            .transpose()?;
        let tag = tag_argument(tag)?;
        let memory = Memory::of(tensor, argument, Access::Write)?;
        let work = self.messages(timeout)?.receive(memory, source, tag);
        let work = work.map_err(|error| self.failed(py, &error, NAME))?;
        if async_ {
            let work = NativeWork::new(work, NAME, self.0.rank, self.0.number);
            return Ok(Py::new(py, work)?.into_any());
        }
        let from = self.end_message(py, &work, NAME)?.from;
        Ok(from.into_pyobject(py)?.into_any().unbind())
    }
}

impl NativeGroup {
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

    fn end_message(
        &self,
        py: Python<'_>,
        work: &dyn AnyWork,
        operation: &'static str,
    ) -> PyResult<Outcome> {
        callbacks::refuse(self.0.number, operation)?;
        finish(py, work, &self.0.breaker)?.map_err(|error| self.failed(py, &error, operation))
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
