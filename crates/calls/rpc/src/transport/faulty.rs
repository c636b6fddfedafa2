//! A carrier that breaks when it is told to. For tests: of this project, and of programs that want to
//! know what they do when the network fails.
//!
//! Faults are those of a stream of bytes. What happens to whole messages (lost, twice, in another
//! order) cannot happen on one connection; it comes from reconnecting, and is simulated in the core.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_event::{EventFlags, Poller, Timer};
use rdzv_lock::Mutex;

use super::{Carrier, ReadHalf, Readiness, WriteHalf};

/// Tells a carrier how to break.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<State>>);

struct State {
    /// The write half of what is wrapped.
    write: Box<dyn WriteHalf>,
    written: u64,
    /// The connection ends when so many bytes are written.
    cut_at: Option<u64>,
    /// This byte is changed.
    corrupt_at: Option<u64>,
    delay: Duration,
    half_open: bool,
}

/// Wraps a carrier: it works as before until it is told otherwise.
///
/// # Errors
///
/// If the system has no descriptors left.
pub fn wrap(carrier: Carrier) -> io::Result<(Carrier, Faults)> {
    let watched = carrier.write.descriptor().try_clone_to_owned()?;
    let faults = Faults(Arc::new(Mutex::new(State {
        write: carrier.write,
        written: 0,
        cut_at: None,
        corrupt_at: None,
        delay: Duration::ZERO,
        half_open: false,
    })));
    let write = FaultyWrite {
        faults: faults.clone(),
        watched,
    };
    let read = FaultyRead::new(carrier.read, faults.clone())?;
    let carrier = Carrier {
        read: Box::new(read),
        write: Box::new(write),
        ..carrier
    };
    Ok((carrier, faults))
}

impl Faults {
    /// Ends the connection now, in both directions.
    pub fn cut(&self) {
        self.0.lock().write.close();
    }

    /// Ends the connection when this side has written so many more bytes: in the middle of a frame, say.
    pub fn cut_after(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.cut_at = Some(state.written + bytes);
    }

    /// Changes one byte: the one that this side writes after so many more.
    pub fn corrupt_after(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.corrupt_at = Some(state.written + bytes);
    }

    /// Lets what this side receives, the end included, arrive later by so much.
    pub fn delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// From now on nothing passes in either direction and neither side is told, as when a host
    /// vanishes: writing seems to work, and reading waits for ever.
    pub fn half_open(&self) {
        self.0.lock().half_open = true;
    }

    /// How many bytes this side has written.
    pub fn written(&self) -> u64 {
        self.0.lock().written
    }
}

struct FaultyWrite {
    faults: Faults,
    /// The descriptor of what is wrapped, once more.
    watched: OwnedFd,
}

impl WriteHalf for FaultyWrite {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.faults.0.lock().write(parts)
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.faults.0.lock().write.prepare_to_sleep()
    }

    fn awake(&mut self) {
        self.faults.0.lock().write.awake();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn ready_when(&self) -> Readiness {
        self.faults.0.lock().write.ready_when()
    }

    fn close(&mut self) {
        let mut state = self.faults.0.lock();
        if !state.half_open {
            state.write.close();
        }
    }
}

impl State {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = parts.iter().map(|part| part.len()).sum();
        if self.half_open {
            self.written += offered as u64;
            return Ok(offered);
        }
        let before_cut = self.cut_at.map_or(u64::MAX, |at| at - self.written);
        if before_cut == 0 {
            self.write.close();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // Whatever is changed or left out, the same bytes are passed on when it has to be tried
        // again, as the contract wants.
        let changed = self.corrupt_at.and_then(|at| at.checked_sub(self.written));
        let changed = changed.filter(|at| *at < offered as u64);
        let count = if changed.is_none() && before_cut >= offered as u64 {
            self.write.write(parts)?
        } else {
            let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            if let Some(byte) = changed.and_then(|at| bytes.get_mut(at as usize)) {
                *byte ^= 0x55;
            }
            bytes.truncate(usize::try_from(before_cut).unwrap_or(usize::MAX));
            self.write.write(&[IoSlice::new(&bytes)])?
        };
        self.written += count as u64;
        if self.cut_at == Some(self.written) {
            self.write.close();
        }
        Ok(count)
    }
}

struct FaultyRead {
    inner: Box<dyn ReadHalf>,
    faults: Faults,
    /// The descriptor of what is wrapped and the timer in one.
    watched: Poller,
    timer: Timer,
    /// What was received and is late, with the times at which it arrives.
    late: VecDeque<(Instant, Vec<u8>)>,
    /// When the end arrives, once it has been seen.
    end: Option<Instant>,
    /// Nothing more is taken from what is wrapped.
    deaf: bool,
    asleep: bool,
}

impl FaultyRead {
    fn new(inner: Box<dyn ReadHalf>, faults: Faults) -> io::Result<Self> {
        let watched = Poller::new()?;
        let timer = Timer::new()?;
        watched.add(inner.descriptor(), 0, EventFlags::IN)?;
        watched.add(&timer, 1, EventFlags::IN)?;
        Ok(Self {
            inner,
            faults,
            watched,
            timer,
            late: VecDeque::new(),
            end: None,
            deaf: false,
            asleep: false,
        })
    }

    /// Takes nothing more from what is wrapped.
    fn go_deaf(&mut self) {
        if !self.deaf {
            self.deaf = true;
            self.watched.remove(self.inner.descriptor());
        }
    }

    /// Takes in all that is there, to hand it out later.
    fn collect(&mut self, delay: Duration) {
        let mut piece = [0; 16 << 10];
        while !self.deaf {
            match self.inner.read(&mut piece) {
                Ok(count @ 1..) => {
                    let arrives = Instant::now() + delay;
                    self.late.push_back((arrives, piece[..count].to_vec()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => {
                    self.end = Some(Instant::now() + delay);
                    self.go_deaf();
                }
            }
        }
    }

    /// When the next thing arrives.
    fn next(&self) -> Option<Instant> {
        self.late.front().map(|(at, _)| *at).or(self.end)
    }
}

impl ReadHalf for FaultyRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (delay, half_open) = {
            let state = self.faults.0.lock();
            (state.delay, state.half_open)
        };
        if half_open {
            self.go_deaf();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if delay.is_zero() && self.next().is_none() {
            return self.inner.read(into);
        }
        self.collect(delay);
        let now = Instant::now();
        if self.next().is_none_or(|arrives| arrives > now) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Some((_, bytes)) = self.late.front_mut() else {
            return Ok(0);
        };
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        bytes.drain(..count);
        if bytes.is_empty() {
            self.late.pop_front();
        }
        Ok(count)
    }

    fn prepare_to_sleep(&mut self) -> bool {
        if !self.deaf {
            if !self.inner.prepare_to_sleep() {
                return false;
            }
            self.asleep = true;
        }
        if self.faults.0.lock().half_open {
            return true;
        }
        let left = self
            .next()
            .map(|next| next.saturating_duration_since(Instant::now()));
        match left {
            None => {}
            Some(Duration::ZERO) => {
                self.awake();
                return false;
            }
            Some(left) => self.timer.set(Some(left)),
        }
        true
    }

    fn awake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.inner.awake();
        }
        self.timer.set(None);
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}
