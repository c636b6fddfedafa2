//! Driver of a simulated world, with late streams and checked memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rdzv_lock::Mutex;

use crate::driver::{
    CudaDriver, CudaEvent, CudaStream, DriverResult, Fault, HANDLE, IpcHandle, Pointer,
};

/// Process of the world.
pub(super) type Process = u32;

/// Number of devices in each process.
pub(super) const DEVICES: u32 = 2;

/// Work in a stream.
#[derive(Debug, Clone)]
enum Work {
    Copy {
        to: u64,
        from: u64,
        len: usize,
    },
    Wait {
        event: u64,
        records: u64,
    },
    Record {
        event: u64,
        records: u64,
    },
    /// Writes bytes, as a kernel of the application.
    Kernel {
        to: u64,
        bytes: Vec<u8>,
    },
    /// Reads bytes, as a kernel of the application.
    Check {
        from: u64,
        bytes: Vec<u8>,
    },
    Free(u64),
}

#[derive(Debug)]
struct Queue {
    process: Process,
    work: VecDeque<Work>,
}

#[derive(Debug, Default)]
struct Records {
    process: Process,
    /// Number of the last record; 0 for none.
    queued: u64,
    /// Records that were reached, in any order.
    reached: BTreeSet<u64>,
}

impl Records {
    fn is_reached(&self, record: u64) -> bool {
        record == 0 || self.reached.contains(&record)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Memory of the application, or of a stream.
    Plain,
    Shared,
    Pinned,
}

#[derive(Debug)]
struct Memory {
    process: Process,
    bytes: Vec<u8>,
    kind: Kind,
    /// Ranges that a process was to write when it was killed.
    undefined: Vec<Range<usize>>,
}

impl Memory {
    fn is_undefined(&self, range: &Range<usize>) -> bool {
        let overlaps = |one: &Range<usize>| one.start < range.end && range.start < one.end;
        self.undefined.iter().any(overlaps)
    }
}

/// World of several processes.
#[derive(Debug, Default)]
pub(super) struct World {
    next: u64,
    streams: BTreeMap<u64, Queue>,
    events: BTreeMap<u64, Records>,
    memory: BTreeMap<u64, Memory>,
    /// Shared memory that is open: opening process, address of the memory.
    opened: BTreeMap<u64, (Process, u64)>,
    opened_events: BTreeMap<u64, u64>,
    /// Processes that were killed; what they have sent has no defined content.
    dead: Vec<Process>,
    pub(super) wrong: Vec<String>,
    /// Fault of the function with this name.
    pub(super) failing: BTreeMap<&'static str, Fault>,
    /// Calls by function, for tests.
    pub(super) calls: BTreeMap<&'static str, usize>,
    random: Option<fastrand::Rng>,
}

impl World {
    pub(super) fn new(seed: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            next: 1 << 20,
            random: Some(fastrand::Rng::with_seed(seed)),
            ..Self::default()
        }))
    }

    fn id(&mut self) -> u64 {
        // Addresses are never reused, so that a late use of freed memory is found.
        self.next += 1 << 24;
        self.next
    }

    fn error(&mut self, text: String) {
        self.wrong.push(text);
    }

    pub(super) fn new_stream(&mut self, process: Process) -> u64 {
        let id = self.id();
        let work = VecDeque::new();
        self.streams.insert(id, Queue { process, work });
        id
    }

    fn new_memory(&mut self, process: Process, len: usize, kind: Kind) -> u64 {
        let id = self.id();
        let bytes = vec![0xAA; len];
        self.memory.insert(
            id,
            Memory {
                process,
                bytes,
                kind,
                undefined: Vec::new(),
            },
        );
        id
    }

    /// Allocates memory of the application.
    pub(super) fn tensor(&mut self, process: Process, len: usize) -> u64 {
        self.new_memory(process, len, Kind::Plain)
    }

    /// Frees memory of the application immediately, as its allocator may.
    pub(super) fn drop_tensor(&mut self, address: u64) {
        self.memory.remove(&address);
    }

    pub(super) fn kernel(&mut self, stream: u64, to: u64, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.push(stream, Work::Kernel { to, bytes });
    }

    pub(super) fn check(&mut self, stream: u64, from: u64, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.push(stream, Work::Check { from, bytes });
    }

    fn push(&mut self, stream: u64, work: Work) {
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.work.push_back(work);
        }
    }

    /// Returns the memory at an address, and the offset in it.
    fn find(&self, address: u64) -> Option<(u64, usize)> {
        let opened = self.opened.range(..=address).next_back();
        if let Some((start, (_, target))) = opened
            && let Some(memory) = self.memory.get(target)
            && address - start < memory.bytes.len() as u64
        {
            return Some((*target, (address - start) as usize));
        }
        let (start, memory) = self.memory.range(..=address).next_back()?;
        let offset = (address - start) as usize;
        (offset < memory.bytes.len()).then_some((*start, offset))
    }

    fn load(&mut self, address: u64, len: usize) -> Option<Vec<u8>> {
        let (start, offset) = self.find(address)?;
        let bytes = self.memory.get(&start)?.bytes.get(offset..offset + len);
        bytes.map(<[u8]>::to_vec)
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let (start, offset) = self.find(address)?;
        let memory = self.memory.get_mut(&start)?;
        let range = offset..offset + bytes.len();
        memory.bytes.get_mut(range.clone())?.copy_from_slice(bytes);
        memory
            .undefined
            .retain(|one| one.start < range.start || one.end > range.end);
        Some(())
    }

    fn is_undefined(&self, address: u64, len: usize) -> bool {
        let found = self.find(address);
        found.is_some_and(|(start, offset)| {
            self.memory[&start].is_undefined(&(offset..offset + len))
        })
    }

    fn set_undefined(&mut self, address: u64, len: usize) {
        if let Some((start, offset)) = self.find(address)
            && let Some(memory) = self.memory.get_mut(&start)
        {
            memory.undefined.push(offset..offset + len);
        }
    }

    fn is_runnable(&self, work: &Work) -> bool {
        let Work::Wait { event, records } = work else {
            return true;
        };
        self.events
            .get(event)
            .is_none_or(|event| event.is_reached(*records) || self.dead.contains(&event.process))
    }

    /// Runs one piece of work of a random stream; `false` if no stream can run.
    pub(super) fn step(&mut self) -> bool {
        let ready = self.streams.iter().filter(|(_, queue)| {
            let first = queue.work.front();
            first.is_some_and(|work| self.is_runnable(work))
        });
        let ready: Vec<u64> = ready.map(|(id, _)| *id).collect();
        let random = self.random.as_mut().expect("a world has a seed");
        let Some(stream) = random.choice(ready) else {
            return false;
        };
        let queue = self.streams.get_mut(&stream).expect("it was found");
        let process = queue.process;
        let work = queue.work.pop_front().expect("it has work");
        self.run(process, work);
        true
    }

    fn run(&mut self, process: Process, work: Work) {
        match work {
            Work::Copy { to, from, len } => {
                let is_undefined = self.is_undefined(from, len);
                let copied = self
                    .load(from, len)
                    .and_then(|bytes| self.store(to, &bytes));
                if is_undefined {
                    self.set_undefined(to, len);
                }
                if copied.is_none() {
                    self.error(format!("process {process}: a copy uses freed memory"));
                }
            }
            Work::Kernel { to, bytes } => {
                // The application may drop a tensor before its own kernel has run.
                let _ = self.store(to, &bytes);
            }
            Work::Check { from, bytes } => match self.load(from, bytes.len()) {
                None => self.error(format!("process {process}: a kernel reads freed memory")),
                Some(found) if found != bytes && !self.is_undefined(from, bytes.len()) => {
                    let first = (0..bytes.len()).find(|at| found[*at] != bytes[*at]);
                    self.error(format!(
                        "process {process}: a kernel reads other bytes: {first:?} of {}: {:?}",
                        bytes.len(),
                        &found[..found.len().min(4)]
                    ));
                }
                Some(_) => {}
            },
            Work::Wait { .. } => {}
            Work::Record { event, records } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.reached.insert(records);
                }
            }
            Work::Free(address) => {
                if self.memory.remove(&address).is_none() {
                    self.error(format!("process {process}: memory is freed twice"));
                }
            }
        }
    }

    /// `true` if queued work of a process uses memory from an address on.
    fn is_used(&self, process: Process, start: u64, len: usize) -> bool {
        let inside = |address: u64| address >= start && address - start < len as u64;
        let own = self.streams.values().filter(|one| one.process == process);
        own.flat_map(|queue| &queue.work).any(|work| match work {
            Work::Copy { to, from, .. } => inside(*to) || inside(*from),
            _ => false,
        })
    }

    /// Ends a process; its queued work never runs.
    pub(super) fn kill(&mut self, process: Process) {
        self.dead.push(process);
        let lost = self.streams.values().filter(|one| one.process == process);
        let lost: Vec<Work> = lost.flat_map(|one| one.work.clone()).collect();
        for work in lost {
            if let Work::Copy { to, len, .. } = work {
                self.set_undefined(to, len);
            }
        }
        self.streams.retain(|_, queue| queue.process != process);
        self.opened.retain(|_, (owner, _)| *owner != process);
        let open: Vec<u64> = self.opened.values().map(|(_, target)| *target).collect();
        self.memory
            .retain(|id, memory| memory.process != process || open.contains(id));
    }

    /// Returns memory, events and openings that living processes have left.
    pub(super) fn leaks(&self) -> Vec<String> {
        let living = |process: &Process| !self.dead.contains(process);
        let memory = self.memory.values().filter(|one| living(&one.process));
        let memory = memory.map(|one| format!("{:?} memory of {}", one.kind, one.process));
        let events = self.events.values().filter(|one| living(&one.process));
        let events = events.map(|one| format!("event of {}", one.process));
        let opened = self.opened.values().filter(|one| living(&one.0));
        let opened = opened.map(|one| format!("opened by {}", one.0));
        memory.chain(events).chain(opened).collect()
    }

    fn called(&mut self, function: &'static str) -> DriverResult<()> {
        *self.calls.entry(function).or_default() += 1;
        self.failing.get(function).cloned().map_or(Ok(()), Err)
    }
}

