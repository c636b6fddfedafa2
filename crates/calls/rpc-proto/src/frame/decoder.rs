//! From the bytes of a connection to frames, however the bytes are cut.

use bytes::Bytes;

use super::error::FrameError;
use super::header::{HEADER_LENGTH, Header};
use super::limits::Limits;
use super::part::{Frame, Part, PartHead, PartLocation, SECTION_LENGTH};
use super::staging::{LEAST_ROOM, Staging};

/// Bodies and parts that are shorter, in bytes, are received in the staging buffer; others straight
/// in memory of their own.
pub const SMALL: usize = LEAST_ROOM;

/// The most to reserve, in bytes, for a body or part of which nothing has come.
pub const AHEAD: usize = 256 << 10;

/// The bytes to reserve for a body or part of `length` bytes of which `received` have come: at least one
/// more, unless that is all, and never more than as many again and [`AHEAD`].
pub fn to_reserve(received: usize, length: usize) -> usize {
    length.min(received.saturating_mul(2).max(AHEAD))
}

/// Where the bytes of large bodies and inline parts are received.
///
/// A part that is announced may never come, so a supply reserves no more than [`to_reserve`] says;
/// memory that it has anyway may be larger.
pub trait Supply {
    /// Memory to receive in. Its length is what can be received in it until it is [grown](Supply::grow).
    type Buffer: AsMut<[u8]>;

    /// Memory for a body or part of `length` bytes, of which nothing has come: at least one byte, `length` at most.
    fn buffer(&mut self, length: usize) -> Self::Buffer;

    /// More memory for a body or part of `length` bytes whose buffer is full and shorter; what is in it stays. Says
    /// whether there is any.
    #[must_use]
    fn grow(&mut self, buffer: &mut Self::Buffer, length: usize) -> bool;

    /// The bytes of a buffer that is full.
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

/// Makes frames of received bytes.
///
/// Its owner reads into [`room`](Self::room), says with [`filled`](Self::filled) how much came, and
/// calls [`next`](Self::next) until there is no frame any more. Bytes of large parts are so read
/// straight to where they stay. At most one frame is in flight, and for that no more is reserved
/// than [`to_reserve`] says, a part when its turn comes.
#[derive(Debug)]
pub struct Decoder<S: Supply> {
    limits: Limits,
    supply: S,
    staging: Staging,
    arriving: Option<Arriving>,
    filling: Option<Filling<S::Buffer>>,
    failed: Option<FrameError>,
}

/// A frame whose header is here.
#[derive(Debug)]
struct Arriving {
    header: Header,
    body_length: usize,
    sections: usize,
    /// Bytes of body and parts, as far as they were announced.
    total: u64,
    heads: Vec<PartHead>,
    body: Option<Bytes>,
    parts: Vec<Part>,
}

/// A body or part that is received straight in its own memory.
#[derive(Debug)]
struct Filling<B> {
    memory: B,
    filled: usize,
    length: usize,
}

impl<B: AsMut<[u8]>> Filling<B> {
    /// Where the next bytes of it belong.
    fn rest(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut();
        let reserved = memory.len().min(self.length);
        &mut memory[self.filled..reserved]
    }
}

impl<S: Supply> Decoder<S> {
    /// Nothing was received yet.
    pub fn new(limits: Limits, supply: S) -> Self {
        Self {
            limits,
            supply,
            staging: Staging::default(),
            arriving: None,
            filling: None,
            failed: None,
        }
    }

    /// Other limits, for the frames that [`next`](Self::next) has not begun with.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether nothing of an unfinished frame is here: a connection may close now.
    pub fn is_between_frames(&self) -> bool {
        self.arriving.is_none() && self.staging.waiting().is_empty()
    }

    /// Where the next bytes belong. It is never empty.
    pub fn room(&mut self) -> &mut [u8] {
        match &mut self.filling {
            Some(filling) => filling.rest(),
            None => self.staging.room(),
        }
    }

    /// So many bytes were written at the beginning of the [`room`](Self::room).
    ///
    /// # Panics
    ///
    /// If the room is smaller.
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

    /// The next frame, if all of it is here.
    ///
    /// # Errors
    ///
    /// [`FrameError`] if the bytes are no frame, or break a limit; the same again ever after.
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

    /// Takes the sections that are here; tells whether all of them were.
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

    /// Takes the body; tells whether it is complete.
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

    /// Takes the next part; tells whether there was one, and it is complete.
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
        // Copied, because a part may be kept for long and would keep the whole staging buffer, and
        // because memory of its own is aligned for numbers.
        frame.parts.push(Part::Here(Bytes::copy_from_slice(bytes)));
        self.staging.skip(length);
        Ok(true)
    }

    /// Begins to fill memory of its own with what is here of a body or part; tells whether that was all.
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

    /// Hands a body or part that is complete to its frame; tells whether it did. One that has no room any
    /// more gets some.
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
    fn new(bytes: &[u8; HEADER_LENGTH], limits: &Limits) -> Result<Self, FrameError> {
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
