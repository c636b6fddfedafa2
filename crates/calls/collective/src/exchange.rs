//! Execution of a schedule on buffers.
//!
//! The parts are cut into pieces, and the whole schedule runs on each piece. No message is
//! therefore longer than [`Mesh::longest`], and a rank passes a piece on while the next one
//! arrives. Sending never waits. A rank receives while its own data is in flight. Until the end of
//! the operation, it waits for the sending only when it is behind by more than one message. INV-C1
//! of the schedules excludes deadlocks.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::element::{self, Element};
use crate::error::Result;
use crate::mesh::Mesh;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Arrival, Message, Parts, Schedule, Step};

/// Values to send, and their parts.
pub(crate) type Source<'a, T> = (&'a [T], &'a Parts);

/// Buffer to receive into, and its parts.
pub(crate) type Target<'a, T> = (&'a mut [T], &'a Parts);

/// Values to send and buffer to receive into, cut into parts.
#[derive(Debug)]
pub(crate) enum Buffers<'a, T> {
    OneBuffer(Target<'a, T>),
    /// Two buffers, each with as many parts as there are ranks.
    Between(Source<'a, T>, Target<'a, T>),
}

/// Memory for received values before their combination.
///
/// The memory consists of 8-byte words, so that values of every type are aligned.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u64>);

impl Scratch {
    pub(crate) fn room<T: Element>(&mut self, len: usize) -> &mut [T] {
        let bytes = len * size_of::<T>();
        let words = bytes.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        <[T]>::mut_from_bytes(&mut self.0.as_mut_bytes()[..bytes])
            .expect("words are aligned for every element, and the length is a multiple of its size")
    }
}

/// Runs a schedule; `reduce` is the operator of the steps that combine.
pub(crate) fn run<T: Element>(
    mesh: &mut Mesh,
    schedule: &Schedule,
    mut buffers: Buffers<'_, T>,
    reduce: Option<ReduceOp>,
    scratch: &mut Scratch,
) -> Result<()> {
    let most = (mesh.longest / size_of::<T>() / schedule.widest as usize).max(1);
    let longest = buffers.outgoing().1.longest();
    let longest = longest.max(buffers.incoming().1.longest());
    let mut exchange = Exchange {
        mesh,
        buffers,
        reduce,
        scratch,
    };
    // Without any data, the messages of the first piece are still sent, to compare the calls.
    for piece in 0..longest.div_ceil(most).max(1) {
        for step in &schedule.steps {
            exchange.step(Pieces { piece, most }, step)?;
        }
    }
    exchange.mesh.flush(0)
}

struct Exchange<'a, T> {
    mesh: &'a mut Mesh,
    buffers: Buffers<'a, T>,
    reduce: Option<ReduceOp>,
    scratch: &'a mut Scratch,
}

impl<T: Element> Exchange<'_, T> {
    fn step(&mut self, pieces: Pieces, step: &Step) -> Result<()> {
        let (values, parts) = self.buffers.outgoing();
        if let Some(message) = step.send
            && !pieces.is_over(message, parts)
        {
            let ranges = pieces.ranges(message, parts);
            let payload: Vec<&[u8]> = ranges.map(|range| values[range].as_bytes()).collect();
            self.mesh.post(message.peer, &payload)?;
        }
        if let Some((message, arrival)) = step.receive {
            self.receive(pieces, message, arrival)?;
        }
        self.mesh.flush(self.mesh.longest)
    }

    fn receive(&mut self, pieces: Pieces, message: Message, arrival: Arrival) -> Result<()> {
        let (values, parts) = self.buffers.incoming();
        if pieces.is_over(message, parts) {
            return Ok(());
        }
        let reduce = self.reduce.filter(|_| arrival == Arrival::Combine);
        if reduce.is_none() && message.count == 1 {
            let own = &mut values[parts.piece(message.part, pieces.piece, pieces.most)];
            return self.mesh.receive(message.peer, own.as_mut_bytes());
        }
        let ranges = pieces.ranges(message, parts);
        let arrived: &mut [T] = self.scratch.room(ranges.map(|range| range.len()).sum());
        self.mesh.receive(message.peer, arrived.as_mut_bytes())?;
        let arrived_first = message.peer < self.mesh.member.rank;
        let mut rest = &*arrived;
        for range in pieces.ranges(message, parts) {
            let (part, after) = rest.split_at(range.len());
            rest = after;
            match reduce {
                Some(reduce) => {
                    element::combine(reduce, &mut values[range], part, arrived_first);
                }
                None => values[range].copy_from_slice(part),
            }
        }
        Ok(())
    }
}

/// One piece of every part.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    piece: usize,
    most: usize,
}

impl Pieces {
    /// `true` if earlier pieces contained the whole message.
    ///
    /// The first piece is always sent, because it carries the call.
    fn is_over(self, message: Message, parts: &Parts) -> bool {
        self.piece > 0 && self.ranges(message, parts).all(|range| range.is_empty())
    }

    fn ranges(self, message: Message, parts: &Parts) -> impl Iterator<Item = Range<usize>> {
        (message.part..message.part + message.count)
            .map(move |part| parts.piece(part, self.piece, self.most))
    }
}

impl<T> Buffers<'_, T> {
    fn outgoing(&self) -> Source<'_, T> {
        match self {
            Self::OneBuffer((values, parts)) => (values, parts),
            Self::Between(source, _) => *source,
        }
    }

    fn incoming(&mut self) -> Target<'_, T> {
        let (Self::OneBuffer((values, parts)) | Self::Between(_, (values, parts))) = self;
        (values, parts)
    }
}
