//! Command of the log that changes the record of one run.
//!
//! The record is a [`RunNote`].
//!
//! ```text
//!   proposer: u64, the proposer's number of the command: u64, run: u32 length and bytes, then
//!   nothing (the run is forgotten) or the fields of its record
//! ```

use rdzv_consensus::VoterId;

use rdzv_rendezvous_proto::coordinator::RunNote;
use rdzv_rendezvous_proto::coordinator::note::{read_name, write_name};
use rdzv_rendezvous_proto::slot::Bytes;

/// Change of the record of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    /// Id of the voter whose coordinator made the change.
    ///
    /// The token is that coordinator's number for the change.
    pub(super) proposer: u64,
    pub(super) token: u64,
    pub(super) run: String,
    pub(super) note: Option<RunNote>,
}

pub(super) fn write(proposer: VoterId, token: u64, run: &str, note: Option<&RunNote>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&proposer.number().to_le_bytes());
    bytes.extend_from_slice(&token.to_le_bytes());
    write_name(run, &mut bytes);
    if let Some(note) = note {
        note.write(&mut bytes);
    }
    bytes
}

/// Decodes a command; `None` if the bytes are no command of this version.
pub(super) fn read(bytes: &[u8]) -> Option<Command> {
    let mut bytes = Bytes(bytes);
    let (proposer, token) = (bytes.u64()?, bytes.u64()?);
    let run = read_name(&mut bytes)?;
    let note = if bytes.0.is_empty() {
        None
    } else {
        Some(RunNote::read(&mut bytes)?)
    };
    Some(Command {
        proposer,
        token,
        run,
        note,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_command_reads_as_it_was_written() {
        let note = RunNote {
            round: 7,
            members: vec![1, 0, 3],
            closed: true,
            lease: Duration::from_secs(3),
            ..RunNote::default()
        };
        let proposer = VoterId::new(9).unwrap();
        for note in [None, Some(note)] {
            let bytes = write(proposer, 4, "run", note.as_ref());
            let expected = Command {
                proposer: 9,
                token: 4,
                run: "run".to_owned(),
                note: note.clone(),
            };
            assert_eq!(read(&bytes), Some(expected));
            for length in 0..bytes.len() {
                let cut = read(&bytes[..length]);
                // A prefix that ends before the record decodes as a command that forgets the run.
                assert!(cut.is_none_or(|cut| cut.note.is_none() && note.is_some()));
            }
        }
    }
}
