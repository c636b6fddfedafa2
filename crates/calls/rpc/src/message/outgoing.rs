//! Encoding of values as messages.

use std::any::type_name;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::tensor::{Content, Part, Placement, View, plan};
use serde::Serialize;

use super::context::{self, Given};
use super::table::{Entry, LoanPart, Table};
use super::target::target;
use super::writer::Writer;
use super::{Outgoing, PART_LIMIT, refused};
use crate::device::Loan;
use crate::tensor::{Storage, Tensor};
use crate::{Payload, RpcError};

/// Serialises a value; the memory of its tensors becomes the message parts.
///
/// Contiguous host memory is not copied. After an error, this function undoes nothing that its
/// caller did before, so encode a request before you register its reply.
///
/// # Errors
///
/// `Serialization` if the value cannot be serialised or is too large. `DeviceMap` if the device map
/// or the device list does not allow the device of a tensor. Otherwise returns the errors of
/// [`ForkReferences`] and of the device backend.
///
/// [`ForkReferences`]: super::ForkReferences
pub fn encode<T: Serialize + ?Sized>(
    value: &T,
    outgoing: &mut Outgoing<'_>,
) -> Result<Payload, RpcError> {
    let mut writer = Writer::new();
    writer.push(&0_u32.to_le_bytes());
    let (written, given) = context::giving(|| writer.write(value));
    written.map_err(|error| error.with_worker(outgoing.destination.clone()))?;
    let mut parts = Vec::new();
    if !(given.tensors.is_empty() && given.references.is_empty()) {
        let value_end = writer.len();
        let table = table_of::<T>(&given, outgoing, &mut parts)?;
        writer.write(&table)?;
        let len = u32::try_from(writer.len() - value_end).expect("less than the limit of a body");
        writer.bytes_mut()[..4].copy_from_slice(&len.to_le_bytes());
    }
    Ok(Payload {
        body: writer.finish(),
        parts,
    })
}

fn table_of<T: ?Sized>(
    given: &Given,
    outgoing: &mut Outgoing<'_>,
    parts: &mut Vec<Bytes>,
) -> Result<Table, RpcError> {
    let mut table = Table::default();
    let devices = given
        .tensors
        .iter()
        .map(|tensor| {
            if tensor.storage().is_unmapped() {
                return Ok(Device::CPU);
            }
            target(tensor.device(), outgoing)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let storages = Storages::of(&given.tensors);
    let views: Vec<View<'_>> = given
        .tensors
        .iter()
        .zip(&storages.number)
        .map(|(tensor, &storage)| View {
            storage,
            meta: tensor.meta(),
        })
        .collect();
    let planned = plan(&views);
    if planned.parts.len() > PART_LIMIT {
        return Err(refused(format!(
            "{} has tensors in {} separate blocks of memory, but a message can have at most \
             {PART_LIMIT}: send fewer, larger tensors",
            type_name::<T>(),
            planned.parts.len(),
        )));
    }
    let targets = part_targets(&planned.placements, &devices, planned.parts.len());
    for (part, target) in planned.parts.iter().zip(targets) {
        let storage = storages.distinct[part.storage];
        if let Some(described) = loaned(part, storage, target, outgoing)? {
            table.loans.push(LoanPart {
                part: u32::try_from(parts.len()).expect("less than the limit of parts"),
                len: part.len() as u64,
            });
            parts.push(described);
            continue;
        }
        let reach = storages.distinct[part.storage].bytes(part.reach())?;
        parts.push(match part.content {
            Content::Slice(_) => reach,
            _ => {
                let mut copied = Vec::new();
                copied.try_reserve_exact(part.len()).map_err(|_| {
                    refused(format!("cannot allocate {} bytes for a part", part.len()))
                })?;
                part.write(&reach, &mut copied);
                Bytes::from(copied)
            }
        });
    }
    for (placement, device) in planned.placements.into_iter().zip(devices) {
        let number = placement.part.map_or(0, |part| part + 1);
        table.tensors.push(Entry {
            part: u32::try_from(number).expect("less than the limit of parts"),
            device,
            meta: placement.meta,
        });
    }

    // References come last, so that an error in an earlier step leaves no fork.
    for local in &given.references {
        let Some(forks) = &mut outgoing.references else {
            return Err(refused(format!(
                "{} has a remote reference, which this message cannot contain",
                type_name::<T>()
            )));
        };
        table.references.push(forks.fork(local)?);
    }
    Ok(table)
}

/// Distinct storages of some tensors.
struct Storages<'a> {
    distinct: Vec<&'a Storage>,
    number: Vec<usize>,
}

impl<'a> Storages<'a> {
    fn of(tensors: &'a [Tensor]) -> Self {
        let mut found = Self {
            distinct: Vec::new(),
            number: Vec::with_capacity(tensors.len()),
        };
        let mut known = std::collections::HashMap::new();
        for tensor in tensors {
            let number = *known.entry(tensor.storage().id()).or_insert_with(|| {
                found.distinct.push(tensor.storage());
                found.distinct.len() - 1
            });
            found.number.push(number);
        }
        found
    }
}

/// Returns the device on which the receiver puts each part.
fn part_targets(placements: &[Placement], devices: &[Device], parts: usize) -> Vec<Device> {
    let mut targets = vec![Device::CPU; parts];
    for (placement, device) in placements.iter().zip(devices) {
        if let Some(part) = placement.part {
            targets[part] = *device;
        }
    }
    targets
}

/// Returns the description of a part that is lent on its device.
fn loaned(
    part: &Part,
    storage: &Storage,
    target: Device,
    outgoing: &mut Outgoing<'_>,
) -> Result<Option<Bytes>, RpcError> {
    let (Some(lending), Some(memory)) = (&mut outgoing.lending, storage.memory()) else {
        return Ok(None);
    };
    if target.is_cpu() || !matches!(part.content, Content::Slice(_)) {
        return Ok(None);
    }
    let loan = lending
        .lender
        .lend(memory, part.reach(), lending.to, target)?;
    Ok(match loan {
        Loan::Copied => None,
        Loan::Unmet(card) => {
            lending.cards.push(card);
            None
        }
        Loan::Described(described) => Some(described),
    })
}
