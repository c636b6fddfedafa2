//! Arguments of operations, checked before anything is sent.

use std::borrow::Cow;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rdzv_collective::{Element, ReduceOp};
use rdzv_core::quantity::count;

use super::work::Outcome;
use crate::argument::Object;
use crate::memory::{Access, Argument, Memory};

/// Reads an operator by its name; `premul_sum` needs a factor.
pub(super) fn reduce_op(operation: &str, name: &str, factor: Option<f64>) -> PyResult<ReduceOp> {
    Ok(match (name, factor) {
        ("sum", None) => ReduceOp::Sum,
        ("avg", None) => ReduceOp::Average,
        ("prod", None) => ReduceOp::Product,
        ("min", None) => ReduceOp::Min,
        ("max", None) => ReduceOp::Max,
        ("band", None) => ReduceOp::BitAnd,
        ("bor", None) => ReduceOp::BitOr,
        ("bxor", None) => ReduceOp::BitXor,
        ("premul_sum", Some(factor)) if factor.is_finite() => ReduceOp::PremulSum(factor),
        ("premul_sum", Some(factor)) => {
            return Err(PyValueError::new_err(format!(
                "{operation}: the factor of premul_sum is {factor}, which is not finite"
            )));
        }
        _ => {
            return Err(PyValueError::new_err(format!(
                "{operation}: op is {name:?}; it must be sum, avg, prod, min, max, band, bor, bxor \
                 or premul_sum(factor)"
            )));
        }
    })
}

/// Refuses arrays that share memory.
pub(super) fn no_overlap(output: &Memory, input: &Memory) -> PyResult<()> {
    if !output.overlaps(input) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{}: output and input share memory; pass two arrays",
        output.argument.operation
    )))
}

/// One array, or a list of arrays.
pub(super) struct Arrays {
    pub(super) arrays: Vec<Memory>,
    pub(super) is_list: bool,
    argument: Argument,
}

impl Arrays {
    pub(super) fn of(
        object: Object<'_>,
        operation: &'static str,
        name: &'static str,
        access: Access,
    ) -> PyResult<Self> {
        let of = |array: Object<'_>| Memory::of(array, operation, name, access);
        let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
        let arrays = if is_list {
            let each = object.try_iter()?;
            each.map(|one| of(&one?)).collect::<PyResult<Vec<_>>>()?
        } else {
            vec![of(object)?]
        };
        if let [first, rest @ ..] = &arrays[..] {
            for other in rest {
                first.check_same_kind(other)?;
            }
        }
        let argument = Argument::new(operation, name);
        Ok(Self {
            arrays,
            is_list,
            argument,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.arrays.iter().map(Memory::len).sum()
    }

    /// Refuses a list whose length is not the number of ranks.
    pub(super) fn check_list(&self, world_size: u32) -> PyResult<()> {
        if !self.is_list || self.arrays.len() == world_size as usize {
            return Ok(());
        }
        Err(self.argument.refused(format!(
            "is a list of {}, but the group has {}",
            count(self.arrays.len(), "array"),
            count(world_size, "rank")
        )))
    }

    /// Refuses arrays of another type or number of elements than `each`.
    ///
    /// A single array needs `world_size` times the elements of `each`.
    pub(super) fn check_against(&self, each: &Memory, world_size: u32) -> PyResult<()> {
        self.check_list(world_size)?;
        let Argument { operation, name } = self.argument;
        for (index, array) in self.arrays.iter().enumerate().filter(|_| self.is_list) {
            if array.len() != each.len() {
                return Err(PyValueError::new_err(format!(
                    "{operation}: {name}[{index}] has {}, but needs {}",
                    count(array.len(), "element"),
                    each.len()
                )));
            }
        }
        if self.len() != each.len() * world_size as usize {
            return Err(self.argument.refused(format!(
                "has {} and {} has {}; {name} must have world_size ({world_size}) times as many",
                count(self.len(), "element"),
                each.argument.name,
                each.len()
            )));
        }
        for array in &self.arrays {
            if name == "output" {
                array.check_same_kind(each)?;
            } else {
                each.check_same_kind(array)?;
            }
        }
        Ok(())
    }

    /// Returns all values in one slice.
    pub(super) fn joined<T: Element>(&self) -> Cow<'_, [T]> {
        match &self.arrays[..] {
            [only] if !self.is_list => only.values().into(),
            arrays => {
                let values = arrays.iter().map(Memory::values);
                values.collect::<Vec<&[T]>>().concat().into()
            }
        }
    }

    pub(super) fn fill<T: Element>(&mut self, mut values: &[T]) {
        for array in &mut self.arrays {
            let room = array.values_mut::<T>();
            let (own, rest) = values.split_at(room.len());
            room.copy_from_slice(own);
            values = rest;
        }
    }

    pub(super) fn with(self, other: Memory) -> Outcome {
        let mut memory = self.arrays;
        memory.push(other);
        memory.into()
    }
}

/// Reads splits in rows, one for each rank, and returns them in values.
pub(super) fn splits(
    operation: &str,
    name: &str,
    given: Option<Vec<i64>>,
    elements: usize,
    rows: Option<usize>,
    world_size: u32,
) -> PyResult<Option<Vec<usize>>> {
    let Some(given) = given else { return Ok(None) };
    let wrong =
        |rule: String| PyValueError::new_err(format!("{operation}: {name} {given:?} {rule}"));
    if given.len() != world_size as usize {
        return Err(wrong(format!(
            "has length {}, but the group has {}",
            given.len(),
            count(world_size, "rank")
        )));
    }
    let lengths: Option<Vec<usize>> = given.iter().map(|one| usize::try_from(*one).ok()).collect();
    let lengths = lengths.ok_or_else(|| wrong("has a negative entry".to_owned()))?;
    let rows = rows.unwrap_or(elements);
    let sum: usize = lengths.iter().sum();
    if sum != rows {
        return Err(wrong(format!(
            "has the sum {sum}, but the array has {}",
            count(rows, "row")
        )));
    }
    let of_row = elements.checked_div(rows).unwrap_or(0);
    Ok(Some(lengths.iter().map(|rows| rows * of_row).collect()))
}

/// Returns the length of an array's first dimension; `None` without a shape.
pub(super) fn rows(object: Object<'_>) -> Option<usize> {
    let shape = object.getattr("shape").ok()?;
    shape.get_item(0).ok()?.extract().ok()
}

/// Reads the side of a gather or scatter that only the root has.
pub(super) fn one_sided(
    object: Option<Object<'_>>,
    operation: &'static str,
    name: &'static str,
    access: Access,
    is_root: bool,
) -> PyResult<Option<Arrays>> {
    match (object, is_root) {
        (Some(object), true) => Arrays::of(object, operation, name, access).map(Some),
        (None, true) => Err(PyValueError::new_err(format!(
            "{operation}: {name} is None on the root; pass an array with world_size times the elements, or a list of \
             world_size arrays"
        ))),
        (Some(_), false) => Err(PyValueError::new_err(format!(
            "{operation}: {name} is used only on the root; pass None on the other ranks"
        ))),
        (None, false) => Ok(None),
    }
}

pub(super) fn tag_argument(tag: i64) -> PyResult<u32> {
    u32::try_from(tag)
        .map_err(|_| PyValueError::new_err(format!("tag is {tag}: tags are 0 to {}", u32::MAX)))
}
