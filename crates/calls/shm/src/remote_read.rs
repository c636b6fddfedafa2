//! Reads of another process's memory: one copy instead of two, where allowed.
//!
//! Permission depends on the user, on namespaces and on the security modules of the system, so this
//! module tests it. A process shows a peer a [`Witness`], and the peer reads the witness. The
//! reader takes the process id from the socket ([`pass::peer`](crate::pass::peer)), never from a
//! message. A peer can therefore show only its own memory.
//!
//! The system may reuse the id of a process that has ended. After a read, check that the socket is
//! still open before you use the bytes.

use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read};
use std::thread::{self, available_parallelism};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rdzv_lock::Mutex;
use rustix::process::{PTracer, geteuid, set_ptracer};

use crate::error::{Result, ShmError};
use crate::pass::Peer;

/// Maximum number of bytes that the system copies in one call.
const MOST: usize = 0x7fff_f000;

/// Minimum number of bytes for each thread.
const EACH_THREAD: usize = 4 << 20;

/// Maximum number of threads of a read, unless the caller specifies another.
const MOST_THREADS: usize = 4;

const PAGE: usize = 4096;

/// Reads bytes of the process until `into` is full.
///
/// Up to four threads share a large read, this thread included.
///
/// # Errors
///
/// [`ShmError::RemoteRead`] if the system refuses the read, or the process does not have all of
/// these bytes.
pub fn read(process: u32, address: u64, into: &mut [u8]) -> Result<()> {
    let threads = if into.len() < 2 * EACH_THREAD {
        1
    } else {
        available_parallelism().map_or(1, |processors| processors.get().min(MOST_THREADS))
    };
    read_by(threads, process, address, into)
}

/// Reads with at most this many threads, this thread included.
///
/// # Errors
///
/// Returns the errors of [`read`].
pub fn read_by(threads: usize, process: u32, address: u64, into: &mut [u8]) -> Result<()> {
    let length = into.len();
    let refused = |error: Errno| ShmError::RemoteRead {
        process,
        address,
        length,
        source: error.into(),
    };
    let number = i32::try_from(process).map_err(|_| refused(Errno::ESRCH))?;
    let start = usize::try_from(address).map_err(|_| refused(Errno::EFAULT))?;
    let threads = threads.min(length / EACH_THREAD).max(1);
    let share = length.div_ceil(threads).next_multiple_of(PAGE).max(PAGE);
    let begin = |at: usize| start.checked_add(at * share).ok_or(Errno::EFAULT);
    let mut shares = into.chunks_mut(share).enumerate();
    let own = shares.next();
    let all = thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|(at, share)| scope.spawn(move || read_share(number, begin(at)?, share)))
            .collect();
        let mine = own.map_or(Ok(()), |(at, share)| read_share(number, begin(at)?, share));
        others.into_iter().fold(mine, |so_far, other| {
            so_far.and(other.join().expect("a copy does not panic"))
        })
    });
    all.map_err(refused)
}

