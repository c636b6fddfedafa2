//! Streams, events, and the work whose end is awaited.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rdzv_lock::{Condvar, Mutex};

use crate::borrowing::{Borrowed, Read};
use crate::driver::{CudaDriver, CudaEvent, CudaStream, DriverResult, Pointer};
use crate::lending::{CudaLimits, Lending, Segment};
use crate::pinned::Stager;

/// Number of copy streams of a device.
///
/// With several streams, a slow producer delays few other tensors.
const STREAMS: usize = 4;

/// Time between two checks whether queued work has ended.
///
/// `docs/gpu.md` gives the reasons why the thread does not block in the driver.
const CHECK: Duration = Duration::from_micros(200);

/// Time between two checks whether lost peers have ended.
///
/// Nothing notifies the thread when a lost peer drops its leases.
const SWEEP: Duration = Duration::from_millis(50);

/// Rule that a test breaks, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A copy waits for the producer of the tensor.
    AfterProducer,
    /// A tensor of the application is kept until it was copied.
    KeepSource,
    /// A reader waits for the copy into the block.
    AfterSender,
    /// A block is returned when it was read, not when the read was queued.
    ReturnWhenRead,
    /// A copy into a used block waits for the earlier copy into it.
    AfterEarlier,
    /// Received memory is freed after the consumer's work.
    FreeAfterConsumer,
    /// A consumer waits for the copy into received memory.
    BeforeConsumer,
    /// A pinned piece is written after the copy out of it.
    AfterPiece,
}

/// State of a backend, shared by its handles and its memory.
pub(crate) struct Shared<D: CudaDriver> {
    pub(crate) driver: D,
    pub(crate) count: u32,
    pub(crate) limits: CudaLimits,
    /// Random number that identifies this process to its peers.
    pub(crate) process: u64,
    pub(crate) own: Weak<Self>,
    pub(crate) state: Mutex<State<D>>,
    pub(crate) signal: Arc<Signal>,
    /// `true` if a thread awaits the end of work; tests do that themselves.
    pub(crate) has_threads: bool,
    #[cfg(test)]
    pub(crate) broken: Option<Rule>,
}

/// Signal of the thread that awaits the end of queued work.
#[derive(Default)]
pub(crate) struct Signal {
    pub(crate) keeps: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Stops keeping the state alive.
    pub(crate) fn let_go(&self) {
        let kept = self.keeps.lock().take();
        drop(kept);
    }

    pub(crate) fn notify(&self) {
        *self.wanted.lock() = true;
        self.changed.notify_one();
    }
}

/// Changing part of the state.
pub(crate) struct State<D: CudaDriver> {
    pub(crate) devices: BTreeMap<u32, Device>,
    pub(crate) lending: Lending,
    pub(crate) borrowed: Borrowed,
    pub(crate) awaited: Vec<Awaited<D>>,
    pub(crate) stagers: Vec<Stager>,
    /// `true` if a thread calls [`Shared::poll`].
    pub(crate) has_thread: bool,
    /// `true` if segments may be free, because a peer was lost or all loans end.
    pub(crate) sweeps: bool,
}

impl<D: CudaDriver> Default for State<D> {
    fn default() -> Self {
        Self {
            devices: BTreeMap::new(),
            lending: Lending::default(),
            borrowed: Borrowed::default(),
            awaited: Vec::new(),
            stagers: Vec::new(),
            has_thread: false,
            sweeps: false,
        }
    }
}

/// Device that was used.
#[derive(Debug, Default)]
pub(crate) struct Device {
    streams: Vec<CudaStream>,
    next: usize,
    /// Events without a user.
    events: Vec<CudaEvent>,
    /// Bytes of received tensors.
    pub(crate) received: usize,
}

/// Event with one record, which is reused when all users have dropped it.
pub(crate) struct Mark<D: CudaDriver> {
    pub(crate) device: u32,
    pub(crate) event: CudaEvent,
    shared: Weak<Shared<D>>,
}

