//! The note of a run as a command of the log.
//!
//! ```text
//!   proposer: u64, its number of the command: u64, run: u32 length and bytes, then nothing (the run is
//!   forgotten) or the fields of its note
//! ```

use rdzv_consensus::VoterId;

use rdzv_rendezvous_proto::coordinator::RunNote;
use rdzv_rendezvous_proto::coordinator::note::{read_name, write_name};
use rdzv_rendezvous_proto::slot::Bytes;

/// A change of the note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Command {
    /// The voter whose coordinator has made it, and that coordinator's number for it.
    pub(super) proposer: u64,
    pub(super) token: u64,
    pub(super) run: String,
    pub(super) note: Option<RunNote>,
}

/// The bytes of a command.
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

/// A command of the log; `None` if no voter of this version has written it.
pub(super) fn read(bytes: &[u8]) -> Option<Command> {
    let mut bytes = Bytes(bytes);
    let (proposer, token) = (bytes.u64()?, bytes.u64()?);
    let run = read_name(&mut bytes)?;
    let note = match bytes.0.is_empty() {
        true => None,
        false => Some(RunNote::read(&mut bytes)?),
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
                // Without its note, it forgets the run.
                assert!(cut.is_none_or(|cut| cut.note.is_none() && note.is_some()));
            }
        }
    }
}
