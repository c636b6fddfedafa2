//! The device backend: tensors in messages, and loans to peers on this host.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_rpc::device::{
    Device, DeviceBackend, DeviceEvent, DeviceLender, DeviceMemory, FilledMemory, Loan,
};
use rdzv_rpc::dlpack::{self, ForeignTensor, Managed, ManagedTensorBase};
use rdzv_rpc::tensor::Storage;
use rdzv_rpc::{RpcError, RpcErrorKind, Tensor};
use rdzv_rpc_proto::rref::Member;

use crate::borrowing::{CONTAINERS, Read};
use crate::driver::{CudaDriver, CudaStream, DriverResult, Fault, Pointer, version};
use crate::lending::{CudaLimits, LoanedBlock, OwnLoan};
use crate::library::Library;
use crate::memory::{CudaMemory, Owner};
use crate::state::{Release, Rule, Shared, State};
use crate::wire::{self, Card, Description, LENGTH, Sent};

/// Device backend for CUDA.
///
/// Clones are handles to the same backend. The driver is loaded at the first use of a device.
pub struct Cuda<D: CudaDriver = Library> {
    pub(crate) shared: Arc<Shared<D>>,
    _open: Arc<Open<D>>,
}

impl<D: CudaDriver> Clone for Cuda<D> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            _open: Arc::clone(&self._open),
        }
    }
}

/// Guard of the handles, which ends the loans after the last one.
///
/// The segments are freed when peers have closed them.
struct Open<D: CudaDriver>(Weak<Shared<D>>);

impl<D: CudaDriver> Drop for Open<D> {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        let mut state = shared.state.lock();
        if state.devices.is_empty() {
            return;
        }
        state.lending.is_closed = true;
        state.sweeps = true;
        // The thread keeps the state until all segments are freed.
        *shared.signal.keeps.lock() = Some(Arc::clone(&shared) as _);
        shared.ensure_thread(&mut state);
    }
}

impl Cuda {
    /// Creates a backend for this number of devices, with the driver of this host.
    pub fn new(count: u32, limits: CudaLimits) -> Self {
        Self::with_driver(Library, count, limits)
    }
}

impl<D: CudaDriver> Cuda<D> {
    /// Creates a backend with another driver.
    pub fn with_driver(driver: D, count: u32, limits: CudaLimits) -> Self {
        Self::of(Shared::new(driver, count, limits))
    }

    pub(crate) fn of(shared: Arc<Shared<D>>) -> Self {
        let open = Arc::new(Open(Arc::downgrade(&shared)));
        Self {
            shared,
            _open: open,
        }
    }

    /// Returns memory of another library, for messages.
    ///
    /// `producer` is the stream whose work until now writes the content; `None` if the content is
    /// complete. The owner is dropped after the storage, when all messages with the memory have
    /// copied it.
    ///
    /// # Errors
    ///
    /// Returns an error if the device, the stream or its context does not exist, or if the driver
    /// fails.
    pub fn import(
        &self,
        device: Device,
        (pointer, len): (Pointer, usize),
        producer: Option<CudaStream>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Storage, RpcError> {
        let index = self.index(device)?;
        let mark = producer.map(|stream| self.shared.mark(index, stream));
        let ready = mark.transpose().map_err(|fault| {
            let mut what = format!("read a tensor on {device}");
            if fault.is_gone() {
                what += ", because the CUDA context or stream that made it has ended";
            }
            failed(&what, &fault)
        })?;
        let memory = CudaMemory {
            shared: Arc::clone(&self.shared),
            device: index,
            pointer,
            len,
            owner: Owner::Foreign(owner),
            ready: Mutex::new(ready),
        };
        let backend = Arc::new(self.clone());
        Ok(Storage::device(
            Arc::new(memory),
            backend,
            Arc::new(Ordered),
        ))
    }

    /// Imports another library's tensor on a CUDA device without a copy.
    ///
    /// `producer` is the stream that the other library has made wait for the content; `None` if the
    /// content is complete. The other library gets the tensor back after the drop of the result,
    /// when all reads have ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the tensor is not on a CUDA device or cannot be described, and the
    /// errors of [`import`](Self::import).
    pub fn from_dlpack<M: ManagedTensorBase + 'static>(
        &self,
        foreign: Managed<M>,
        producer: Option<CudaStream>,
    ) -> Result<Tensor, RpcError> {
        let Some(ForeignTensor {
            meta,
            device,
            address,
        }) = dlpack::on_device(&foreign)?
        else {
            let text = "the tensor is not on a CUDA device: use Tensor::from_dlpack";
            return Err(RpcError::new(RpcErrorKind::InvalidArgument, text));
        };
        let memory = (Pointer(address), meta.reach().len());
        let storage = self.import(device, memory, producer, Box::new(foreign))?;
        Ok(Tensor::new(storage, meta)?)
    }

