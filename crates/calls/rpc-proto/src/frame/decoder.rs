//! Decoding of frames from the bytes of a connection, in pieces of any length.

use bytes::Bytes;

use super::error::FrameError;
use super::header::{HEADER_LENGTH, Header};
use super::limits::FrameLimits;
use super::part::{Frame, Part, PartHead, PartLocation, SECTION_LENGTH};
use super::staging::{LEAST_ROOM, Staging};

/// Minimum length of bodies and parts that bypass the staging buffer.
///
/// Bytes that have not arrived yet are received directly into their final memory.
pub const SMALL: usize = LEAST_ROOM;

/// Maximum number of bytes to reserve for a body or part before it arrives.
pub const AHEAD: usize = 256 << 10;

/// Returns the bytes to reserve for a body or part, including `received`.
///
/// This is `length`, but at most the larger of twice `received` and [`AHEAD`].
pub fn to_reserve(received: usize, length: usize) -> usize {
    length.min(received.saturating_mul(2).max(AHEAD))
}

/// Source of memory for large bodies and inline parts.
///
/// An announced part may never arrive, so a supply reserves at most [`to_reserve`]. Memory that the
/// supply already has may be larger.
pub trait Supply {
    /// Receive memory, usable up to its length until it is [grown](Supply::grow).
    type Buffer: AsMut<[u8]>;

    /// Returns memory of 1 to `length` bytes for a body or part of `length` bytes.
    fn buffer(&mut self, length: usize) -> Self::Buffer;

    /// Grows a full buffer of a longer body or part, and keeps its content.
    ///
    /// Returns `false` if there is no memory.
    #[must_use]
    fn grow(&mut self, buffer: &mut Self::Buffer, length: usize) -> bool;

    /// Returns the bytes of a full buffer.
    fn freeze(&mut self, buffer: Self::Buffer) -> Bytes;
}

/// Memory from the allocator.
#[derive(Debug, Clone, Copy, Default)]
pub struct FromHeap;

impl Supply for FromHeap {
    type Buffer = Vec<u8>;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        vec![0; to_reserve(0, length)]
    }

    fn grow(&mut self, buffer: &mut Vec<u8>, length: usize) -> bool {
        let reserved = to_reserve(buffer.len(), length);
        if buffer.try_reserve_exact(reserved - buffer.len()).is_err() {
            return false;
        }
        buffer.resize(reserved, 0);
        true
    }

    fn freeze(&mut self, buffer: Vec<u8>) -> Bytes {
        buffer.into()
    }
}

/// Decoder that converts received bytes to frames.
///
/// Its owner reads into [`room`](Self::room), reports the number of bytes with
/// [`filled`](Self::filled), and calls [`next`](Self::next) until there is no further frame. Bytes
/// of large parts are read directly into their final memory, except the first ones. At most one
/// frame is in progress. The decoder reserves memory for a large body or part only when that comes
/// next, and at most [`to_reserve`].
#[derive(Debug)]
pub struct Decoder<S: Supply> {
    limits: FrameLimits,
    supply: S,
    staging: Staging,
    arriving: Option<Arriving>,
    filling: Option<Filling<S::Buffer>>,
    failed: Option<FrameError>,
}

/// Frame whose header has arrived.
#[derive(Debug)]
struct Arriving {
    header: Header,
    body_length: usize,
    sections: usize,
    /// Announced bytes of body and parts until now.
    total: u64,
    heads: Vec<PartHead>,
    body: Option<Bytes>,
    parts: Vec<Part>,
}

/// Body or part that is received directly into separate memory.
#[derive(Debug)]
struct Filling<B> {
    memory: B,
    filled: usize,
    length: usize,
}

impl<B: AsMut<[u8]>> Filling<B> {
    /// Returns the memory for the next bytes.
    fn rest(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut();
        let reserved = memory.len().min(self.length);
        &mut memory[self.filled..reserved]
    }
}

impl<S: Supply> Decoder<S> {
    /// Creates a decoder that has received nothing.
    pub fn new(limits: FrameLimits, supply: S) -> Self {
        Self {
            limits,
            supply,
            staging: Staging::default(),
            arriving: None,
            filling: None,
            failed: None,
        }
    }

