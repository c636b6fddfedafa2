//! Replies: written by the server, collected by the client.
//!
//! A reply contains no type. The client knows the expected [`Shape`] from its request.

use bytes::Bytes;

use super::{Arriving, StoreWireError};

/// The answer to `WAIT`, `BARRIER` and `GET_WHEN_THERE` at the end of a wait.
pub const STOP_WAITING: u8 = 0;
/// The answer to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;
/// The answer to `GET_WHEN_THERE` for a key that exists; the value follows.
pub const VALUE_FOLLOWS: u8 = 2;

/// The answer to `CHECK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CheckReply {
    /// All keys exist.
    Ready = 0,
    /// At least one key does not exist.
    NotReady = 1,
}

impl CheckReply {
    /// Converts the byte of the wire.
    pub fn from_byte(byte: u8) -> Result<Self, StoreWireError> {
        match byte {
            0 => Ok(Self::Ready),
            1 => Ok(Self::NotReady),
            found => Err(StoreWireError::UnexpectedReply {
                found,
                expected: "READY (0) or NOT_READY (1)",
            }),
        }
    }
}

/// Writes a number, the answer to a request that counts.
/// Such requests are `ADD`, `GETNUMKEYS`, `DELETE_KEY` and `QUEUE_LEN`. The answers to `QUEUE_POP`
/// and `LIST_KEYS` begin with a number.
pub fn number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Writes a length and that many bytes, the answer to `GET` and `COMPARE_SET`.
pub fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes the length of bytes that are sent separately.
pub fn length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}

/// The kind of reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One byte: `CHECK`, `WAIT`, `BARRIER`, `CANCEL_WAIT`.
    Byte,
    /// The nonce of `PING`.
    Nonce,
    /// A number: `ADD`, `GETNUMKEYS`, `DELETE_KEY`, `QUEUE_LEN`.
    Number,
    /// A length and bytes: `GET`, `COMPARE_SET`.
    Bytes,
    /// This many times a length and bytes: `MULTI_GET`.
    Values(usize),
    /// A number and, if it is not 0, a length and bytes: `QUEUE_POP`.
    Pop,
    /// A count, and this many times a length and bytes: `LIST_KEYS`.
    List,
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Reply of [`Shape::Byte`].
    Byte(u8),
    /// Reply of [`Shape::Nonce`].
    Nonce(u32),
    /// Reply of [`Shape::Number`].
    Number(i64),
    /// Reply of [`Shape::Bytes`].
    Bytes(Bytes),
    /// Reply of [`Shape::Values`], in the order of the request.
    Values(Vec<Bytes>),
    /// Reply of [`Shape::Pop`]: the first value, or `None` if the queue was empty.
    Pop(Option<Bytes>),
    /// Reply of [`Shape::List`].
    List(Vec<Bytes>),
}

/// Memory of one value of a reply besides its bytes.
const ENTRY_BYTES: usize = size_of::<Bytes>();

/// Collects one reply from bytes in any segmentation.
/// Memory grows only with received bytes. The reader refuses a reply above the limit as soon as it
/// has read the first length that exceeds it.
#[derive(Debug)]
pub struct ReplyReader {
    shape: Shape,
    limit: usize,
    /// Memory of the values collected until now.
    held: usize,
    /// Bytes of the number, length or count in progress.
    head: [u8; 8],
    head_length: usize,
    body: Option<Arriving>,
    collected: Vec<Bytes>,
    /// Number of bodies that have not arrived, once it is known.
    left: Option<usize>,
}

impl ReplyReader {
    /// Creates a reader for a reply of this shape, with a memory limit.
    pub fn new(shape: Shape, limit: usize) -> Self {
        Self {
            shape,
            limit,
            held: 0,
            head: [0; 8],
            head_length: 0,
            body: None,
            collected: Vec::new(),
            left: match shape {
                Shape::Bytes => Some(1),
                Shape::Values(count) => Some(count),
                _ => None,
            },
        }
    }