    /// Returns the index of a device that exists.
    fn index(&self, device: Device) -> Result<u32, RpcError> {
        let count = self.shared.count;
        let index = device.index().filter(|_| device.is_among(count));
        index.ok_or_else(|| {
            let text = format!(
                "device {device} does not exist: accelerators of this worker: {count}\nhelp: check \
                 CUDA_VISIBLE_DEVICES and the device map"
            );
            RpcError::new(RpcErrorKind::InvalidArgument, text)
        })
    }

    /// Allocates memory, with the stream that may use it.
    fn allocated(
        &self,
        device: Device,
        len: usize,
    ) -> Result<(CudaMemory<D>, CudaStream), RpcError> {
        let index = self.index(device)?;
        let shared = &self.shared;
        let allocate = || -> DriverResult<(Pointer, CudaStream)> {
            let stream = shared.stream(index)?;
            Ok((shared.driver.allocate(index, len, stream)?, stream))
        };
        let (pointer, stream) = allocate().map_err(|fault| {
            let state = shared.state.lock();
            let received = state.devices.get(&index).map_or(0, |one| one.received);
            let for_peers = state.lending.size(index).0;
            drop(state);
            let mut what = format!("allocate {len} bytes on {device}");
            if fault.is_out_of_memory() {
                what += &format!(
                    " beside {received} bytes of received tensors and {for_peers} bytes for peers"
                );
            }
            failed(&what, &fault)
        })?;
        let mut state = shared.state.lock();
        state.devices.entry(index).or_default().received += len;
        drop(state);
        let memory = CudaMemory {
            shared: Arc::clone(shared),
            device: index,
            pointer,
            len,
            owner: Owner::Received {
                stream,
                readers: Mutex::default(),
            },
            ready: Mutex::new(None),
        };
        Ok((memory, stream))
    }

    fn ours(memory: &Arc<dyn DeviceMemory>) -> Result<Arc<CudaMemory<D>>, RpcError> {
        let memory: Arc<dyn Any + Send + Sync> = Arc::clone(memory) as _;
        memory.downcast().map_err(|_| {
            let text = "this memory belongs to another backend";
            RpcError::new(RpcErrorKind::InvalidArgument, text)
        })
    }

    fn describe(
        &self,
        loaned: LoanedBlock,
        from: &Arc<CudaMemory<D>>,
        start: usize,
        len: usize,
    ) -> Result<Bytes, Fault> {
        let shared = &self.shared;
        let device = from.device;
        let stream = shared.stream(device)?;
        if shared.keeps(Rule::AfterProducer) {
            from.follow(stream)?;
        }
        for earlier in loaned.earlier {
            if shared.keeps(Rule::AfterEarlier) {
                shared.driver.wait(device, stream, earlier)?;
            }
        }
        let source = from.pointer.plus(start);
        shared
            .driver
            .copy(device, loaned.pointer, source, len, stream)?;
        shared.driver.record(device, loaned.filled.event, stream)?;
        let mark = shared.mark(device, stream)?;
        if shared.keeps(Rule::KeepSource) {
            shared.release_after(mark, Release::Memory(Arc::clone(from) as _));
        }
        let mut block = loaned.block;
        let description = Description {
            process: shared.process,
            segment: loaned.segment,
            handle: Sent::new(&loaned.handle),
            offset: block.offset() as u64,
            event: Sent::new(&loaned.filled.handle),
        };
        let written = wire::write(&description, block.as_mut());
        written.expect("a description is shorter than a block");
        Ok(block.freeze().slice(..LENGTH))
    }
}

/// Returns the error of an operation that the driver refused.
fn failed(what: &str, fault: &Fault) -> RpcError {
    let help = fault
        .help()
        .map_or_else(String::new, |help| format!("\nhelp: {help}"));
    let text = format!("cannot {what}: {fault}{help}");
    RpcError::new(RpcErrorKind::InvalidArgument, text)
}

/// Event for memory whose later uses the streams order: nothing waits for it.
#[derive(Debug)]
struct Ordered;

impl DeviceEvent for Ordered {
    fn wait(&self) -> Result<(), RpcError> {
        Ok(())
    }
}