    /// Sets the limits for headers and sections that are not decoded yet.
    pub fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }

    /// `true` if the connection may close: no frame is incomplete or undecoded.
    pub fn is_between_frames(&self) -> bool {
        self.arriving.is_none() && self.staging.waiting().is_empty()
    }

    /// Returns the memory for the next bytes, which is never empty.
    pub fn room(&mut self) -> &mut [u8] {
        match &mut self.filling {
            Some(filling) => filling.rest(),
            None => self.staging.room(),
        }
    }

    /// Records bytes that were written to the start of the [`room`](Self::room).
    ///
    /// # Panics
    ///
    /// Panics if the room is smaller.
    pub fn filled(&mut self, count: usize) {
        match &mut self.filling {
            Some(filling) => {
                assert!(
                    count <= filling.rest().len(),
                    "no more than the room can be filled"
                );
                filling.filled += count;
                self.go_on_filling();
            }
            None => self.staging.filled(count),
        }
    }

    /// Returns the next frame, if it has arrived completely.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the bytes are not a frame or exceed a limit, or if there is no memory for
    /// them. Every later call returns the same error.
    #[expect(
        clippy::should_implement_trait,
        reason = "no iterator: more may come after it has returned nothing"
    )]
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let frame = self.decode();
        if let Err(error) = &frame {
            self.failed = Some(error.clone());
            self.arriving = None;
        }
        frame
    }

    fn decode(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.arriving.is_none() {
            let Some(bytes) = self.staging.peek::<HEADER_LENGTH>() else {
                return Ok(None);
            };
            self.arriving = Some(Arriving::new(bytes, &self.limits)?);
            self.staging.skip(HEADER_LENGTH);
        }
        if self.filling.is_some() || !self.take_sections()? {
            return Ok(None);
        }
        let has_body = self.take_body();
        while has_body && self.take_part()? {}
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if !has_body {
            return Ok(None);
        }
        let complete = |frame: &mut Arriving| frame.parts.len() == frame.sections;
        let frame = self.arriving.take_if(complete);
        Ok(frame.map(|frame| Frame {
            header: frame.header,
            body: frame.body.unwrap_or_default(),
            parts: frame.parts,
        }))
    }

    /// Consumes the sections that have arrived; `true` if these are all.
    fn take_sections(&mut self) -> Result<bool, FrameError> {
        let Some(frame) = &mut self.arriving else {
            return Ok(false);
        };
        while frame.heads.len() < frame.sections {
            let Some(bytes) = self.staging.peek::<SECTION_LENGTH>() else {
                return Ok(false);
            };
            let head = PartHead::from_bytes(bytes)?;
            frame.total = self.limits.add(frame.total, head.length)?;
            frame.heads.push(head);
            self.staging.skip(SECTION_LENGTH);
        }
        Ok(true)
    }

    /// Consumes the body; `true` if it is complete.
    fn take_body(&mut self) -> bool {
        let Some(frame) = &mut self.arriving else {
            return false;
        };
        if frame.body.is_some() {
            return true;
        }
        let length = frame.body_length;
        if length < SMALL {
            if self.staging.waiting().len() < length {
                return false;
            }
            frame.body = Some(match length {
                0 => Bytes::new(),
                _ => self.staging.take(length),
            });
            return true;
        }
        self.fill(length)
    }

    /// Consumes the next part; `true` if there was a part and it is complete.
    fn take_part(&mut self) -> Result<bool, FrameError> {
        let Some(frame) = &mut self.arriving else {
            return Ok(false);
        };
        let Some(head) = frame.heads.get(frame.parts.len()).copied() else {
            return Ok(false);
        };
        if head.location != PartLocation::Inline {
            frame.parts.push(Part::Elsewhere(head));
            return Ok(true);
        }
        let length = usize::try_from(head.length).map_err(|_| FrameError::Total {
            announced: head.length,
            limit: usize::MAX as u64,
        })?;
        if length >= SMALL {
            return Ok(self.fill(length));
        }
        let Some(bytes) = self.staging.waiting().get(..length) else {
            return Ok(false);
        };
        // The part is copied, because it may be kept for long and would keep the whole staging
        // buffer. Separate memory is also aligned for numbers.
        frame.parts.push(Part::Here(Bytes::copy_from_slice(bytes)));
        self.staging.skip(length);
        Ok(true)
    }

    /// Starts to fill separate memory with the received bytes of a body or part.
    ///
    /// Returns `true` if the body or part is complete.
    fn fill(&mut self, length: usize) -> bool {
        self.filling = Some(Filling {
            memory: self.supply.buffer(length),
            filled: 0,
            length,
        });
        loop {
            let Some(filling) = &mut self.filling else {
                return true;
            };
            let rest = filling.rest();
            let here = self.staging.waiting().len().min(rest.len());
            rest[..here].copy_from_slice(&self.staging.waiting()[..here]);
            filling.filled += here;
            self.staging.skip(here);
            if self.go_on_filling() {
                return true;
            }
            if self.staging.waiting().is_empty() || self.failed.is_some() {
                return false;
            }
        }
    }

    /// Adds a complete body or part to its frame; `true` if it was complete.
    ///
    /// A body or part with a full buffer gets more memory.
    fn go_on_filling(&mut self) -> bool {
        let (Some(filling), Some(frame)) = (&mut self.filling, &mut self.arriving) else {
            return false;
        };
        if filling.filled < filling.length {
            if filling.rest().is_empty() {
                let length = filling.length;
                if !self.supply.grow(&mut filling.memory, length) {
                    self.failed = Some(FrameError::NoMemory(length));
                    self.filling = None;
                }
            }
            return false;
        }
        let Some(filling) = self.filling.take() else {
            return false;
        };
        let bytes = self.supply.freeze(filling.memory);
        match &frame.body {
            None => frame.body = Some(bytes),
            Some(_) => frame.parts.push(Part::Here(bytes)),
        }
        true
    }
}

impl Arriving {
    fn new(bytes: &[u8; HEADER_LENGTH], limits: &FrameLimits) -> Result<Self, FrameError> {
        let (header, body, sections) = Header::from_bytes(bytes)?;
        let total = limits.check_head(u64::from(body), u64::from(sections))?;
        Ok(Self {
            header,
            body_length: body as usize,
            sections: usize::from(sections),
            total,
            heads: Vec::new(),
            body: None,
            parts: Vec::new(),
        })
    }
}