impl<D: CudaDriver> Drop for Mark<D> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut state = shared.state.lock();
            let device = state.devices.entry(self.device).or_default();
            device.events.push(self.event);
        }
    }
}

impl<D: CudaDriver> fmt::Debug for Mark<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} on cuda:{}", self.event, self.device)
    }
}

/// Work whose end releases something.
pub(crate) struct Awaited<D: CudaDriver> {
    pub(crate) mark: Arc<Mark<D>>,
    pub(crate) release: Release,
}

/// Values that queued work uses.
pub(crate) enum Release {
    /// Memory that is read.
    #[expect(dead_code, reason = "keeps the memory")]
    Memory(Arc<dyn Any + Send + Sync>),
    /// Block of a peer that is read.
    Block(Read),
}

impl<D: CudaDriver> Shared<D> {
    pub(crate) fn new(driver: D, count: u32, limits: CudaLimits) -> Arc<Self> {
        Arc::new_cyclic(|own| Self::own(own, driver, count, limits))
    }

    pub(crate) fn own(own: &Weak<Self>, driver: D, count: u32, limits: CudaLimits) -> Self {
        Self {
            driver,
            count,
            limits,
            process: fastrand::u64(..),
            own: Weak::clone(own),
            state: Mutex::default(),
            signal: Arc::default(),
            has_threads: true,
            #[cfg(test)]
            broken: None,
        }
    }

    /// Starts the thread that awaits the end of queued work, or wakes it.
    pub(crate) fn ensure_thread(&self, state: &mut State<D>) {
        if !self.has_threads {
            return;
        }
        if state.has_thread {
            self.signal.notify();
            return;
        }
        let (shared, signal) = (Weak::clone(&self.own), Arc::clone(&self.signal));
        let thread = std::thread::Builder::new().name("rdzv-cuda".to_owned());
        let begun = thread.spawn(move || {
            while let Some(shared) = shared.upgrade() {
                let is_left = shared.poll();
                let only_sweeps = shared.state.lock().awaited.is_empty();
                drop(shared);
                if is_left {
                    std::thread::sleep(if only_sweeps { SWEEP } else { CHECK });
                    continue;
                }
                signal.let_go();
                let mut wanted = signal.wanted.lock();
                while !std::mem::take(&mut *wanted) {
                    wanted = signal.changed.wait(wanted);
                }
            }
        });
        state.has_thread = begun.is_ok();
    }

    /// Frees segments that [`Lending::sweep`] has removed.
    pub(crate) fn free_segments(&self, segments: Vec<Segment>) {
        for segment in segments {
            for filled in segment.events.into_values() {
                self.driver.destroy(segment.device, filled.event);
            }
            if let Err(fault) = self.driver.free_shared(segment.device, segment.pointer) {
                tracing::warn!(%fault, "cannot free a segment on cuda:{}", segment.device);
            }
        }
    }