/// End of all work that a device's copy streams have when the wait begins.
#[derive(Debug)]
struct Quiet<D: CudaDriver> {
    shared: Arc<Shared<D>>,
    device: u32,
}

impl<D: CudaDriver> DeviceEvent for Quiet<D> {
    fn wait(&self) -> Result<(), RpcError> {
        let wait = || -> DriverResult<()> {
            for stream in self.shared.streams(self.device) {
                let mark = self.shared.mark(self.device, stream)?;
                self.shared.driver.synchronize(self.device, mark.event)?;
            }
            Ok(())
        };
        wait().map_err(|fault| failed(&format!("copy to or from cuda:{}", self.device), &fault))
    }
}

impl<D: CudaDriver> DeviceBackend for Cuda<D> {
    fn count(&self) -> u32 {
        self.shared.count
    }

    fn alloc(&self, device: Device, len: usize) -> Result<Arc<dyn DeviceMemory>, RpcError> {
        Ok(Arc::new(self.allocated(device, len)?.0))
    }

    fn copy_in(&self, from: Bytes, to: &Arc<dyn DeviceMemory>) -> Result<(), RpcError> {
        let to = Self::ours(to)?;
        let Owner::Received { stream, .. } = &to.owner else {
            let text = "memory of another library cannot be written";
            return Err(RpcError::new(RpcErrorKind::InvalidArgument, text));
        };
        let copy = || -> DriverResult<()> {
            self.shared
                .stage_in(to.device, to.pointer, &from, *stream)?;
            *to.ready.lock() = Some(self.shared.mark(to.device, *stream)?);
            Ok(())
        };
        let what = || format!("copy {} bytes to cuda:{}", from.len(), to.device);
        copy().map_err(|fault| failed(&what(), &fault))
    }

    fn copy_out(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
    ) -> Result<Bytes, RpcError> {
        let from = Self::ours(from)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(range.len()).map_err(|_| {
            let text = format!("cannot allocate {} bytes of host memory", range.len());
            RpcError::new(RpcErrorKind::InvalidArgument, text)
        })?;
        let mut copy = || -> DriverResult<()> {
            let stream = self.shared.stream(from.device)?;
            if self.shared.keeps(Rule::AfterProducer) {
                from.follow(stream)?;
            }
            let source = (from.pointer.plus(range.start), range.len());
            self.shared
                .stage_out(from.device, source, stream, &mut bytes)
        };
        let what = || format!("copy {} bytes from cuda:{}", range.len(), from.device);
        copy().map_err(|fault| failed(&what(), &fault))?;
        Ok(Bytes::from(bytes))
    }

    fn event(&self, device: Device) -> Result<Arc<dyn DeviceEvent>, RpcError> {
        Ok(Arc::new(Quiet {
            shared: Arc::clone(&self.shared),
            device: self.index(device)?,
        }))
    }

    fn lender(&self) -> Option<&dyn DeviceLender> {
        Some(self)
    }

    fn facts(&self) -> Vec<(String, String)> {
        let state = self.shared.state.lock();
        let mut used: Vec<u32> = state.devices.keys().copied().collect();
        used.extend(state.lending.devices());
        used.sort_unstable();
        used.dedup();
        let mut facts = Vec::new();
        // A question about the driver would load it.
        if !used.is_empty()
            && let Ok(number) = self.shared.driver.version()
        {
            facts.push(("cuda.driver".to_owned(), version(number)));
        }
        for device in used {
            let (pool, in_use) = state.lending.size(device);
            let received = state.devices.get(&device).map_or(0, |one| one.received);
            for (name, value) in [("pool", pool), ("lent", in_use), ("received", received)] {
                facts.push((format!("cuda:{device}.{name}_bytes"), value.to_string()));
            }
        }
        let opened = state.borrowed.count();
        facts.push(("cuda.segments_of_peers".to_owned(), opened.to_string()));
        for (peer, reason) in &state.lending.refused {
            facts.push((format!("cuda.staged.{}", peer.id), reason.clone()));
        }
        facts
    }
}

