//! Tests of links: frames that a reading thread leaves behind, and hang-ups.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdzv_rpc_proto::frame::{Frame, FrameKind, FrameLimits, Header, encode};
use rdzv_rpc_proto::heartbeat::Rhythm;
use rdzv_shm::{Leases, Pool};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::RpcError;
use crate::transport::{ReadHalf, TransportKind, WriteHalf};
use crate::wire::link::{Endpoint, Ends, Link, Pumped, pump, rest};
use crate::wire::poller::Poller;
use crate::wire::reader::Reader;
use crate::wire::writer::Writer;

/// Half of a connection that delivers its bytes once and nothing later.
/// Its descriptor never becomes readable.
struct Half {
    arrived: Vec<u8>,
    descriptor: OwnedFd,
}

impl Half {
    fn new(arrived: Vec<u8>) -> Box<Self> {
        Box::new(Self {
            arrived,
            descriptor: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        })
    }
}

impl ReadHalf for Half {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.arrived.len().min(into.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&self.arrived[..count]);
        self.arrived.drain(..count);
        Ok(count)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl WriteHalf for Half {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn close(&mut self) {}
}

struct Counting {
    link: Link,
    taken: AtomicUsize,
}

impl Endpoint for Counting {
    fn link(&self) -> &Link {
        &self.link
    }

    fn take(self: Arc<Self>, _: Frame) -> Option<FrameLimits> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn lost(self: Arc<Self>, error: RpcError) {
        panic!("{error}");
    }
}

/// Creates a connection on which `count` frames have arrived together.
fn with_frames(count: usize) -> Arc<Counting> {
    connection(count, None)
}

fn connection(count: usize, leases: Option<Arc<Leases>>) -> Arc<Counting> {
    let mut frames = Vec::new();
    for _ in 0..count {
        encode(&Header::new(FrameKind::Cancel), &[], &[], &mut frames);
    }
    let ends = Ends {
        reader: Reader::new(Half::new(frames), FrameLimits::default(), Pool::default()),
        writer: Writer::new(Half::new(Vec::new())),
        kind: TransportKind::Unix,
        reason: "a test".to_owned(),
        process: None,
        leases,
        peer: "none".to_owned(),
        rhythm: Rhythm::new(Duration::from_secs(5)),
    };
    Arc::new(Counting {
        link: Link::new(Arc::new(Poller::new().unwrap()), ends).unwrap(),
        taken: AtomicUsize::default(),
    })
}

#[test]
fn who_leaves_the_reader_lock_leaves_no_frames_behind_that_were_received() {
    // One read returns more frames than one turn takes, and the descriptor does not show the rest.
    const FRAMES: usize = 1000;
    let endpoint = with_frames(FRAMES);
    let mut reader = endpoint.link().try_reader().unwrap();
    assert_eq!(pump(&endpoint, &mut reader), Pumped::More);
    let taken = endpoint.taken.load(Ordering::Relaxed);
    assert!(taken < FRAMES, "a turn takes {taken}: the test needs more");
    rest(&endpoint, reader);
    assert_eq!(endpoint.taken.load(Ordering::Relaxed), FRAMES);
}

#[test]
fn nobody_sleeps_while_there_may_be_frames() {
    let endpoint = with_frames(300);
    let mut reader = endpoint.link().try_reader().unwrap();
    while pump(&endpoint, &mut reader) == Pumped::More {
        assert!(!reader.prepare_to_sleep(), "frames are here");
    }
    assert!(reader.prepare_to_sleep());
    reader.awake();
}

#[test]
fn a_hang_up_shows_beside_shared_memory() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let endpoint = connection(0, Some(Leases::new(ours.into())));
    assert!(!endpoint.link.is_hung_up());
    drop(theirs);
    assert!(endpoint.link.is_hung_up());
}
