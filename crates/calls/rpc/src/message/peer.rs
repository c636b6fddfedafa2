//! Information about the peer, for encoding and decoding.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::{Device, DeviceMap};
use rdzv_rpc_proto::rref::Member;
use rdzv_rpc_proto::worker::WorkerInfo;

use super::{AdoptReferences, ForkReferences};
use crate::device::{DeviceBackend, DeviceLender};

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Argument of a call.
    Request,
    /// Result of a call.
    Response,
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// Destination of an outgoing message, with its device map and references.
pub struct Outgoing<'a> {
    pub(super) destination: &'a WorkerInfo,
    pub(super) direction: Direction,
    pub(super) device_map: Option<&'a DeviceMap>,
    pub(super) devices: Option<&'a [Device]>,
    pub(super) references: Option<&'a mut dyn ForkReferences>,
    pub(super) lending: Option<Lending<'a>>,
}

/// Loan of device memory to a process on this host.
pub struct Lending<'a> {
    /// Lender of the memory.
    pub lender: &'a dyn DeviceLender,
    /// Process at the destination.
    pub to: Member,
    /// Cards of memory that the process must open before the next loan.
    pub cards: &'a mut Vec<Bytes>,
}

impl<'a> Outgoing<'a> {
    /// Describes the argument of a call, without a device map or references.
    pub fn request(destination: &'a WorkerInfo) -> Self {
        Self {
            destination,
            direction: Direction::Request,
            device_map: None,
            devices: None,
            references: None,
            lending: None,
        }
    }

    /// Describes the result of a call, without a device map or references.
    pub fn response(destination: &'a WorkerInfo) -> Self {
        Self {
            direction: Direction::Response,
            ..Self::request(destination)
        }
    }

    /// Sets the map from this worker's devices to those of the destination.
    ///
    /// For a request, this is the map for the destination in the options. For a response, it is the
    /// reverse map.
    #[must_use]
    pub fn with_device_map(mut self, map: Option<&'a DeviceMap>) -> Self {
        self.device_map = map;
        self
    }

    /// Sets the device list of this worker.
    ///
    /// A tensor in a result must be on one of these devices or on the CPU.
    #[must_use]
    pub fn with_devices(mut self, devices: &'a [Device]) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Sets the lender of device memory, for a destination on this host.
    #[must_use]
    pub fn with_lending(mut self, lending: Option<Lending<'a>>) -> Self {
        self.lending = lending;
        self
    }

    /// Sets the code that forks remote references.
    ///
    /// Without this code, a message with references is rejected.
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

/// Source of an incoming message, and the backend for its tensors.
pub struct Incoming<'a> {
    pub(super) source: &'a WorkerInfo,
    pub(super) backend: &'a Arc<dyn DeviceBackend>,
    pub(super) incarnation: u64,
    pub(super) references: Option<&'a mut dyn AdoptReferences>,
}

impl<'a> Incoming<'a> {
    /// Describes a message to this worker; `backend` puts its tensors on devices.
    pub fn new(source: &'a WorkerInfo, backend: &'a Arc<dyn DeviceBackend>) -> Self {
        Self {
            source,
            backend,
            incarnation: 0,
            references: None,
        }
    }

    /// Sets the incarnation of the source, which may have lent device memory.
    #[must_use]
    pub fn of_incarnation(mut self, incarnation: u64) -> Self {
        self.incarnation = incarnation;
        self
    }

    /// Sets the code that adopts remote references.
    ///
    /// Without this code, a message with references is rejected.
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
