//! Arguments of operations, checked before anything is sent.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rdzv_collective::{Element, ReduceOp};

use super::work::Outcome;
use crate::memory::{Access, Argument, Memory};

/// Reads an operator by its name; `premul_sum` has a factor.
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
                "{operation}: op is {name:?}; there are sum, avg, prod, min, max, band, bor, bxor and \
                 premul_sum(factor)"
            )));
        }
    })
}

/// Refuses memory of another type.
pub(super) fn same_kind(
    operation: &str,
    first: (&str, &Memory),
    second: (&str, &Memory),
) -> PyResult<()> {
    if first.1.kind() == second.1.kind() {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{operation}: {} has dtype {}, but {} has dtype {}; both must be the same",
        first.0,
        first.1.kind(),
        second.0,
        second.1.kind()
    )))
}

pub(super) fn no_overlap(operation: &str, output: &Memory, input: &Memory) -> PyResult<()> {
    if !output.overlaps(input) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{operation}: output and input share memory; pass two arrays"
    )))
}

/// Refuses a larger side that is not `world_size` times the smaller one.
pub(super) fn fits(
    operation: &str,
    (large, large_len): (&str, usize),
    (small, small_len): (&str, usize),
    world_size: u32,
) -> PyResult<()> {
    if large_len == small_len * world_size as usize {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{operation}: {large} has {large_len} elements and {small} has {small_len}; {large} must have world_size \
         ({world_size}) times as many"
    )))
}

/// One array, or a list of them.
pub(super) struct Arrays {
    pub(super) arrays: Vec<Memory>,
    pub(super) is_list: bool,
}

impl Arrays {
    pub(super) fn of(
        object: &Bound<'_, PyAny>,
        operation: &'static str,
        name: &'static str,
        access: Access,
    ) -> PyResult<Self> {
        let argument = Argument { operation, name };
        let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
        let arrays = if is_list {
            let each = object.try_iter()?;
            each.map(|one| Memory::of(&one?, argument, access))
                .collect::<PyResult<Vec<_>>>()?
        } else {
            vec![Memory::of(object, argument, access)?]
        };
        if let [first, rest @ ..] = &arrays[..] {
            for other in rest {
                same_kind(operation, (name, first), (name, other))?;
            }
        }
        Ok(Self { arrays, is_list })
    }

    pub(super) fn len(&self) -> usize {
        self.arrays.iter().map(Memory::len).sum()
    }

    /// Refuses a list of another length than that of the ranks, or whose arrays differ from `each`.
    pub(super) fn check_list(
        &self,
        operation: &str,
        name: &str,
        world_size: u32,
        each: Option<usize>,
    ) -> PyResult<()> {
        if !self.is_list {
            return Ok(());
        }
        if self.arrays.len() != world_size as usize {
            return Err(PyValueError::new_err(format!(
                "{operation}: {name} is a list of {} arrays; the group has {world_size} ranks",
                self.arrays.len()
            )));
        }
        let Some(each) = each else { return Ok(()) };
        for (index, array) in self.arrays.iter().enumerate() {
            if array.len() != each {
                return Err(PyValueError::new_err(format!(
                    "{operation}: {name}[{index}] has {} elements, but needs {each}",
                    array.len()
                )));
            }
        }
        Ok(())
    }

    /// All values one after another; `None` if they stand so already.
    pub(super) fn joined<T: Element>(&self) -> Option<Vec<T>> {
        let values = self.arrays.iter().map(Memory::values);
        self.is_list.then(|| values.collect::<Vec<&[T]>>().concat())
    }

    pub(super) fn fill<T: Element>(&mut self, mut values: &[T]) {
        for array in &mut self.arrays {
            let room = array.values_mut::<T>();
            let (own, rest) = values.split_at(room.len());
            room.copy_from_slice(own);
            values = rest;
        }
    }
}

/// Reads splits: the number of rows for or of each rank.
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
            "has {} entries; the group has {world_size} ranks",
            given.len()
        )));
    }
    let lengths: Option<Vec<usize>> = given.iter().map(|one| usize::try_from(*one).ok()).collect();
    let lengths = lengths.ok_or_else(|| wrong("has a negative entry".to_owned()))?;
    let rows = rows.unwrap_or(elements);
    let sum: usize = lengths.iter().sum();
    if sum != rows {
        return Err(wrong(format!("sums to {sum}; the array has {rows} rows")));
    }
    let of_row = elements.checked_div(rows).unwrap_or(0);
    Ok(Some(lengths.iter().map(|rows| rows * of_row).collect()))
}

/// The length of an array's first dimension; `None` without a shape.
pub(super) fn rows(object: &Bound<'_, PyAny>) -> Option<usize> {
    let shape = object.getattr("shape").ok()?;
    shape.get_item(0).ok()?.extract().ok()
}

impl Arrays {
    pub(super) fn with(self, other: Memory) -> Outcome {
        let mut memory = self.arrays;
        memory.push(other);
        memory.into()
    }
}

/// The side of a gather or scatter that only the root has.
pub(super) fn one_sided(
    object: Option<&Bound<'_, PyAny>>,
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
            "{operation}: {name} counts on the root only; pass None on the other ranks"
        ))),
        (None, false) => Ok(None),
    }
}

pub(super) fn tag_argument(tag: i64) -> PyResult<u32> {
    u32::try_from(tag)
        .map_err(|_| PyValueError::new_err(format!("tag is {tag}: tags are 0 to {}", u32::MAX)))
}
