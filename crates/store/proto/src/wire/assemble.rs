//! Assembling a request that arrives in pieces.
//!
//! The work per request is linear in its size, regardless of the sizes of the pieces. The memory
//! held is the received bytes plus at most as much again, or 64 KiB if that is more (see
//! `Arriving::space`). A large value is collected in its own buffer, and a driver may even read
//! directly into that buffer.

use super::fields::{Field, within};
use super::request::{Opcode, Request, decode_parts, is_extension};
use super::{Arriving, LARGE_BODY, StoreWireError};
use crate::limits::Limits;
use crate::meter::{Meter, Shared};

/// The unfinished request of one connection.
#[derive(Debug)]
pub struct Assembler {
    /// Bytes of the request until now, without its large bodies.
    bytes: Vec<u8>,
    /// Large bodies that are complete, in order.
    bodies: Vec<Shared>,
    body: Option<Arriving>,
    /// Number of bytes of `bytes` that have been parsed.
    scanned: usize,
    /// Number of further bytes that `step` needs.
    need: usize,
    step: Step,
    /// The fields after the one in progress.
    fields: &'static [Field],
    list: List,
}

/// The content of the next `need` bytes.
#[derive(Debug, Clone, Copy)]
enum Step {
    Opcode,
    /// A number (no length or count), or bytes of a key, small value or payload.
    Content,
    Length(Field),
}

#[derive(Debug, Clone, Copy)]
enum List {
    Keys(usize),
    /// Twice the number of pairs.
    /// A key is next if this number is even, and a value if it is odd.
    Pairs(usize),
}

impl Default for Assembler {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            bodies: Vec::new(),
            body: None,
            scanned: 0,
            need: 1,
            step: Step::Opcode,
            fields: &[],
            list: List::Keys(0),
        }
    }
}

impl Assembler {
    /// `true` if no request is in progress.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// `true` if a large body has been read into [`Assembler::space`] completely.
    pub fn has_landed(&self) -> bool {
        let body = self.body.as_ref();
        body.is_some_and(|body| body.missing() == 0)
    }

    /// Returns the memory held, without complete large bodies.
    /// The meter counts complete large bodies.
    pub fn buffered(&self) -> usize {
        let arriving = self.body.as_ref().map_or(0, |body| body.buffer.capacity());
        self.bytes.capacity() + arriving + self.bodies.capacity() * size_of::<Shared>()
    }

    /// Consumes bytes from the front of `input`.
    ///
    /// Stops when the request is complete or the input is used up. Returns the request if it is
    /// complete; the assembler is then ready for the next request.
    pub fn feed(
        &mut self,
        input: &mut &[u8],
        limits: &Limits,
        meter: &Meter,
    ) -> Result<Option<AssembledRequest>, StoreWireError> {
        loop {
            if let Some(body) = &mut self.body {
                let Some(whole) = body.feed(input) else {
                    return Ok(None);
                };
                self.bodies.push(meter.share(whole));
                self.body = None;
            } else {
                let missing = self.scanned + self.need - self.bytes.len();
                let (now, later) = input.split_at(missing.min(input.len()));
                self.bytes.extend_from_slice(now);
                *input = later;
                if now.len() < missing {
                    return Ok(None);
                }
                if !self.finish_step(limits)? {
                    continue;
                }
            }
            if !self.start_next_field() {
                return Ok(Some(self.take()));
            }
        }
    }

    /// Returns the buffer into which a driver may read a large body directly.
    /// Its spare capacity is never much larger than the missing part. Call
    /// [`Assembler::overshoot`] and then [`Assembler::feed`] afterwards.
    pub fn space(&mut self) -> Option<&mut Vec<u8>> {
        self.body.as_mut().map(Arriving::space)
    }

    /// Removes bytes in [`Assembler::space`] after the end of the body.
    /// These bytes belong to the next field. They exist only if the allocator returned more than
    /// the requested capacity.
    pub fn overshoot(&mut self) -> Vec<u8> {
        match &mut self.body {
            Some(body) if body.buffer.len() > body.target => body.buffer.split_off(body.target),
            _ => Vec::new(),
        }
    }

