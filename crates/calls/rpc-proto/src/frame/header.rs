//! Header of a frame: its first 64 bytes.

use super::error::FrameError;
use super::{MAGIC, VERSION};

/// Length of a header, in bytes.
pub const HEADER_LENGTH: usize = 64;

/// Purpose of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Identification of the sender: first handshake frame in each direction.
    ///
    /// See [`super::hello`].
    Hello = 1,
    /// A call.
    Request = 2,
    /// The value that a call returned.
    Reply = 3,
    /// The error of a call.
    Error = 4,
    /// The caller no longer needs the result.
    Cancel = 5,
    /// Reserved: no worker sends this kind.
    Credit = 6,
    /// Test whether the peer can read the sender's memory.
    Ping = 7,
    /// Answer to a ping.
    Pong = 8,
    /// The sender closes the connection, with a reason.
    GoAway = 9,
    /// A batch of messages about remote references.
    References = 10,
    /// Parts that the sender of this frame no longer needs.
    ///
    /// The peer may reuse their memory. With a call: the parts of that call or of its reply, which
    /// the sender of this frame has read or does not need. Without a call: the parts that the body
    /// lists, see [`super::release`].
    Release = 11,
    /// Acceptance of the peer's hello.
    ///
    /// If the job has a token, the body proves that the sender has it too.
    Accepted = 12,
}

impl FrameKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Hello,
        Self::Request,
        Self::Reply,
        Self::Error,
        Self::Cancel,
        Self::Credit,
        Self::Ping,
        Self::Pong,
        Self::GoAway,
        Self::References,
        Self::Release,
        Self::Accepted,
    ];

    fn from_number(number: u8) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Self::ALL.get(index).copied()
    }
}

/// Fields of a frame beside its body and parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Purpose of the frame.
    pub kind: FrameKind,
    /// Bits whose meaning depends on the kind.
    pub flags: u16,
    /// Number of the call, chosen by the caller; 0 for a frame without a call.
    pub call: u64,
    /// Number of the called method, see [`super::method_hash`]; 0 for none.
    pub method: u64,
    /// Remaining time of the caller's wait, in microseconds; 0 without a deadline.
    pub deadline_micros: u64,
    /// Id of the trace to which the call belongs; 0 for none.
    pub trace: u128,
    /// Span of the caller in that trace.
    pub span: u64,
}

impl Header {
    /// Creates a header of this kind, with zero in all other fields.
    pub fn new(kind: FrameKind) -> Self {
        Self {
            kind,
            flags: 0,
            call: 0,
            method: 0,
            deadline_micros: 0,
            trace: 0,
            span: 0,
        }
    }

    /// Returns the bytes of the header of a frame with this body and these parts.
    pub(super) fn to_bytes(self, body: u32, sections: u16) -> [u8; HEADER_LENGTH] {
        let mut bytes = [0; HEADER_LENGTH];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.method.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.deadline_micros.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.trace.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.span.to_le_bytes());
        bytes[56..60].copy_from_slice(&body.to_le_bytes());
        bytes[60..62].copy_from_slice(&sections.to_le_bytes());
        bytes
    }

    /// Reads the header, the length of the body, and the number of sections.
    pub(super) fn from_bytes(bytes: &[u8; HEADER_LENGTH]) -> Result<(Self, u32, u16), FrameError> {
        let magic = u32::from_le_bytes(at(bytes, 0));
        // A TLS record begins with its kind (handshake or alert), and with the first byte of its
        // version, which is the same in all versions.
        if matches!(bytes, [0x15 | 0x16, 3, ..]) {
            return Err(FrameError::Tls);
        }
        if magic != MAGIC {
            return Err(FrameError::Magic(bytes[..4].escape_ascii().to_string()));
        }
        if bytes[4] != VERSION {
            return Err(FrameError::Version(bytes[4]));
        }
        let kind = FrameKind::from_number(bytes[5]).ok_or(FrameError::Kind(bytes[5]))?;
        if bytes[62..64] != [0, 0] {
            return Err(FrameError::Reserved("the header"));
        }
        let header = Self {
            kind,
            flags: u16::from_le_bytes(at(bytes, 6)),
            call: u64::from_le_bytes(at(bytes, 8)),
            method: u64::from_le_bytes(at(bytes, 16)),
            deadline_micros: u64::from_le_bytes(at(bytes, 24)),
            trace: u128::from_le_bytes(at(bytes, 32)),
            span: u64::from_le_bytes(at(bytes, 48)),
        };
        let body = u32::from_le_bytes(at(bytes, 56));
        Ok((header, body, u16::from_le_bytes(at(bytes, 60))))
    }
}

/// Returns the `N` bytes at an offset.
pub(super) fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[offset..offset + N]);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Header = Header {
        kind: FrameKind::Request,
        flags: 0x0102,
        call: 0x1112_1314_1516_1718,
        method: 0x2122_2324_2526_2728,
        deadline_micros: 0x3132_3334_3536_3738,
        trace: 0x4142_4344_4546_4748_494a_4b4c_4d4e_4f50,
        span: 0x5152_5354_5556_5758,
    };

    #[test]
    fn every_field_has_its_offset() {
        let bytes = FULL.to_bytes(0x6162_6364, 0x7172);
        assert_eq!(&bytes[..8], b"rdzc\x01\x02\x02\x01");
        assert_eq!(bytes[8..16], FULL.call.to_le_bytes());
        assert_eq!(bytes[16..24], FULL.method.to_le_bytes());
        assert_eq!(bytes[24..32], FULL.deadline_micros.to_le_bytes());
        assert_eq!(bytes[32..48], FULL.trace.to_le_bytes());
        assert_eq!(bytes[48..56], FULL.span.to_le_bytes());
        assert_eq!(&bytes[56..], b"\x64\x63\x62\x61\x72\x71\0\0");
        let read = Header::from_bytes(&bytes);
        assert_eq!(read, Ok((FULL, 0x6162_6364, 0x7172)));
    }

    #[test]
    fn kinds_keep_their_numbers() {
        for (number, kind) in (1..).zip(FrameKind::ALL) {
            assert_eq!(kind as u8, number);
            assert_eq!(FrameKind::from_number(number), Some(kind));
        }
        assert_eq!(FrameKind::from_number(0), None);
        assert_eq!(FrameKind::from_number(13), None);
        assert_eq!(FrameKind::from_number(255), None);
    }

    #[test]
    fn a_header_that_is_none_is_refused_with_the_reason() {
        let good = FULL.to_bytes(1, 1);
        let changed = |offset: usize, value: u8| {
            let mut bytes = good;
            bytes[offset] = value;
            Header::from_bytes(&bytes).unwrap_err().to_string()
        };
        assert_eq!(
            changed(0, b'G'),
            "the bytes are not an rdzv frame: they begin with 'Gdzc' instead of 'rdzc'"
        );
        assert_eq!(
            changed(4, 9),
            "the peer uses version 9 of the frame format, but this worker uses version 1: run the \
             same version of rdzv on all workers"
        );
        let mut hello = good;
        hello[..3].copy_from_slice(&[0x16, 3, 1]);
        assert_eq!(Header::from_bytes(&hello), Err(FrameError::Tls));
        assert_eq!(changed(5, 0), "the frame has the unknown kind 0");
        assert_eq!(changed(62, 1), "reserved bits of the header are not 0");
    }
}