fn read_share(process: i32, mut from: usize, mut into: &mut [u8]) -> Result<(), Errno> {
    while !into.is_empty() {
        let length = into.len().min(MOST);
        let piece = &mut into[..length];
        let remote = [RemoteIoVec {
            base: from,
            len: length,
        }];
        let mut local = [IoSliceMut::new(piece)];
        match process_vm_readv(Pid::from_raw(process), &mut local, &remote) {
            Ok(0) => return Err(Errno::EFAULT),
            Ok(read) => {
                from = from.checked_add(read).ok_or(Errno::EFAULT)?;
                into = &mut into[read..];
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Number of bytes that a process shows to a peer.
pub const NONCE: usize = 16;

/// Random bytes in this process for a peer to read.
///
/// Keep them until the peer has read them.
#[derive(Debug)]
pub struct Witness(Box<[u8; NONCE]>);

/// Description of a witness for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Address of the witness.
    pub address: u64,
    /// Content of the witness.
    pub nonce: [u8; NONCE],
}

impl Witness {
    /// Creates a new witness.
    ///
    /// # Errors
    ///
    /// [`ShmError::System`] if the system has no random numbers.
    pub fn new() -> Result<Self> {
        let mut nonce = Box::new([0; NONCE]);
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut *nonce))
            .map_err(ShmError::system("get random bytes"))?;
        Ok(Self(nonce))
    }

    /// Returns the description to send to the peer.
    pub fn claim(&self) -> Claim {
        Claim {
            address: self.0.as_ptr() as u64,
            nonce: *self.0,
        }
    }
}

/// Reason why the memory of a peer cannot be read. Use rings instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// The peer runs as another user.
    #[error("the peer runs as user {theirs}, but this process runs as user {ours}")]
    OtherUser {
        /// Effective user of the peer.
        theirs: u32,
        /// Effective user of this process.
        ours: u32,
    },
    /// The peer has no process id in this namespace, or has ended.
    #[error("the peer is in a process namespace that is not visible from here")]
    OtherNamespace,
    /// Yama forbids processes from reading each other's memory.
    #[error(
        "Yama denies it (/proc/sys/kernel/yama/ptrace_scope is {scope}); with 1, the peer must \
         permit it; with 0, it is permitted"
    )]
    Yama {
        /// Content of that file.
        scope: u32,
    },
    /// The process with this id is not the peer: its bytes are not the witness.
    #[error("process {process} does not have the bytes that the peer sent for comparison")]
    WrongProcess {
        /// Process id.
        process: u32,
    },
    /// The system refuses for another reason.
    ///
    /// Examples are a process that is not dumpable, a system call filter, and a security module.
    #[error("the system refused: {0}")]
    System(#[source] io::Error),
}

/// Tests with the peer's witness that the memory of the peer can be read.
///
/// # Errors
///
/// Returns the reason why the memory cannot be read.
pub fn probe(peer: &Peer, claim: &Claim) -> Result<(), Denied> {
    let process = peer.process;
    if process == 0 {
        return Err(Denied::OtherNamespace);
    }
    let mut nonce = [0; NONCE];
    let error = match read(process, claim.address, &mut nonce) {
        Ok(()) if nonce == claim.nonce => return Ok(()),
        Ok(()) => return Err(Denied::WrongProcess { process }),
        Err(ShmError::RemoteRead { source, .. }) => source,
        Err(error) => error.into(),
    };
    let ours = geteuid().as_raw();
    Err(match error.raw_os_error() {
        Some(code) if code == Errno::EFAULT as i32 => Denied::WrongProcess { process },
        Some(code) if code == Errno::ESRCH as i32 => Denied::OtherNamespace,
        Some(code) if code == Errno::EPERM as i32 => match yama() {
            _ if peer.user != ours => Denied::OtherUser {
                theirs: peer.user,
                ours,
            },
            Some(scope) if scope > 0 => Denied::Yama { scope },
            _ => Denied::System(error),
        },
        _ => Denied::System(error),
    })
}

/// Returns the ptrace scope of Yama; `None` without Yama.
fn yama() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    text.trim().parse().ok()
}

/// Permits another process of the same user to read this process under Yama.
///
/// Earlier readers keep their permission. Yama has one permission per process. With several
/// readers, the permission is for their nearest common ancestor and all of its descendants, and
/// never for all processes.
///
/// # Errors
///
/// [`Denied::Yama`] if no permission is possible: Yama forbids all reads, or the readers have no
/// common ancestor. [`Denied::System`] if the call fails.
pub fn permit(reader: u32) -> Result<(), Denied> {
    static READERS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    match yama() {
        None | Some(0) => Ok(()),
        Some(1) => {
            let mut readers = READERS.lock();
            // A process that has ended has no ancestors.
            readers.retain(|known| *known != reader && parent(*known).is_some());
            readers.push(reader);
            let lines: Vec<_> = readers.iter().map(|reader| ancestors(*reader)).collect();
            let reader = nearest_common(&lines)
                .and_then(|reader| i32::try_from(reader).ok())
                .and_then(rustix::process::Pid::from_raw)
                .ok_or(Denied::Yama { scope: 1 })?;
            set_ptracer(PTracer::ProcessID(reader)).map_err(|error| Denied::System(error.into()))
        }
        Some(scope) => Err(Denied::Yama { scope }),
    }
}

