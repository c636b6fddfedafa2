//! What encoding and decoding know of the other side.

use std::fmt;
use std::sync::Arc;

use rdzv_rpc_proto::device::{Device, DeviceMap};
use rdzv_rpc_proto::worker::WorkerInfo;

use super::{AdoptReferences, ForkReferences};
use crate::device::DeviceBackend;

/// Whether a message asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The arguments of a call.
    Request,
    /// Its result.
    Response,
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// Where a message goes.
pub struct Outgoing<'a> {
    pub(super) destination: &'a WorkerInfo,
    pub(super) direction: Direction,
    pub(super) device_map: Option<&'a DeviceMap>,
    pub(super) devices: Option<&'a [Device]>,
    pub(super) references: Option<&'a mut dyn ForkReferences>,
}

impl<'a> Outgoing<'a> {
    /// The arguments of a call to this worker: without a device map, without references.
    pub fn request(destination: &'a WorkerInfo) -> Self {
        Self {
            destination,
            direction: Direction::Request,
            device_map: None,
            devices: None,
            references: None,
        }
    }

    /// The result of a call by this worker: without a device map, without references.
    pub fn response(destination: &'a WorkerInfo) -> Self {
        Self {
            direction: Direction::Response,
            ..Self::request(destination)
        }
    }

    /// Which device of ours is which of the destination's: for a request, the map that the options
    /// have for it; for a response, the reverse map for it.
    #[must_use]
    pub fn with_device_map(mut self, map: Option<&'a DeviceMap>) -> Self {
        self.device_map = map;
        self
    }

    /// The device list of this worker: a tensor of a result has to be on one of them, or on the CPU.
    #[must_use]
    pub fn with_devices(mut self, devices: &'a [Device]) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Who forks the remote references in it. Without, there must not be any.
    #[must_use]
    pub fn with_references(mut self, references: &'a mut dyn ForkReferences) -> Self {
        self.references = Some(references);
        self
    }
}

impl fmt::Debug for Outgoing<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            destination,
            direction,
            ..
        } = self;
        write!(formatter, "{direction} to {destination}")
    }
}

/// Where a message came from, and where its tensors go.
pub struct Incoming<'a> {
    pub(super) source: &'a WorkerInfo,
    pub(super) backend: &'a Arc<dyn DeviceBackend>,
    pub(super) references: Option<&'a mut dyn AdoptReferences>,
}

impl<'a> Incoming<'a> {
    /// A message of this worker, its tensors to be put on devices by `backend`.
    pub fn new(source: &'a WorkerInfo, backend: &'a Arc<dyn DeviceBackend>) -> Self {
        Self {
            source,
            backend,
            references: None,
        }
    }

    /// Who adopts the remote references in it. Without, there must not be any.
    #[must_use]
    pub fn with_references(mut self, references: &'a mut dyn AdoptReferences) -> Self {
        self.references = Some(references);
        self
    }
}

impl fmt::Debug for Incoming<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "message from {}", self.source)
    }
}