/// Driver of one process.
#[derive(Clone)]
pub(super) struct Fake {
    pub(super) world: Arc<Mutex<World>>,
    pub(super) process: Process,
}

impl Fake {
    /// `true` after the end of the process, which does nothing more.
    fn is_dead(&self, world: &World) -> bool {
        world.dead.contains(&self.process)
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {}", self.process)
    }
}

fn handle_of(id: u64) -> IpcHandle {
    let mut handle = [0; HANDLE];
    handle[..8].copy_from_slice(&id.to_le_bytes());
    handle
}

fn id_of(handle: &IpcHandle) -> u64 {
    u64::from_le_bytes(handle[..8].try_into().unwrap())
}

pub(super) fn fault(function: &'static str, code: u32, name: &str) -> Fault {
    let name = name.to_owned();
    Fault::Call {
        function,
        code,
        name,
    }
}

impl CudaDriver for Fake {
    fn version(&self) -> DriverResult<u32> {
        self.world.lock().called("cuDriverGetVersion")?;
        Ok(13_020)
    }

    fn count(&self) -> DriverResult<u32> {
        Ok(DEVICES)
    }

    fn stream(&self, _: u32) -> DriverResult<CudaStream> {
        let mut world = self.world.lock();
        world.called("cuStreamCreate")?;
        Ok(CudaStream(world.new_stream(self.process)))
    }

