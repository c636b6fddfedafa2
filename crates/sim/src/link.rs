//! One connection: two streams of bytes that are cut, delayed and limited.

use std::collections::VecDeque;

use fastrand::Rng;

/// Virtual time, in nanoseconds.
pub type Nanos = u64;

/// One connection between a client and the server.
#[derive(Debug, Default)]
pub struct Link {
    /// Number that distinguishes the connection from its successors.
    pub generation: u64,
    /// Minimum time that a piece travels.
    latency: Nanos,
    /// Arrival time of the last piece to the server; the next cannot overtake it.
    server_busy: Nanos,
    client_busy: Nanos,
    /// Maximum number of bytes of replies in the network and the client's kernel.
    window: usize,
    /// Number of bytes of the window that are used.
    in_flight: usize,
    /// Pieces that have arrived at a server that does not read.
    pub unread: VecDeque<Vec<u8>>,
    /// `true` if the server does not read.
    pub paused: bool,
    /// `true` if the server has more to send than fits.
    pub wants_room: bool,
}

impl Link {
    /// Creates a link with random latency and window.
    pub fn new(generation: u64, random: &mut Rng) -> Self {
        Self {
            generation,
            latency: random.u64(1_000..2_000_000),
            window: if random.u8(..) < 64 {
                random.usize(1..200)
            } else {
                random.usize(1_000..200_000)
            },
            ..Self::default()
        }
    }

    /// Cuts a client's bytes into pieces, each with the time of its arrival.
    pub fn to_server(
        &mut self,
        now: Nanos,
        mut bytes: &[u8],
        random: &mut Rng,
    ) -> Vec<(Nanos, Vec<u8>)> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let most = match random.u8(..) {
                0..100 => bytes.len(),
                100..180 => random.usize(1..20),
                _ => random.usize(1..40_000),
            };
            let (piece, rest) = bytes.split_at(most.min(bytes.len()));
            self.server_busy = self.server_busy.max(now + self.latency) + random.u64(0..5_000);
            pieces.push((self.server_busy, piece.to_vec()));
            bytes = rest;
        }
        pieces
    }

    /// Returns the number of bytes that the server can send now.
    pub fn room(&self) -> usize {
        self.window - self.in_flight
    }

    /// Sends `length` bytes to the client; returns the time of their arrival.
    pub fn to_client(&mut self, now: Nanos, length: usize, random: &mut Rng) -> Nanos {
        self.in_flight += length;
        self.client_busy = self.client_busy.max(now + self.latency) + random.u64(0..5_000);
        self.client_busy
    }

    /// Frees the window of `length` bytes that the client has read.
    pub fn read(&mut self, length: usize) {
        self.in_flight -= length;
    }
}