    /// `true` unless a test breaks this rule.
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        #[cfg(test)]
        return self.broken != Some(rule);
        #[cfg(not(test))]
        {
            let _ = rule;
            true
        }
    }

    /// Returns one of the copy streams of a device.
    pub(crate) fn stream(&self, device: u32) -> DriverResult<CudaStream> {
        let mut state = self.state.lock();
        let known = state.devices.entry(device).or_default();
        if known.streams.len() < STREAMS {
            let stream = self.driver.stream(device)?;
            known.streams.push(stream);
            return Ok(stream);
        }
        known.next = (known.next + 1) % STREAMS;
        Ok(known.streams[known.next])
    }

    /// Returns the copy streams of a device.
    pub(crate) fn streams(&self, device: u32) -> Vec<CudaStream> {
        let state = self.state.lock();
        let known = state.devices.get(&device);
        known.map_or_else(Vec::new, |known| known.streams.clone())
    }

    /// Records an event at the end of a stream.
    pub(crate) fn mark(&self, device: u32, stream: CudaStream) -> DriverResult<Arc<Mark<D>>> {
        let free = {
            let mut state = self.state.lock();
            state.devices.entry(device).or_default().events.pop()
        };
        let event = match free {
            Some(event) => event,
            None => self.driver.event(device, false)?,
        };
        let mark = Arc::new(Mark {
            device,
            event,
            shared: Weak::clone(&self.own),
        });
        self.driver.record(device, event, stream)?;
        Ok(mark)
    }

    /// Makes later work of a stream wait for a mark.
    pub(crate) fn follow(
        &self,
        device: u32,
        stream: CudaStream,
        mark: &Mark<D>,
    ) -> DriverResult<()> {
        self.driver.wait(device, stream, mark.event)
    }

    /// Keeps values until a mark was reached.
    pub(crate) fn release_after(self: &Arc<Self>, mark: Arc<Mark<D>>, release: Release) {
        let mut state = self.state.lock();
        state.awaited.push(Awaited { mark, release });
        self.ensure_thread(&mut state);
    }

    /// Drops everything whose end of work was reached; `true` if something is left.
    pub(crate) fn poll(&self) -> bool {
        let mut state = self.state.lock();
        // A device that fails does no more work.
        let is_over = |one: &mut Awaited<D>| {
            self.driver.is_done(one.mark.device, one.mark.event) != Ok(false)
        };
        let over: Vec<_> = state.awaited.extract_if(.., is_over).collect();
        for one in &over {
            if let Release::Block(read) = &one.release {
                state.borrowed.end_read(&self.driver, read);
            }
        }
        if state.sweeps {
            let freed = state.lending.sweep(&self.driver);
            state.sweeps = state.lending.is_orphaned();
            self.free_segments(freed);
        }
        let left = !state.awaited.is_empty() || state.sweeps;
        drop(state);
        // A drop may lock the state, and may run code of other libraries.
        drop(over);
        left
    }

    /// Frees memory after its last user.
    pub(crate) fn free(
        &self,
        (device, pointer, len): (u32, Pointer, usize),
        stream: CudaStream,
        ready: Option<&Arc<Mark<D>>>,
        readers: &[CudaStream],
    ) {
        let order = || -> DriverResult<()> {
            if let Some(ready) = ready {
                self.follow(device, stream, ready)?;
            }
            for reader in readers
                .iter()
                .filter(|_| self.keeps(Rule::FreeAfterConsumer))
            {
                // A destroyed stream has no work, but its handle may be invalid.
                let read = self.mark(device, *reader);
                let read = read.or_else(|_| self.mark(device, CudaStream::LEGACY))?;
                self.follow(device, stream, &read)?;
            }
            self.driver.free(device, pointer, stream)
        };
        if let Err(fault) = order() {
            tracing::warn!(%fault, "cannot free {len} bytes on cuda:{device}");
        }
        let mut state = self.state.lock();
        state.devices.entry(device).or_default().received -= len;
    }
}

impl<D: CudaDriver> fmt::Debug for Shared<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cuda({} devices)", self.count)
    }
}

impl<D: CudaDriver> Drop for Shared<D> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for one in state.awaited.drain(..) {
            let mark = &one.mark;
            let _ = self.driver.synchronize(mark.device, mark.event);
            self.driver.destroy(mark.device, mark.event);
            if let Release::Block(read) = &one.release {
                state.borrowed.end_read(&self.driver, read);
            }
        }
        for (index, device) in &state.devices {
            for event in &device.events {
                self.driver.destroy(*index, *event);
            }
        }
        for stager in state.stagers.drain(..) {
            stager.end(&self.driver);
        }
        state.borrowed.end(&self.driver);
        let freed = state.lending.sweep(&self.driver);
        self.free_segments(freed);
        self.signal.notify();
    }
}
