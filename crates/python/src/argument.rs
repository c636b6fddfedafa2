//! Arguments from Python, checked here before anything is sent.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// Argument that is read later.
pub(crate) type Object<'a> = &'a Bound<'a, PyAny>;

/// Reads the argument `name`, which is `bytes`, or `str` in UTF-8.
pub(crate) fn value<'a>(name: &str, object: Object<'a>) -> PyResult<&'a [u8]> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    match object.cast::<PyString>() {
        Ok(text) => Ok(text.to_str()?.as_bytes()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "{name} must be bytes or str, not {}",
            type_name(object)
        ))),
    }
}

/// Reads the argument `name`, a whole number from `least` to `most`.
pub(crate) fn integer(name: &str, object: Object<'_>, least: i64, most: i64) -> PyResult<i64> {
    let py = object.py();
    match object.extract::<i64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(PyTypeError::new_err(
            format!("{name} must be an int, not {}", type_name(object)),
        )),
        _ => Err(PyValueError::new_err(format!(
            "{name} is {object}: specify a number from {least} to {most}"
        ))),
    }
}

/// Reads the argument `name`, a list of `str`.
pub(crate) fn keys(name: &str, object: Object<'_>) -> PyResult<Vec<String>> {
    if object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a list of str, not a str: pass [{}]",
            object.repr()?
        )));
    }
    let refused = |of: &str, found: Object<'_>| {
        PyTypeError::new_err(format!(
            "{name} must be a list of str, not {of}{}",
            type_name(found)
        ))
    };
    let items = object.try_iter().map_err(|_| refused("", object))?;
    items
        .map(|item| {
            let item = item?;
            match item.cast::<PyString>() {
                Ok(key) => Ok(key.to_str()?.to_owned()),
                Err(_) => Err(refused("of ", &item)),
            }
        })
        .collect()
}

/// Returns the name of the type of `object` for errors.
pub(crate) fn type_name(object: Object<'_>) -> String {
    let name = object.get_type().name();
    name.map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