    fn event(&self, _: u32, _: bool) -> DriverResult<CudaEvent> {
        let mut world = self.world.lock();
        world.called("cuEventCreate")?;
        let id = world.id();
        let process = self.process;
        world.events.insert(
            id,
            Records {
                process,
                ..Records::default()
            },
        );
        Ok(CudaEvent(id))
    }

    fn destroy(&self, _: u32, event: CudaEvent) {
        let mut world = self.world.lock();
        if self.is_dead(&world) {
            return;
        }
        if world.opened_events.remove(&event.0).is_none() && world.events.remove(&event.0).is_none()
        {
            world.error("an event is destroyed twice".to_owned());
        }
    }

    fn record(&self, _: u32, event: CudaEvent, stream: CudaStream) -> DriverResult<()> {
        let mut world = self.world.lock();
        world.called("cuEventRecord")?;
        if self.is_dead(&world) {
            return Ok(());
        }
        if !world.streams.contains_key(&stream.0) && stream != CudaStream::LEGACY {
            return Err(fault("cuEventRecord", 400, "CUDA_ERROR_INVALID_HANDLE"));
        }
        let records = world.events.get_mut(&event.0).unwrap();
        records.queued += 1;
        let (event, records) = (event.0, records.queued);
        world.push(stream.0, Work::Record { event, records });
        Ok(())
    }

    fn wait(&self, _: u32, stream: CudaStream, event: CudaEvent) -> DriverResult<()> {
        let mut world = self.world.lock();
        world.called("cuStreamWaitEvent")?;
        let event = world
            .opened_events
            .get(&event.0)
            .copied()
            .unwrap_or(event.0);
        let records = world.events.get(&event).map_or(0, |event| event.queued);
        world.push(stream.0, Work::Wait { event, records });
        Ok(())
    }

    fn is_done(&self, _: u32, event: CudaEvent) -> DriverResult<bool> {
        let world = self.world.lock();
        if self.is_dead(&world) {
            return Ok(true);
        }
        let event = &world.events[&event.0];
        Ok(event.is_reached(event.queued))
    }

