//! Frames: written frames decode equal, and cut or changed frames never panic.

use rdzv_consensus::VoterId;
use rdzv_consensus::wire::{Frame, OfRun, WireError};

fn frames() -> Vec<Frame> {
    let voter = VoterId::new(7).unwrap();
    let hello = Frame::Hello {
        cluster: 1 << 100,
        epoch: 3,
        voter,
        is_store: true,
        address: "[fd00::1]:29400".into(),
        of_run: None,
    };
    let of_run = Frame::Hello {
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
    let members = Frame::Members(vec![(Some(voter), "a:1".into()), (None, "b:2".into())]);
    let invite = Frame::Invite {
        cluster: 9,
        epoch: 0,
        voter_index: 4,
        voters: vec![voter, VoterId::new(8).unwrap()],
    };
    let elsewhere = Frame::Elsewhere {
        cluster: 9,
        epoch: 1,
        term: 12,
        address: String::new(),
    };
    vec![
        hello,
        of_run,
        invite,
        Frame::WhoCoordinates,
        elsewhere,
        members,
    ]
}

fn written(frame: &Frame) -> (u8, Vec<u8>) {
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
        assert_eq!(Frame::read(opcode, &body), Ok(frame));
    }
}

#[test]
fn a_frame_that_is_cut_or_too_long_is_refused() {
    for frame in frames() {
        let (opcode, mut body) = written(&frame);
        for length in 0..body.len() {
            assert_eq!(Frame::read(opcode, &body[..length]), Err(WireError::Short));
        }
        body.push(0);
        assert_eq!(Frame::read(opcode, &body), Err(WireError::Long));
    }
}

#[test]
fn an_opcode_of_nobody_a_voter_of_zero_and_a_list_of_many_are_refused() {
    assert_eq!(Frame::read(0x49, &[]), Err(WireError::Opcode(0x49)));
    let (opcode, mut body) = written(&frames()[2]);
    body[26..34].fill(0);
    assert_eq!(Frame::read(opcode, &body), Err(WireError::Field("voter")));
    body[25] = 200;
    let many = WireError::Field("number of voters");
    assert_eq!(Frame::read(opcode, &body), Err(many));
}

#[test]
fn a_text_that_is_too_long_is_cut_between_characters() {
    let (opcode, body) = written(&Frame::Elsewhere {
        cluster: 0,
        epoch: 0,
        term: 0,
        address: "ä".repeat(200),
    });
    let Ok(Frame::Elsewhere { address, .. }) = Frame::read(opcode, &body) else {
        panic!("the frame cannot be decoded");
    };
    assert_eq!(address, "ä".repeat(127));
}
