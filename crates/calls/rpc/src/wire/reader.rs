//! Incoming frames.
//!
//! One thread at a time reads a connection: the holder of its *reader lock*, the lock around the
//! [`Reader`]. The holder is the driver, or a thread that waits for a reply.

use std::io;

use bytes::Bytes;
use rdzv_rpc_proto::frame::decoder::to_reserve;
use rdzv_rpc_proto::frame::{Decoder, Frame, FrameError, FrameLimits, Supply};

use rdzv_shm::{Pool, PooledBuffer};

use crate::transport::ReadHalf;

/// The reading end and the frame that is arriving.
pub(crate) struct Reader {
    half: Box<dyn ReadHalf>,
    decoder: Decoder<Pooled>,
    /// `true` if the decoder may hold whole frames.
    /// The descriptor does not signal these frames.
    has_more: bool,
}

/// Reason why no more frames can be read.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other side has closed the connection.
    Closed,
    Failed(io::Error),
    /// The received bytes are not a frame.
    Nonsense(FrameError),
}

/// Memory for large bodies and parts, from a pool that keeps mapped pages.
pub(crate) struct Pooled(Pool);

impl Supply for Pooled {
    type Buffer = PooledBuffer;

    fn buffer(&mut self, length: usize) -> PooledBuffer {
        self.0.begin(length, to_reserve(0, length))
    }

    fn grow(&mut self, buffer: &mut PooledBuffer, length: usize) -> bool {
        let received = buffer.as_ref().len();
        buffer.grow(to_reserve(received, length))
    }

    fn freeze(&mut self, buffer: PooledBuffer) -> Bytes {
        buffer.freeze()
    }
}

impl Reader {
    pub(crate) fn new(half: Box<dyn ReadHalf>, limits: FrameLimits, pool: Pool) -> Self {
        Self {
            half,
            decoder: Decoder::new(limits, Pooled(pool)),
            has_more: false,
        }
    }

    /// Changes the size limits of later frames.
    pub(crate) fn set_limits(&mut self, limits: FrameLimits) {
        self.decoder.set_limits(limits);
    }

    pub(crate) fn half(&mut self) -> &mut dyn ReadHalf {
        self.half.as_mut()
    }

    /// Prepares the reading thread to sleep until the descriptor is readable.
    ///
    /// Returns `false` if the thread must not sleep, because frames may be available.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        !self.has_more && self.half.prepare_to_sleep()
    }

    /// Records that the reading thread is awake again.
    pub(crate) fn awake(&mut self) {
        self.half.awake();
    }

    /// Returns the next frame, if it has arrived completely.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Broken> {
        loop {
            if let Some(frame) = self.decoder.next().map_err(Broken::Nonsense)? {
                self.has_more = true;
                return Ok(Some(frame));
            }
            self.has_more = false;
            match self.half.read(self.decoder.room()) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => self.decoder.filled(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Broken::Failed(error)),
            }
        }
    }
}
