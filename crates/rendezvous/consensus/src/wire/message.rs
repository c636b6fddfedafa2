//! Raft messages as bytes: the library's fields, and additional fields.
//!
//! ```text
//!  kind u8 · flags u8 · from · to · term · log term · index · commit · commit term · hint
//!  silence u32 (ms; all ones: never) · context u8 + bytes · snapshot if flagged
//!  entries u32 + each
//!  entry: kind u8 · term u64 · length u32 · bytes        its index follows from its position
//!  snapshot: index u64 · term u64 · voters · learners · outgoing · next learners · auto-leave u8 ·
//!            length u64
//! ```
//!
//! The fields from `from` to `hint` are `u64` each. The bytes of a snapshot's state travel before
//! the message, in parts.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use raft::prelude::{Entry, EntryType, Message, MessageType, Snapshot};

use super::{
    ConsensusWireError, FRAME_BOUND, SNAPSHOT_BOUND, end, frame, number, opcode, put_voters, take,
    voters,
};

/// Maximum length of a context: that of a vote in a handover.
const CONTEXT_BOUND: usize = 16;

/// Smallest encoded size of an entry, in bytes.
const LEAST_ENTRY: usize = 13;

const REJECT: u8 = 1;
const SNAPSHOT: u8 = 2;

/// Kinds of messages between members; all others stay inside a process.
const KINDS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

/// Raft message with its additional fields.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Envelope {
    pub(crate) message: Message,
    /// Time since the sender last received from a leader; `None` if it never has.
    pub(crate) silence: Option<Duration>,
    /// Length of the snapshot's state, whose parts precede the message.
    pub(crate) state_length: usize,
}

/// Part of the state of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) index: u64,
    pub(crate) index_term: u64,
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
}

/// Encodes a message as frames; `None` if its kind is not sent to peers.
///
/// Each frame contains at most `part` bytes of a state.
pub(crate) fn write(
    message: &Message,
    silence: Option<Duration>,
    part: usize,
) -> Option<Vec<Vec<u8>>> {
    let kind = KINDS.iter().position(|kind| *kind == message.msg_type)?;
    let mut frames = Vec::new();
    let mut body = Vec::with_capacity(128);
    let has_snapshot = message.msg_type == MessageType::MsgSnapshot;
    let flags = [(message.reject, REJECT), (has_snapshot, SNAPSHOT)];
    body.put_u8(kind as u8);
    body.put_u8(flags.iter().map(|(is, flag)| u8::from(*is) * flag).sum());
    for field in [
        message.from,
        message.to,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
    ] {
        body.put_u64_le(field);
    }
    let silence = silence.map(|it| u32::try_from(it.as_millis()).unwrap_or(u32::MAX - 1));
    body.put_u32_le(silence.unwrap_or(u32::MAX));
    body.put_u8(message.context.len() as u8);
    body.extend_from_slice(&message.context);
    if has_snapshot {
        let snapshot = message.get_snapshot();
        frames.extend(parts(snapshot, part));
        put_snapshot(&mut body, snapshot);
    }
    body.put_u32_le(message.entries.len() as u32);
    for entry in message.entries.iter() {
        let is_change = entry.get_entry_type() != EntryType::EntryNormal;
        // A change is sent in this crate's form; the library's form stays inside the process.
        let bytes = if is_change {
            &entry.context
        } else {
            &entry.data
        };
        body.put_u8(u8::from(is_change));
        body.put_u64_le(entry.term);
        body.put_u32_le(bytes.len() as u32);
        body.extend_from_slice(bytes);
    }
    frames.push(frame(opcode::MESSAGE, &body));
    Some(frames)
}

