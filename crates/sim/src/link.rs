//! One connection: two streams of bytes that are cut, delayed and limited.

use std::collections::VecDeque;

use fastrand::Rng;

/// Virtual time, in nanoseconds.
pub type Nanos = u64;

/// One connection between a client and the server.
#[derive(Debug)]
pub struct Link {
    /// Tells the connection from its successors.
    pub generation: u64,
    /// How long a piece travels at least.
    latency: Nanos,
    /// When the last piece to the server arrives; the next cannot overtake it.
    server_busy: Nanos,
    client_busy: Nanos,
    /// Replies that the network and the client's kernel take before the client reads.
    window: usize,
    /// How much of the window is used.
    in_flight: usize,
    /// What has arrived at a server that does not read.
    pub unread: VecDeque<Vec<u8>>,
    /// The server does not read.
    pub paused: bool,
    /// The server has more to send than fits.
    pub wants_room: bool,
}

impl Link {
    /// A link with a character of its own.
    pub fn new(generation: u64, random: &mut Rng) -> Self {
        Self {
            generation,
            latency: random.u64(1_000..2_000_000),
            server_busy: 0,
            client_busy: 0,
            window: if random.u8(..) < 64 {
                random.usize(1..200)
            } else {
                random.usize(1_000..200_000)
            },
            in_flight: 0,
            unread: VecDeque::new(),
            paused: false,
            wants_room: false,
        }
    }

    /// Cuts what a client sends into pieces, each with the time of its arrival.
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

    /// How much the server can send at this moment.
    pub fn room(&self) -> usize {
        self.window - self.in_flight
    }

    /// The server sends so much; returns when it arrives.
    pub fn to_client(&mut self, now: Nanos, length: usize, random: &mut Rng) -> Nanos {
        self.in_flight += length;
        self.client_busy = self.client_busy.max(now + self.latency) + random.u64(0..5_000);
        self.client_busy
    }

    /// The client has read so much.
    pub fn read(&mut self, length: usize) {
        self.in_flight -= length;
    }
}
