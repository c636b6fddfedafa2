//! Decoding of messages into values.

use std::any::type_name;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::rref::Member;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::context::{self, Arrived};
use super::reader::Reader;
use super::table::{Entry, LoanPart, Table};
use super::{Incoming, refused};
use crate::tensor::{Storage, Tensor, put};
use crate::{Payload, RpcError};

/// Decodes the value of a message; its CPU tensors share the parts' memory.
///
/// # Errors
///
/// `Serialization` if the bytes are not exactly one message with a value of type `T`; otherwise the
/// errors of [`AdoptReferences`](super::AdoptReferences) and of the device backend.
pub fn decode<T: DeserializeOwned>(
    payload: &Payload,
    incoming: &mut Incoming<'_>,
) -> Result<T, RpcError> {
    let source = incoming.source;
    let what = |why: String| {
        let value = type_name::<T>();
        refused(format!("the message is not a valid {value}: {why}")).with_worker(source.clone())
    };
    let body = &payload.body[..];
    let Some((table_len, rest)) = body.split_first_chunk::<4>() else {
        return Err(what(format!("its body has only {} of 4 bytes", body.len())));
    };
    let table_len = u32::from_le_bytes(*table_len) as usize;
    let Some(value_len) = rest.len().checked_sub(table_len) else {
        let left = rest.len();
        return Err(what(format!(
            "its table of {table_len} bytes exceeds the {left} bytes of the body"
        )));
    };
    let (value, table) = rest.split_at(value_len);
    let arrived = if table.is_empty() {
        parts_match(&[], &[], &payload.parts).map_err(what)?;
        Arrived::default()
    } else {
        let table: Table = read(table).map_err(what)?;
        let devices = parts_match(&table.tensors, &table.loans, &payload.parts).map_err(what)?;
        arrive(table, &devices, &payload.parts, incoming)?
    };
    context::taking(arrived, || read(value)).map_err(what)
}

/// Deserializes a value, and rejects trailing bytes.
fn read<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, String> {
    let mut reader = Reader::new(bytes);
    let value = T::deserialize(&mut reader).map_err(|error| error.to_string())?;
    match reader.left() {
        0 => Ok(value),
        left => Err(format!("{left} bytes follow the value")),
    }
}

/// Checks that tensors and parts match; returns the device of each part.
///
/// Called before the tensors are created.
fn parts_match(
    tensors: &[Entry],
    loans: &[LoanPart],
    parts: &[Bytes],
) -> Result<Vec<Device>, String> {
    let mut lens: Vec<usize> = parts.iter().map(Bytes::len).collect();
    for one in loans {
        let len = lens
            .get_mut(one.part as usize)
            .ok_or_else(|| format!("part {} is lent, but there is no such part", one.part))?;
        *len = usize::try_from(one.len).map_err(|error| error.to_string())?;
    }
    let mut devices: Vec<Option<Device>> = vec![None; parts.len()];
    for (number, entry) in tensors.iter().enumerate() {
        let Some(part) = entry.part.checked_sub(1) else {
            if entry.meta.is_empty() {
                continue;
            }
            return Err(format!("tensor {number} has elements but no part"));
        };
        let count = parts.len();
        let Some(len) = lens.get(part as usize) else {
            return Err(format!("tensor {number} is in part {part} of {count}"));
        };
        if let Err(error) = entry.meta.fits(*len) {
            return Err(format!("tensor {number} in part {part}: {error}"));
        }
        let device = devices[part as usize].get_or_insert(entry.device);
        if *device != entry.device {
            let other = entry.device;
            return Err(format!("part {part} is for {device} and for {other}"));
        }
    }
    let known: Option<Vec<Device>> = devices.iter().copied().collect();
    known.ok_or_else(|| {
        let part = devices.iter().position(Option::is_none).unwrap_or(0);
        format!("no tensor is in part {part}")
    })
}

/// Copies tensors to their devices and adopts references.
fn arrive(
    table: Table,
    devices: &[Device],
    parts: &[Bytes],
    incoming: &mut Incoming<'_>,
) -> Result<Arrived, RpcError> {
    let source = incoming.source;
    let storages = stored(&table.loans, devices, parts, incoming)
        .map_err(|error| error.with_worker(source.clone()))?;
    let mut arrived = Arrived::default();
    for entry in table.tensors {
        let storage = match entry.part.checked_sub(1) {
            Some(part) => storages[part as usize].clone(),
            None => Storage::nothing(entry.device),
        };
        let tensor = Tensor::new(storage, entry.meta).expect("checked against its part");
        arrived.tensors.push(tensor);
    }
    for fork in &table.references {
        let Some(adopt) = &mut incoming.references else {
            return Err(
                refused("a remote reference arrived with a message that cannot have one")
                    .with_worker(source.clone()),
            );
        };
        arrived.references.push(adopt.adopt(fork)?);
    }
    Ok(arrived)
}

/// Returns one storage per part, with the bytes of the part or of lent memory.
fn stored(
    loans: &[LoanPart],
    devices: &[Device],
    parts: &[Bytes],
    incoming: &Incoming<'_>,
) -> Result<Vec<Storage>, RpcError> {
    let backend = incoming.backend;
    if loans.is_empty() {
        return put(backend, devices, parts);
    }
    let lender = backend
        .lender()
        .ok_or_else(|| refused("the message lends device memory, which this worker cannot use"))?;
    let from = Member::new(incoming.source.id, incoming.incarnation);
    let mut borrowed = std::collections::BTreeMap::new();
    for one in loans {
        let (part, len) = (one.part as usize, one.len as usize);
        let (memory, filled) = lender.borrow(&parts[part], len, devices[part], from)?;
        let storage = Storage::device(memory, std::sync::Arc::clone(backend), filled);
        borrowed.insert(part, storage);
    }
    // The descriptions stay in host memory.
    let mut targets = devices.to_vec();
    for part in borrowed.keys() {
        targets[*part] = Device::CPU;
    }
    let mut storages = put(backend, &targets, parts)?;
    for (part, storage) in borrowed {
        storages[part] = storage;
    }
    Ok(storages)
}
