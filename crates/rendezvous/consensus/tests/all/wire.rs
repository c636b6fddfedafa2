//! Frames: written frames decode equal, and cut or changed frames never panic.

use rdzv_consensus::VoterId;
use rdzv_consensus::wire::{ConsensusWireError, ControlFrame, OfRun};

fn frames() -> Vec<ControlFrame> {
    let voter = VoterId::new(7).unwrap();
    let hello = ControlFrame::Hello {
        cluster: 1 << 100,
        epoch: 3,
        voter,
        is_store: true,
        address: "[fd00::1]:29400".into(),
        of_run: None,
    };
    let of_run = ControlFrame::Hello {
        cluster: 0,
        epoch: 3,
        voter,
        is_store: false,
        address: "a:1".into(),
        of_run: Some(OfRun {
            run: "job".into(),
            rounds: 7,
            applied: (1, 80),
            votes: true,
        }),
    };
    let members = ControlFrame::Members(vec![(Some(voter), "a:1".into()), (None, "b:2".into())]);
    let invite = ControlFrame::Invite {
        cluster: 9,
        epoch: 0,
        voter_index: 4,
        voters: vec![voter, VoterId::new(8).unwrap()],
    };
    let elsewhere = ControlFrame::Elsewhere {
        cluster: 9,
        epoch: 1,
        term: 12,
        address: String::new(),
    };
    vec![
        hello,
        of_run,
        invite,
        ControlFrame::WhoCoordinates,
        elsewhere,
        members,
    ]
}

fn written(frame: &ControlFrame) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    let length = u64::from_le_bytes(bytes[1..9].try_into().unwrap());
    assert_eq!(length as usize, bytes.len() - 9);
    (bytes[0], bytes[9..].to_vec())
}

#[test]
fn frames_read_as_they_were_written() {
    for frame in frames() {
        let (opcode, body) = written(&frame);
        assert_eq!(ControlFrame::read(opcode, &body), Ok(frame));
    }
}

#[test]
fn a_frame_that_is_cut_or_too_long_is_refused() {
    for frame in frames() {
        let (opcode, mut body) = written(&frame);
        for length in 0..body.len() {
            assert_eq!(
                ControlFrame::read(opcode, &body[..length]),
                Err(ConsensusWireError::Short)
            );
        }
        body.push(0);
        assert_eq!(
            ControlFrame::read(opcode, &body),
            Err(ConsensusWireError::Long)
        );
    }
}

#[test]
fn an_opcode_of_nobody_a_voter_of_zero_and_a_list_of_many_are_refused() {
    assert_eq!(
        ControlFrame::read(0x49, &[]),
        Err(ConsensusWireError::Opcode(0x49))
    );
    let (opcode, mut body) = written(&frames()[2]);
    body[26..34].fill(0);
    assert_eq!(
        ControlFrame::read(opcode, &body),
        Err(ConsensusWireError::Field("voter"))
    );
    body[25] = 200;
    let many = ConsensusWireError::Field("number of voters");
    assert_eq!(ControlFrame::read(opcode, &body), Err(many));
}

#[test]
fn a_text_that_is_too_long_is_cut_between_characters() {
    let (opcode, body) = written(&ControlFrame::Elsewhere {
        cluster: 0,
        epoch: 0,
        term: 0,
        address: "ä".repeat(200),
    });
    let Ok(ControlFrame::Elsewhere { address, .. }) = ControlFrame::read(opcode, &body) else {
        panic!("the frame cannot be decoded");
    };
    assert_eq!(address, "ä".repeat(127));
}