pub(crate) fn read(mut body: &[u8]) -> Result<Envelope, ConsensusWireError> {
    if body.len() > FRAME_BOUND {
        return Err(ConsensusWireError::Field("length"));
    }
    let body = &mut body;
    let mut message = Message::default();
    let kind = KINDS.get(usize::from(body.try_get_u8()?));
    message.msg_type = *kind.ok_or(ConsensusWireError::Field("kind"))?;
    let flags = body.try_get_u8()?;
    let has_snapshot = message.msg_type == MessageType::MsgSnapshot;
    if flags & !REJECT != u8::from(has_snapshot) * SNAPSHOT {
        return Err(ConsensusWireError::Field("flags"));
    }
    message.reject = flags & REJECT != 0;
    message.from = body.try_get_u64_le()?;
    message.to = body.try_get_u64_le()?;
    message.term = number(body, "term")?;
    message.log_term = number(body, "log term")?;
    message.index = number(body, "index")?;
    message.commit = number(body, "commit")?;
    message.commit_term = number(body, "commit term")?;
    message.reject_hint = number(body, "hint")?;
    let silence = body.try_get_u32_le()?;
    let silence = (silence != u32::MAX).then(|| Duration::from_millis(u64::from(silence)));
    let length = usize::from(body.try_get_u8()?);
    if length > CONTEXT_BOUND {
        return Err(ConsensusWireError::Field("context"));
    }
    message.context = Bytes::copy_from_slice(take(body, length)?);
    let mut state_length = 0;
    if has_snapshot {
        let (snapshot, length) = snapshot(body)?;
        message.set_snapshot(snapshot);
        state_length = length;
    }
    let count = body.try_get_u32_le()? as usize;
    if count > body.len() / LEAST_ENTRY {
        return Err(ConsensusWireError::Short);
    }
    let mut entries = Vec::with_capacity(count);
    for at in 0..count {
        entries.push(entry(body, message.index + 1 + at as u64)?);
    }
    message.set_entries(entries.into());
    end(body)?;
    Ok(Envelope {
        message,
        silence,
        state_length,
    })
}

fn entry(body: &mut &[u8], index: u64) -> Result<Entry, ConsensusWireError> {
    let mut entry = Entry {
        index,
        ..Entry::default()
    };
    let kind = body.try_get_u8()?;
    entry.term = number(body, "entry's term")?;
    let length = body.try_get_u32_le()? as usize;
    let bytes = Bytes::copy_from_slice(take(body, length)?);
    match kind {
        0 => entry.data = bytes,
        1 => {
            entry.entry_type = EntryType::EntryConfChangeV2;
            entry.context = bytes;
        }
        _ => return Err(ConsensusWireError::Field("entry's kind")),
    }
    Ok(entry)
}

fn put_snapshot(body: &mut Vec<u8>, snapshot: &Snapshot) {
    let metadata = snapshot.get_metadata();
    let conf_state = metadata.get_conf_state();
    body.put_u64_le(metadata.index);
    body.put_u64_le(metadata.term);
    for voters in [
        &conf_state.voters,
        &conf_state.learners,
        &conf_state.voters_outgoing,
        &conf_state.learners_next,
    ] {
        put_voters(body, voters.iter().copied());
    }
    body.put_u8(u8::from(conf_state.auto_leave));
    body.put_u64_le(snapshot.data.len() as u64);
}

fn snapshot(body: &mut &[u8]) -> Result<(Snapshot, usize), ConsensusWireError> {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = number(body, "snapshot's index")?;
    metadata.term = number(body, "snapshot's term")?;
    let conf_state = metadata.mut_conf_state();
    let mut members = || -> Result<Vec<u64>, ConsensusWireError> {
        let voters = voters(body)?;
        Ok(voters.into_iter().map(|voter| voter.number()).collect())
    };
    conf_state.voters = members()?;
    conf_state.learners = members()?;
    conf_state.voters_outgoing = members()?;
    conf_state.learners_next = members()?;
    conf_state.auto_leave = body.try_get_u8()? != 0;
    let length = usize::try_from(body.try_get_u64_le()?).unwrap_or(usize::MAX);
    if length > SNAPSHOT_BOUND {
        return Err(ConsensusWireError::Field("snapshot's length"));
    }
    Ok((snapshot, length))
}

fn parts(snapshot: &Snapshot, part: usize) -> impl Iterator<Item = Vec<u8>> {
    let metadata = snapshot.get_metadata();
    (0..).step_by(part).zip(snapshot.data.chunks(part)).map(
        move |(offset, bytes): (usize, &[u8])| {
            let mut body = Vec::with_capacity(24 + bytes.len());
            body.put_u64_le(metadata.index);
            body.put_u64_le(metadata.term);
            body.put_u64_le(offset as u64);
            body.extend_from_slice(bytes);
            frame(opcode::SNAPSHOT_PART, &body)
        },
    )
}

pub(crate) fn read_part(mut body: &[u8]) -> Result<Part<'_>, ConsensusWireError> {
    if body.len() > FRAME_BOUND {
        return Err(ConsensusWireError::Field("length"));
    }
    let body = &mut body;
    Ok(Part {
        index: number(body, "snapshot's index")?,
        index_term: number(body, "snapshot's term")?,
        offset: usize::try_from(number(body, "offset")?).unwrap_or(usize::MAX),
        bytes: body,
    })
}