    /// Consumes bytes from the front of `input`.
    ///
    /// Stops when the reply is complete or the input is used up. Call this function with empty
    /// input after reading into [`ReplyReader::space`]. Call it also once at the start, because a
    /// reply without values is complete before a byte arrives. Do not call the function again after
    /// it has returned the reply.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, StoreWireError> {
        loop {
            if self.left == Some(0) {
                return Ok(Some(self.finish()));
            }
            if let Some(body) = &mut self.body {
                let Some(whole) = body.feed(input) else {
                    return Ok(None);
                };
                self.held += whole.len() + ENTRY_BYTES;
                self.collected.push(Bytes::from(whole));
                self.body = None;
                self.left = self.left.map(|left| left - 1);
                continue;
            }
            let width = match self.shape {
                Shape::Byte => 1,
                Shape::Nonce => 4,
                _ => 8,
            };
            let missing = width - self.head_length;
            let (now, later) = input.split_at(missing.min(input.len()));
            self.head[self.head_length..self.head_length + now.len()].copy_from_slice(now);
            self.head_length += now.len();
            *input = later;
            if now.len() < missing {
                return Ok(None);
            }
            self.head_length = 0;
            if let Some(reply) = self.finish_head()? {
                return Ok(Some(reply));
            }
        }
    }

    /// Returns the buffer into which more bytes of a body may be read directly.
    /// Read at most its spare capacity and at most [`ReplyReader::missing`] bytes.
    pub fn space(&mut self) -> Option<&mut Vec<u8>> {
        self.body.as_mut().map(Arriving::space)
    }

    /// Returns the number of bytes that the body in progress still lacks.
    pub fn missing(&self) -> usize {
        self.body.as_ref().map_or(0, Arriving::missing)
    }

    /// Returns the memory held for the reply, which never exceeds the limit.
    pub fn held(&self) -> usize {
        let arriving = self.body.as_ref();
        self.held + arriving.map_or(0, |body| body.buffer.capacity() + ENTRY_BYTES)
    }

    fn finish_head(&mut self) -> Result<Option<Reply>, StoreWireError> {
        let number = i64::from_le_bytes(self.head);
        match (self.shape, self.left) {
            (Shape::Byte, _) => return Ok(Some(Reply::Byte(self.head[0]))),
            (Shape::Nonce, _) => {
                let [a, b, c, d, ..] = self.head;
                return Ok(Some(Reply::Nonce(u32::from_le_bytes([a, b, c, d]))));
            }
            (Shape::Number, _) => return Ok(Some(Reply::Number(number))),
            (Shape::Pop, None) => self.left = Some(possible(number)?.min(1)),
            (Shape::List, None) => {
                let count = possible(number)?;
                self.admit(count.saturating_mul(ENTRY_BYTES))?;
                self.left = Some(count);
            }
            _ => {
                let length = possible(number)?;
                self.admit(length.saturating_add(ENTRY_BYTES))?;
                self.body = Some(Arriving::new(length));
            }
        }
        Ok(None)
    }

    /// Refuses a part that exceeds the limit.
    /// The values collected until now count as well.
    fn admit(&self, more: usize) -> Result<(), StoreWireError> {
        let declared = self.held.saturating_add(more);
        if declared > self.limit {
            return Err(StoreWireError::ReplyTooLong {
                declared: declared as u64,
                limit: self.limit,
            });
        }
        Ok(())
    }

    fn finish(&mut self) -> Reply {
        let mut collected = std::mem::take(&mut self.collected);
        match self.shape {
            Shape::Pop => Reply::Pop(collected.pop()),
            Shape::List => Reply::List(collected),
            Shape::Values(_) => Reply::Values(collected),
            _ => Reply::Bytes(collected.pop().unwrap_or_default()),
        }
    }
}

