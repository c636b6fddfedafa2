//! Segments of peers that are open in this process.

use std::collections::BTreeMap;

use bytes::Bytes;
use rdzv_rpc_proto::rref::Member;

use crate::driver::{CudaDriver, CudaEvent, Pointer};
use crate::lending::Lending;
use crate::wire::{Card, Description};

/// Segment of a peer on a device of this process.
pub(crate) type Key = (Member, u64, u32);

/// Open segments of peers.
#[derive(Debug, Default)]
pub(crate) struct Borrowed(BTreeMap<Key, Opened>);

#[derive(Debug)]
struct Opened {
    pointer: Pointer,
    size: usize,
    /// `true` if the segment belongs to this process.
    is_own: bool,
    /// Card that the peer gets back at the close.
    ///
    /// `None` if the segment will be closed after its reads.
    card: Option<Bytes>,
    reads: usize,
    events: BTreeMap<usize, CudaEvent>,
}

/// Remedy if CUDA IPC does not work between two containers.
pub(crate) const CONTAINERS: &str = "run all workers of a host in one PID and IPC namespace \
                                     (docker run --pid=host --ipc=host)";

/// Block that is read, with the description that the peer gets back.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) key: Key,
    #[expect(dead_code, reason = "keeps the block")]
    pub(crate) described: Bytes,
}

impl Borrowed {
    /// Opens the segment of a card.
    pub(crate) fn meet(
        &mut self,
        (driver, lending): (&impl CudaDriver, &Lending),
        (key, card, own_process): (Key, &Card, u64),
        kept: &Bytes,
    ) -> Result<(), String> {
        let opened = self.opened((driver, lending), key, || {
            Ok((card.process == own_process, card.handle.handle()?))
        })?;
        opened.card = Some(kept.clone());
        Ok(())
    }

    /// Begins to read a block; returns its address, and the event to wait for.
    pub(crate) fn begin_read(
        &mut self,
        (driver, lending): (&impl CudaDriver, &Lending),
        (key, described, own_process): (Key, &Description, u64),
        len: usize,
    ) -> Result<(Pointer, CudaEvent), String> {
        let opened = self.opened((driver, lending), key, || {
            let handle = described.handle.handle()?;
            Ok((described.process == own_process, handle))
        })?;
        let read = opened.block((driver, lending), key, described, len);
        if read.is_ok() {
            opened.reads += 1;
        }
        self.close_unused(driver, key);
        read
    }

    /// Ends the read of a block.
    pub(crate) fn end_read(&mut self, driver: &impl CudaDriver, read: &Read) {
        if let Some(opened) = self.0.get_mut(&read.key) {
            opened.reads -= 1;
        }
        self.close_unused(driver, read.key);
    }

    /// Closes the segments of a lost peer, after the reads in progress.
    pub(crate) fn lost(&mut self, driver: &impl CudaDriver, peer: Member) {
        let keys: Vec<Key> = self.0.keys().filter(|key| key.0 == peer).copied().collect();
        for key in keys {
            if let Some(opened) = self.0.get_mut(&key) {
                opened.card = None;
            }
            self.close_unused(driver, key);
        }
    }

    /// Closes all segments. The caller has waited for all reads.
    pub(crate) fn end(&mut self, driver: &impl CudaDriver) {
        for (key, opened) in std::mem::take(&mut self.0) {
            opened.close(driver, key);
        }
    }

    /// `true` if no segment is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of open segments of peers.
    pub(crate) fn count(&self) -> usize {
        self.0.values().filter(|opened| !opened.is_own).count()
    }

    fn opened(
        &mut self,
        (driver, lending): (&impl CudaDriver, &Lending),
        key: Key,
        source: impl FnOnce() -> Result<(bool, crate::driver::IpcHandle), String>,
    ) -> Result<&mut Opened, String> {
        use std::collections::btree_map::Entry;
        Ok(match self.0.entry(key) {
            Entry::Occupied(opened) => opened.into_mut(),
            Entry::Vacant(vacant) => {
                let (is_own, handle) = source()?;
                let (pointer, size) = if is_own {
                    let own = lending.own(key.1, 0).ok_or("the segment was freed")?;
                    (own.0, own.1)
                } else {
                    let opened = driver.open(key.2, &handle);
                    opened.map_err(|fault| {
                        let help = fault.help().unwrap_or(CONTAINERS);
                        format!("CUDA IPC was refused: {fault}\nhelp: {help}")
                    })?
                };
                vacant.insert(Opened {
                    pointer,
                    size,
                    is_own,
                    card: None,
                    reads: 0,
                    events: BTreeMap::new(),
                })
            }
        })
    }

    fn close_unused(&mut self, driver: &impl CudaDriver, key: Key) {
        let is_unused = |opened: &Opened| opened.card.is_none() && opened.reads == 0;
        if self.0.get(&key).is_some_and(is_unused)
            && let Some(opened) = self.0.remove(&key)
        {
            opened.close(driver, key);
        }
    }
}

impl Opened {
    fn block(
        &mut self,
        (driver, lending): (&impl CudaDriver, &Lending),
        key: Key,
        described: &Description,
        len: usize,
    ) -> Result<(Pointer, CudaEvent), String> {
        let offset = usize::try_from(described.offset).map_err(|error| error.to_string())?;
        let end = offset.checked_add(len).filter(|end| *end <= self.size);
        if end.is_none() {
            return Err(format!(
                "{len} bytes at {offset} are not in a segment of {} bytes",
                self.size
            ));
        }
        let event = if self.is_own {
            let own = lending.own(key.1, offset);
            own.and_then(|own| own.2).ok_or("the block was not lent")?
        } else if let Some(event) = self.events.get(&offset) {
            *event
        } else {
            let handle = described.event.handle()?;
            let event = driver.open_event(key.2, &handle);
            let event = event.map_err(|fault| format!("CUDA IPC was refused: {fault}"))?;
            self.events.insert(offset, event);
            event
        };
        Ok((self.pointer.plus(offset), event))
    }

    fn close(self, driver: &impl CudaDriver, key: Key) {
        if self.is_own {
            return;
        }
        for event in self.events.into_values() {
            driver.destroy(key.2, event);
        }
        driver.close(key.2, self.pointer);
    }
}