    /// Parses the bytes of the step; `true` if they complete the field.
    fn finish_step(&mut self, limits: &Limits) -> Result<bool, StoreWireError> {
        let piece = &self.bytes[self.scanned..self.scanned + self.need];
        self.scanned += self.need;
        match self.step {
            Step::Content => Ok(true),
            Step::Opcode => {
                self.fields = match Opcode::from_byte(piece[0]) {
                    Some(opcode) => Request::fields(opcode),
                    None if is_extension(piece[0], limits) => &[Field::Payload],
                    None => return Err(StoreWireError::UnknownOpcode(piece[0])),
                };
                Ok(true)
            }
            Step::Length(field) => {
                let mut declared = [0; 8];
                declared.copy_from_slice(piece);
                let length = within(field, u64::from_le_bytes(declared), limits)?;
                match field {
                    Field::Keys => self.list = List::Keys(length),
                    Field::Pairs => self.list = List::Pairs(length.saturating_mul(2)),
                    Field::Value if length >= LARGE_BODY => {
                        self.body = Some(Arriving::new(length));
                        return Ok(false);
                    }
                    _ => {
                        self.step = Step::Content;
                        self.need = length;
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Begins the next field or list entry; `false` if there is none.
    fn start_next_field(&mut self) -> bool {
        let field = match &mut self.list {
            List::Keys(left) if *left > 0 => {
                *left -= 1;
                Field::Key
            }
            List::Pairs(left) if *left > 0 => {
                *left -= 1;
                if *left % 2 == 1 {
                    Field::Key
                } else {
                    Field::Value
                }
            }
            _ => match self.fields.split_first() {
                Some((&field, rest)) => {
                    self.fields = rest;
                    field
                }
                None => return false,
            },
        };
        (self.step, self.need) = match field {
            Field::U32 => (Step::Content, 4),
            Field::I64 => (Step::Content, 8),
            list_or_sized => (Step::Length(list_or_sized), 8),
        };
        true
    }

    fn take(&mut self) -> AssembledRequest {
        let done = std::mem::take(self);
        AssembledRequest {
            bytes: done.bytes,
            bodies: done.bodies,
        }
    }
}

/// A complete request that arrived in pieces.
#[derive(Debug)]
pub struct AssembledRequest {
    bytes: Vec<u8>,
    bodies: Vec<Shared>,
}

impl AssembledRequest {
    /// Returns the request, which borrows its small parts.
    pub fn request(&self, limits: &Limits) -> Request<'_> {
        decode_parts(&self.bytes, Some(&self.bodies), limits)
            .ok()
            .flatten()
            .expect("the assembler checks and completes what it returns")
            .0
    }

    /// Returns the size of the request without its large bodies.
    pub fn small_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fields::Body, request};
    use super::*;

    /// Returns an assembler with the head of a `SET` of a value of this length.
    fn begun(length: usize) -> Assembler {
        let mut head = Vec::new();
        request::set_head(&mut head, b"/k", length);
        let mut assembler = Assembler::default();
        let fed = assembler.feed(&mut &head[..], &Limits::default(), &Meter::default());
        assert!(fed.unwrap().is_none());
        assembler
    }

    #[test]
    fn a_large_body_never_reserves_more_than_twice_what_arrived_and_a_step() {
        let (limits, meter) = (Limits::default(), Meter::default());
        let mut assembler = begun(8 << 20);
        assert!(assembler.buffered() < 200);
        let chunk = [7; 1000];
        for sent in 1..=4000 {
            assembler.feed(&mut &chunk[..], &limits, &meter).unwrap();
            assert!(
                assembler.buffered() <= 2 * sent * chunk.len() + super::super::GROWTH_STEP + 200
            );
        }
    }

    #[test]
    fn a_body_read_straight_into_its_buffer_is_kept_without_a_copy() {
        let (limits, meter) = (Limits::default(), Meter::default());
        let mut assembler = begun(LARGE_BODY);
        let space = assembler.space().unwrap();
        space.extend_from_slice(&[9; LARGE_BODY]);
        let address = space.as_ptr();
        assert!(assembler.overshoot().is_empty());
        let done = assembler
            .feed(&mut &[][..], &limits, &meter)
            .unwrap()
            .unwrap();
        let Request::Set {
            value: Body::Whole(value),
            ..
        } = done.request(&limits)
        else {
            panic!("a SET with a large body was fed");
        };
        assert_eq!(value.as_ptr(), address);
        assert_eq!(meter.bytes(), LARGE_BODY);
    }

    #[test]
    fn what_was_read_beyond_a_body_is_handed_back() {
        let mut assembler = begun(LARGE_BODY);
        let space = assembler.space().unwrap();
        space.extend_from_slice(&[9; LARGE_BODY]);
        space.extend_from_slice(b"next");
        assert_eq!(assembler.overshoot(), b"next");
    }
}