    fn synchronize(&self, _: u32, event: CudaEvent) -> DriverResult<()> {
        let mut world = self.world.lock();
        world.called("cuEventSynchronize")?;
        if self.is_dead(&world) {
            return Ok(());
        }
        let wanted = world.events[&event.0].queued;
        while !world.events[&event.0].is_reached(wanted) {
            assert!(world.step(), "the event is never reached");
        }
        Ok(())
    }

    fn allocate(&self, _: u32, len: usize, _: CudaStream) -> DriverResult<Pointer> {
        let mut world = self.world.lock();
        world.called("cuMemAllocFromPoolAsync")?;
        Ok(Pointer(world.new_memory(self.process, len, Kind::Plain)))
    }

    fn free(&self, _: u32, pointer: Pointer, stream: CudaStream) -> DriverResult<()> {
        self.world.lock().push(stream.0, Work::Free(pointer.0));
        Ok(())
    }

    fn allocate_shared(&self, _: u32, len: usize) -> DriverResult<Pointer> {
        let mut world = self.world.lock();
        world.called("cuMemAlloc_v2")?;
        Ok(Pointer(world.new_memory(self.process, len, Kind::Shared)))
    }

    fn free_shared(&self, _: u32, pointer: Pointer) -> DriverResult<()> {
        let mut world = self.world.lock();
        if self.is_dead(&world) {
            return Ok(());
        }
        if world.opened.values().any(|one| one.1 == pointer.0) {
            world.error("a segment is freed while a peer has it open".to_owned());
        }
        let len = world.memory[&pointer.0].bytes.len();
        if world.is_used(self.process, pointer.0, len) {
            world.error("a segment is freed while work uses it".to_owned());
        }
        world.memory.remove(&pointer.0);
        Ok(())
    }

    fn copy(
        &self,
        _: u32,
        to: Pointer,
        from: Pointer,
        len: usize,
        stream: CudaStream,
    ) -> DriverResult<()> {
        let mut world = self.world.lock();
        world.called("cuMemcpyAsync")?;
        let (to, from) = (to.0, from.0);
        world.push(stream.0, Work::Copy { to, from, len });
        Ok(())
    }

    fn pin(&self, _: u32, len: usize) -> DriverResult<Pointer> {
        let mut world = self.world.lock();
        world.called("cuMemHostAlloc")?;
        Ok(Pointer(world.new_memory(self.process, len, Kind::Pinned)))
    }

    fn unpin(&self, _: u32, pointer: Pointer) {
        let mut world = self.world.lock();
        if self.is_dead(&world) {
            return;
        }
        let len = world.memory[&pointer.0].bytes.len();
        if world.is_used(self.process, pointer.0, len) {
            world.error("pinned memory is freed while work uses it".to_owned());
        }
        world.memory.remove(&pointer.0);
    }

    fn write(&self, to: Pointer, bytes: &[u8]) {
        self.world.lock().store(to.0, bytes).unwrap();
    }

    fn read(&self, from: Pointer, len: usize, into: &mut Vec<u8>) {
        into.extend(self.world.lock().load(from.0, len).unwrap());
    }

    fn export(&self, _: u32, pointer: Pointer) -> DriverResult<IpcHandle> {
        self.world.lock().called("cuIpcGetMemHandle")?;
        Ok(handle_of(pointer.0))
    }

    fn open(&self, _: u32, handle: &IpcHandle) -> DriverResult<(Pointer, usize)> {
        let mut world = self.world.lock();
        world.called("cuIpcOpenMemHandle_v2")?;
        let target = id_of(handle);
        let Some(memory) = world.memory.get(&target) else {
            return Err(fault(
                "cuIpcOpenMemHandle_v2",
                1,
                "CUDA_ERROR_INVALID_VALUE",
            ));
        };
        let size = memory.bytes.len();
        let id = world.id();
        world.opened.insert(id, (self.process, target));
        Ok((Pointer(id), size))
    }

    fn close(&self, _: u32, pointer: Pointer) {
        let mut world = self.world.lock();
        if self.is_dead(&world) {
            return;
        }
        let target = world.opened[&pointer.0].1;
        let len = world.memory[&target].bytes.len();
        if world.is_used(self.process, pointer.0, len) {
            world.error("a segment is closed while work reads it".to_owned());
        }
        world.opened.remove(&pointer.0);
    }

    fn export_event(&self, _: u32, event: CudaEvent) -> DriverResult<IpcHandle> {
        Ok(handle_of(event.0))
    }

    fn open_event(&self, _: u32, handle: &IpcHandle) -> DriverResult<CudaEvent> {
        let mut world = self.world.lock();
        world.called("cuIpcOpenEventHandle")?;
        let id = world.id();
        world.opened_events.insert(id, id_of(handle));
        Ok(CudaEvent(id))
    }
}
