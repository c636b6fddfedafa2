//! A carrier that breaks does so as it was told, and otherwise keeps the contract.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::Carrier;
use rdzv_rpc::transport::faulty::{Faults, wrap};
use rdzv_rpc_proto::frame::decoder::FromHeap;
use rdzv_rpc_proto::frame::{Decoder, FrameError, FrameKind, Header, Limits, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::pump::{fill, read, read_to_end, write_all};
use super::world::{KINDS, pair};

fn faulty_pair(kind: rdzv_rpc::transport::TransportKind) -> (Carrier, Faults, Carrier) {
    let (near, far) = pair(kind);
    let (near, faults) = wrap(near).unwrap();
    (near, faults, far)
}

#[test]
fn until_it_is_notified_it_works() {
    for kind in KINDS {
        let (mut near, faults, mut far) = faulty_pair(kind);
        let bytes = vec![3; 1 << 20];
        thread::scope(|scope| {
            scope.spawn(|| write_all(&mut *near.write, &bytes).unwrap());
            let mut all = vec![0; bytes.len()];
            fill(&mut *far.read, &mut all);
            assert!(all == bytes, "{kind}");
            scope.spawn(|| write_all(&mut *far.write, &bytes).unwrap());
            fill(&mut *near.read, &mut all);
            assert!(all == bytes, "{kind}");
        });
        assert_eq!(faults.written(), bytes.len() as u64);
        near.write.close();
        assert_eq!(read_to_end(&mut *far.read).unwrap(), b"");
    }
}

#[test]
fn it_is_cut_where_the_test_says() {
    for kind in KINDS {
        let (mut near, faults, mut far) = faulty_pair(kind);
        write_all(&mut *near.write, b"before ").unwrap();
        faults.cut_after(3);
        let error = write_all(&mut *near.write, b"after").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(
            read_to_end(&mut *far.read).unwrap(),
            b"before aft",
            "{kind}"
        );
        assert_eq!(read_to_end(&mut *near.read).unwrap(), b"", "{kind}");
    }
}

#[test]
fn it_is_cut_at_once_under_a_sleeping_reader() {
    for kind in KINDS {
        let (mut near, faults, mut far) = faulty_pair(kind);
        thread::scope(|scope| {
            let reader = scope.spawn(|| read(&mut *near.read, &mut [0]));
            faults.cut();
            assert_eq!(reader.join().unwrap().unwrap(), 0, "{kind}");
        });
        assert_eq!(read_to_end(&mut *far.read).unwrap(), b"", "{kind}");
    }
}

#[test]
fn a_changed_byte_is_noticed_by_the_reader_of_frames() {
    for kind in KINDS {
        let (mut near, faults, mut far) = faulty_pair(kind);
        let mut frame = Vec::new();
        encode(&Header::new(FrameKind::Ping), b"body", &[], &mut frame);
        // The first byte of the second frame.
        faults.corrupt_after(frame.len() as u64);
        write_all(&mut *near.write, &frame.repeat(2)).unwrap();
        near.write.close();
        let mut decoder = Decoder::new(Limits::default(), FromHeap);
        let bytes = read_to_end(&mut *far.read).unwrap();
        assert_eq!(bytes.len(), 2 * frame.len());
        decoder.room()[..bytes.len()].copy_from_slice(&bytes);
        decoder.filled(bytes.len());
        assert_eq!(decoder.next().unwrap().unwrap().body, "body", "{kind}");
        assert!(
            matches!(decoder.next(), Err(FrameError::Magic(_))),
            "{kind}"
        );
    }
}

#[test]
fn what_is_delayed_arrives_later_in_order_and_then_the_end() {
    const DELAY: Duration = Duration::from_millis(150);
    for kind in KINDS {
        let (mut near, faults, mut far) = faulty_pair(kind);
        faults.delay(DELAY);
        let since = Instant::now();
        write_all(&mut *far.write, b"first ").unwrap();
        write_all(&mut *far.write, b"second").unwrap();
        far.write.close();
        let mut all = [0; 12];
        fill(&mut *near.read, &mut all);
        assert_eq!(&all, b"first second");
        assert_eq!(read(&mut *near.read, &mut [0]).unwrap(), 0, "{kind}");
        assert!(since.elapsed() >= DELAY, "{kind}");
    }
}

#[test]
fn nobody_is_notified_of_a_connection_that_is_half_open() {
    for kind in KINDS {
        let (mut near, faults, mut far) = faulty_pair(kind);
        faults.half_open();
        write_all(&mut *near.write, &vec![1; 10 << 20]).unwrap();
        write_all(&mut *far.write, b"are you there?").unwrap();
        far.write.close();
        // What is not there cannot be waited for: that nothing comes is seen for a moment.
        let moment = Timespec::try_from(Duration::from_millis(100)).unwrap();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            let error = near.read.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{kind}");
            assert!(near.read.prepare_to_sleep());
            let descriptor = near.read.descriptor();
            let woken = poll(
                &mut [PollFd::new(&descriptor, PollFlags::IN)],
                Some(&moment),
            );
            assert_eq!(woken, Ok(0), "{kind}: nothing to wake up for");
            near.read.awake();
        }
    }
}
