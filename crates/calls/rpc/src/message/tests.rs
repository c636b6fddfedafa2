//! Tests of round trips of messages, and of messages from untrusted peers.

mod devices;
mod hostile;
mod references;
mod round_trip;

use std::sync::Arc;

use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Incoming, Outgoing, decode, encode};
use crate::device::{CpuOnly, DeviceBackend};
use crate::{Payload, RpcError};

fn worker(name: &str) -> WorkerInfo {
    WorkerInfo {
        id: WorkerId(1),
        name: WorkerName::new(name).unwrap(),
    }
}

fn encoded<T: Serialize + ?Sized>(value: &T) -> Result<Payload, RpcError> {
    encode(value, &mut Outgoing::request(&worker("callee")))
}

fn decoded_with<T: DeserializeOwned>(
    payload: &Payload,
    backend: &Arc<dyn DeviceBackend>,
) -> Result<T, RpcError> {
    decode(payload, &mut Incoming::new(&worker("caller"), backend))
}

fn decoded<T: DeserializeOwned>(payload: &Payload) -> Result<T, RpcError> {
    decoded_with(payload, &CpuOnly::shared())
}

fn there_and_back<T: Serialize + DeserializeOwned>(value: &T) -> T {
    decoded(&encoded(value).unwrap()).unwrap()
}