impl<D: CudaDriver> DeviceLender for Cuda<D> {
    fn lend(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
        to: Member,
        target: Device,
    ) -> Result<Loan, RpcError> {
        let (Ok(from), Some(target)) = (Self::ours(from), target.index()) else {
            return Ok(Loan::Copied);
        };
        let shared = &self.shared;
        let what = || format!("lend {} bytes of cuda:{}", range.len(), from.device);
        let mut freed = Vec::new();
        let loan = shared.state.lock().lending.loan(
            (&shared.driver, &shared.limits),
            (from.device, range.len()),
            (to, target),
            |segment, handle| {
                let process = (shared.process, wire::namespace());
                Card::new(process, (segment, handle), target)
            },
            &mut freed,
        );
        shared.free_segments(freed);
        match loan {
            Ok(OwnLoan::Copied) => Ok(Loan::Copied),
            Ok(OwnLoan::Unmet(card)) => Ok(Loan::Unmet(card)),
            Ok(OwnLoan::Block(loaned)) => self
                .describe(loaned, &from, range.start, range.len())
                .map(Loan::Described)
                .map_err(|fault| failed(&what(), &fault)),
            Err(fault) => {
                // A driver that does not export memory can still copy it.
                tracing::debug!(%fault, "cannot export memory of cuda:{}", from.device);
                Ok(Loan::Copied)
            }
        }
    }

    fn borrow(
        &self,
        described: &Bytes,
        len: usize,
        device: Device,
        from: Member,
    ) -> Result<FilledMemory, RpcError> {
        let refused = |why: String| {
            let text = format!("cannot read a tensor that the sender lends: {why}");
            RpcError::new(RpcErrorKind::InvalidArgument, text)
        };
        let index = self.index(device)?;
        let description: Description = wire::read(described).map_err(refused)?;
        let shared = &self.shared;
        let key = (from, description.segment, index);
        let (source, event) = {
            let mut state = shared.state.lock();
            let State {
                borrowed, lending, ..
            } = &mut *state;
            let described = (key, &description, shared.process);
            let begun = borrowed.begin_read((&shared.driver, lending), described, len);
            begun.map_err(refused)?
        };
        let read = Read {
            key,
            described: described.clone(),
        };
        let copied = self.allocated(device, len).and_then(|(memory, stream)| {
            let copy = || -> DriverResult<()> {
                if shared.keeps(Rule::AfterSender) {
                    shared.driver.wait(index, stream, event)?;
                }
                shared
                    .driver
                    .copy(index, memory.pointer, source, len, stream)?;
                *memory.ready.lock() = Some(shared.mark(index, stream)?);
                Ok(())
            };
            copy().map_err(|fault| failed(&format!("copy {len} bytes to {device}"), &fault))?;
            Ok(memory)
        });
        let memory = match copied {
            Ok(memory) => memory,
            Err(error) => {
                let mut state = shared.state.lock();
                state.borrowed.end_read(&shared.driver, &read);
                return Err(error);
            }
        };
        let ready = memory.ready.lock().clone();
        match ready.filter(|_| shared.keeps(Rule::ReturnWhenRead)) {
            Some(ready) => shared.release_after(ready, Release::Block(read)),
            None => {
                let mut state = shared.state.lock();
                state.borrowed.end_read(&shared.driver, &read);
            }
        }
        let filled = self.event(device)?;
        Ok((Arc::new(memory), filled))
    }

    fn meet(&self, card: &Bytes, from: Member) -> Result<(), String> {
        let read: Card = wire::read(card)?;
        if read.namespace != wire::namespace() {
            return Err(format!(
                "the workers are in different PID namespaces, for which CUDA IPC does not work\n\
                 help: {CONTAINERS}"
            ));
        }
        if read.target >= self.shared.count {
            let count = self.shared.count;
            return Err(Fault::NoDevice {
                index: read.target,
                count,
            }
            .to_string());
        }
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let State {
            borrowed, lending, ..
        } = &mut *state;
        let key = (from, read.segment, read.target);
        borrowed.meet(
            (&shared.driver, lending),
            (key, &read, shared.process),
            card,
        )
    }

    fn met(&self, card: &Bytes, to: Member, answer: Result<(), String>) {
        let Ok(read) = wire::read::<Card>(card) else {
            return;
        };
        if let Err(reason) = &answer {
            tracing::warn!(
                worker = %to.id,
                "CUDA tensors for this worker go through host memory: {reason}"
            );
        }
        self.shared.state.lock().lending.met((to, &read), answer);
    }

    fn lost(&self, peer: Member) {
        let mut state = self.shared.state.lock();
        if state.devices.is_empty() && state.borrowed.is_empty() {
            return;
        }
        state.lending.lost(peer);
        state.borrowed.lost(&self.shared.driver, peer);
        state.sweeps = true;
        self.shared.ensure_thread(&mut state);
    }
}

impl<D: CudaDriver> fmt::Debug for Cuda<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shared, formatter)
    }
}