/// Returns the process and its visible ancestors, without process 1.
fn ancestors(process: u32) -> Vec<u32> {
    let mut line = Vec::new();
    let mut process = Some(process);
    while let Some(number) = process.filter(|number| *number > 1 && !line.contains(number)) {
        line.push(number);
        process = parent(number);
    }
    line
}

fn parent(process: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses and may have any characters.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn nearest_common(lines: &[Vec<u32>]) -> Option<u32> {
    let (first, others) = lines.split_first()?;
    let in_all = |process: &&u32| others.iter().all(|line| line.contains(process));
    first.iter().find(in_all).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Peer {
        Peer {
            process: std::process::id(),
            user: geteuid().as_raw(),
            group: 0,
        }
    }

    #[test]
    fn a_witness_is_believed_if_it_is_there() {
        let witness = Witness::new().unwrap();
        probe(&own(), &witness.claim()).unwrap();
        let mut wrong = witness.claim();
        wrong.nonce[3] ^= 1;
        let denied = probe(&own(), &wrong).unwrap_err();
        assert!(matches!(denied, Denied::WrongProcess { .. }), "{denied}");
        for address in [0, 1, u64::MAX, u64::MAX / 2] {
            let nowhere = Claim { address, ..wrong };
            let denied = probe(&own(), &nowhere).unwrap_err();
            assert!(matches!(denied, Denied::WrongProcess { .. }), "{denied}");
        }
    }

    #[test]
    fn a_process_without_a_number_is_in_another_namespace() {
        let claim = Witness::new().unwrap().claim();
        for process in [0, i32::MAX as u32] {
            let denied = probe(&Peer { process, ..own() }, &claim).unwrap_err();
            assert!(matches!(denied, Denied::OtherNamespace), "{denied}");
        }
    }

    #[test]
    fn bytes_that_are_not_there_are_an_error() {
        let mut into = [0; 100];
        let error = read(std::process::id(), 4096, &mut into).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("100 bytes at 0x1000 of process"), "{text}");
        read_by(4, std::process::id(), 4096, &mut []).unwrap();
    }

    #[test]
    fn many_threads_read_what_one_would() {
        let bytes: Vec<u8> = (0..20_000_003_u32)
            .map(|at| (at ^ (at >> 9)) as u8)
            .collect();
        for threads in [0, 1, 3, 4] {
            let mut into = vec![0; bytes.len()];
            let address = bytes.as_ptr() as u64;
            read_by(threads, std::process::id(), address, &mut into).unwrap();
            assert!(into == bytes, "{threads} threads");
        }
    }

    #[test]
    fn the_nearest_ancestor_of_all_readers_is_permitted() {
        let line = |text: &str| {
            text.split(' ')
                .map(|n| n.parse().unwrap())
                .collect::<Vec<u32>>()
        };
        let nearest = |all: &[&str]| {
            let lines: Vec<_> = all.iter().map(|text| line(text)).collect();
            nearest_common(&lines)
        };
        assert_eq!(nearest(&["70 60 50"]), Some(70));
        assert_eq!(nearest(&["70 60 50", "71 60 50"]), Some(60));
        assert_eq!(nearest(&["70 60 50", "60 50"]), Some(60));
        assert_eq!(nearest(&["70 60 50", "71 60 50", "82 50"]), Some(50));
        assert_eq!(nearest(&["70 60", "71 61"]), None);
        assert_eq!(nearest(&[]), None);
    }

    #[test]
    fn ancestors_begin_with_the_process_and_its_parent() {
        let line = ancestors(std::process::id());
        assert_eq!(line[0], std::process::id());
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        assert!(parent <= 1 || line[1] == parent as u32, "{line:?}");
    }
}