fn possible(length: i64) -> Result<usize, StoreWireError> {
    usize::try_from(length).map_err(|_| StoreWireError::ImpossibleLength(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(reply: &Reply) -> (Shape, Vec<u8>) {
        let mut out = Vec::new();
        let shape = match reply {
            Reply::Byte(byte) => {
                out.push(*byte);
                Shape::Byte
            }
            Reply::Nonce(nonce) => {
                out.extend_from_slice(&nonce.to_le_bytes());
                Shape::Nonce
            }
            Reply::Number(value) => {
                number(&mut out, *value);
                Shape::Number
            }
            Reply::Bytes(value) => {
                bytes(&mut out, value);
                Shape::Bytes
            }
            Reply::Values(values) => {
                values.iter().for_each(|value| bytes(&mut out, value));
                Shape::Values(values.len())
            }
            Reply::Pop(value) => {
                number(&mut out, value.iter().len() as i64);
                value.iter().for_each(|value| bytes(&mut out, value));
                Shape::Pop
            }
            Reply::List(keys) => {
                number(&mut out, keys.len() as i64);
                keys.iter().for_each(|key| bytes(&mut out, key));
                Shape::List
            }
        };
        (shape, out)
    }

    #[test]
    fn replies_are_read_in_any_segmentation() {
        let text = |text: &'static str| Bytes::from_static(text.as_bytes());
        for reply in [
            Reply::Byte(1),
            Reply::Nonce(0x0102_0304),
            Reply::Number(-2),
            Reply::Bytes(text("")),
            Reply::Bytes(text("value")),
            Reply::Values(vec![]),
            Reply::Values(vec![text("a"), text(""), text("c")]),
            Reply::Pop(None),
            Reply::Pop(Some(text("first"))),
            Reply::List(vec![]),
            Reply::List(vec![text("init/"), text("/k")]),
        ] {
            let (shape, mut out) = wire(&reply);
            let length = out.len();
            out.extend_from_slice(b"more");
            for step in 1..=out.len() {
                let mut reader = ReplyReader::new(shape, 1 << 20);
                let mut consumed = 0;
                let mut read = reader.feed(&mut &[][..]).unwrap();
                for chunk in out.chunks(step) {
                    if read.is_some() {
                        break;
                    }
                    let mut input = chunk;
                    read = reader.feed(&mut input).unwrap();
                    consumed += chunk.len() - input.len();
                }
                assert_eq!(
                    (read.as_ref(), consumed),
                    (Some(&reply), length),
                    "step {step}"
                );
            }
        }
    }

    #[test]
    fn a_negative_length_is_refused() {
        let mut reader = ReplyReader::new(Shape::Bytes, 1 << 20);
        assert_eq!(
            reader.feed(&mut &(-1_i64).to_le_bytes()[..]),
            Err(StoreWireError::ImpossibleLength(-1))
        );
    }

    #[test]
    fn a_long_reply_reserves_little_before_it_arrives() {
        let mut reader = ReplyReader::new(Shape::Bytes, 1 << 30);
        reader.feed(&mut &(1_i64 << 29).to_le_bytes()[..]).unwrap();
        assert!(reader.space().unwrap().capacity() <= super::super::GROWTH_STEP);
    }

    #[test]
    fn a_reply_over_the_limit_is_refused_by_its_first_length() {
        const LIMIT: usize = 1 << 20;
        let too_long = |shape, head: &[i64]| {
            let bytes: Vec<u8> = head.iter().flat_map(|n| n.to_le_bytes()).collect();
            let mut reader = ReplyReader::new(shape, LIMIT);
            let mut input = &bytes[..];
            let refused = reader.feed(&mut input).unwrap_err();
            assert!(
                matches!(refused, StoreWireError::ReplyTooLong { declared, limit: LIMIT } if declared > LIMIT as u64),
                "{refused:?}"
            );
            assert!(reader.held() <= ENTRY_BYTES, "{}", reader.held());
        };
        too_long(Shape::Bytes, &[LIMIT as i64]);
        too_long(Shape::Bytes, &[i64::MAX]);
        too_long(Shape::Values(2), &[LIMIT as i64]);
        too_long(Shape::Pop, &[1, i64::MAX]);
        too_long(Shape::List, &[i64::MAX]);
        too_long(Shape::List, &[(LIMIT / ENTRY_BYTES) as i64 + 1]);
        too_long(Shape::List, &[2, LIMIT as i64]);
    }

    #[test]
    fn values_of_one_reply_share_the_limit() {
        const LIMIT: usize = 64 << 10;
        let mut reader = ReplyReader::new(Shape::Values(1 << 20), LIMIT);
        let mut value = Vec::new();
        bytes(&mut value, &[7; 1000]);
        let mut most = 0;
        let refused = loop {
            match reader.feed(&mut &value[..]) {
                Ok(None) => most = most.max(reader.held()),
                other => break other,
            }
        };
        assert!(
            matches!(refused, Err(StoreWireError::ReplyTooLong { .. })),
            "{refused:?}"
        );
        assert!((LIMIT / 2..=LIMIT).contains(&most), "{most}");
    }
}
