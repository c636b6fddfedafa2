//! Encoding of reports and replies.
//!
//! Each value is embedded unchanged, as a message within the message.

use bytes::Bytes;
use rdzv_rpc_proto::worker::WorkerName;
use serde::{Deserialize, Serialize};

use crate::error::{RpcError, RpcErrorKind};
use crate::payload::Payload;
use crate::runtime::gathers::Values;
use rdzv_rpc_proto::gather::{GatherError, GatherKey};

/// Error text for values that postcard cannot serialise.
const UNWRITTEN: &str = "cannot serialise the values of a gather";

/// Report of a member to the leader.
///
/// The parts of the message are those of the value.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) key: GatherKey,
    /// Time in microseconds for which the member waits.
    pub(super) within_micros: u64,
    value: Vec<u8>,
}

impl Report {
    pub(super) fn write(
        key: GatherKey,
        within_micros: u64,
        value: Payload,
    ) -> Result<Payload, RpcError> {
        let report = Self {
            key,
            within_micros,
            value: value.body.to_vec(),
        };
        let body = postcard::to_stdvec(&report).map_err(RpcError::internal(UNWRITTEN))?;
        Ok(Payload {
            body: body.into(),
            parts: value.parts,
        })
    }

    pub(super) fn read(payload: Payload) -> Result<(Self, Payload), RpcError> {
        let mut report: Self =
            postcard::from_bytes(&payload.body).map_err(|error| unreadable(&error))?;
        let value = Payload {
            body: std::mem::take(&mut report.value).into(),
            parts: payload.parts,
        };
        Ok((report, value))
    }
}

/// One value in a reply, with the number of its parts.
#[derive(Debug, Serialize, Deserialize)]
struct Among {
    name: WorkerName,
    body: Vec<u8>,
    parts: u32,
}

/// Encodes a reply: all values, or the error that prevented them.
pub(super) fn write_answer(result: Result<&Values, &GatherError>) -> Result<Payload, RpcError> {
    let mut parts: Vec<Bytes> = Vec::new();
    let among = result.map_err(Clone::clone).map(|values| {
        let among = values.iter().map(|(name, value)| {
            parts.extend(value.parts.iter().cloned());
            Among {
                name: name.clone(),
                body: value.body.to_vec(),
                parts: u32::try_from(value.parts.len()).unwrap_or(u32::MAX),
            }
        });
        among.collect::<Vec<Among>>()
    });
    let body = postcard::to_stdvec(&among).map_err(RpcError::internal(UNWRITTEN))?;
    Ok(Payload {
        body: body.into(),
        parts,
    })
}

pub(super) fn read_answer(payload: &Payload) -> Result<Values, RpcError> {
    let answer: Result<Vec<Among>, GatherError> =
        postcard::from_bytes(&payload.body).map_err(|error| unreadable(&error))?;
    let mut parts = payload.parts.iter();
    let mut values = Values::new();
    for among in answer? {
        let own: Vec<Bytes> = parts.by_ref().take(among.parts as usize).cloned().collect();
        if own.len() < among.parts as usize {
            return Err(unreadable(&"parts are missing"));
        }
        let value = Payload {
            body: among.body.into(),
            parts: own,
        };
        values.insert(among.name, value);
    }
    Ok(values)
}

fn unreadable(error: &dyn std::fmt::Display) -> RpcError {
    let text = format!("cannot deserialise the values of a gather: {error}");
    RpcError::new(RpcErrorKind::Protocol, text)
}
