//! Listener for connections of peers, and the check of their identity.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{CollectiveError, Result};
use crate::inbound::{Handshake, Inbound};
use crate::socket::Listener;
use crate::wire::{Frame, GroupId, GroupRefusal, Hello, VERSION};

/// Rank with its group, as in a hello.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) group: GroupId,
}

impl Member {
    /// Returns the other ranks in descending order, starting below this rank.
    ///
    /// After rank 0, the order continues with the highest rank.
    pub(crate) fn others(self) -> impl Iterator<Item = u32> {
        (0..self.rank)
            .rev()
            .chain((self.rank + 1..self.world_size).rev())
    }

    /// Refuses a rank that the group does not have.
    pub(crate) fn check_rank(&self, what: &str, rank: u32) -> Result<()> {
        if rank < self.world_size {
            return Ok(());
        }
        Err(CollectiveError::Argument(format!(
            "{what} rank {rank}: the group has ranks 0 to {}",
            self.world_size - 1
        )))
    }
}

/// Listener, and the connections that have not identified themselves.
#[derive(Debug)]
pub(crate) struct Acceptor {
    member: Member,
    /// Listener; `None` after [`close`](Self::close).
    ///
    /// The system then refuses late peers immediately.
    listener: Option<Listener>,
    handshakes: Vec<Handshake>,
    /// `true` if this rank accepts offered memory.
    shared: bool,
}

/// Maximum number of unauthenticated connections, beside one for each rank.
///
/// If there are more, the oldest ones are closed.
const UNAUTHENTICATED: usize = 64;

impl Acceptor {
    pub(crate) fn new(member: Member, listener: Listener, shared: bool) -> Self {
        Self {
            member,
            listener: Some(listener),
            handshakes: Vec::new(),
            shared,
        }
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = self.listener.iter().flat_map(Listener::descriptors);
        listener.chain(self.handshakes.iter().map(|one| one.socket.as_fd()))
    }

    /// Accepts connections and reads their first frames.
    ///
    /// Returns the accepted peers. `present` is `true` for a peer that was already connected. A
    /// connection with an unexpected hello is refused with the reason.
    pub(crate) fn accept_peers(
        &mut self,
        present: impl Fn(u32) -> bool,
    ) -> Result<BTreeMap<u32, Inbound>> {
        self.accept()?;
        let mut accepted = BTreeMap::new();
        for mut arriving in std::mem::take(&mut self.handshakes) {
            let from = arriving.from.clone();
            let hello = match arriving.read_hello() {
                Ok(None) => {
                    self.handshakes.push(arriving);
                    continue;
                }
                Ok(Some(hello)) => hello,
                Err(error) => {
                    tracing::debug!(%from, %error, "a connection closed before its hello");
                    continue;
                }
            };
            let is_present = |rank| present(rank) || accepted.contains_key(&rank);
            match admit(&self.member, hello, is_present) {
                Ok(peer) => {
                    accepted.insert(peer, arriving.accept(self.shared));
                }
                Err(refusal) => {
                    let claimed = hello.map(|hello| hello.from);
                    let rank = self.member.rank;
                    tracing::warn!(%from, rank, ?claimed, ?refusal, "refused a connection");
                    arriving.refuse(&Frame::Refuse(refusal));
                }
            }
        }
        Ok(accepted)
    }

    /// Sends this frame to all waiting connections, and closes the listener.
    pub(crate) fn close(&mut self, frame: &Frame) {
        if let Err(error) = self.accept() {
            tracing::debug!(%error, "cannot accept connections to refuse them");
        }
        self.listener = None;
        for arriving in self.handshakes.drain(..) {
            arriving.refuse(frame);
        }
    }

    fn accept(&mut self) -> Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        loop {
            match listener.accept() {
                Ok(accepted) => self.handshakes.push(Handshake::new(accepted)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        let what = "accept the connection of another rank";
                        return Err(CollectiveError::system(what, error));
                    }
                },
            }
        }
        let most = UNAUTHENTICATED.saturating_add(self.member.world_size as usize);
        let too_many = self.handshakes.len().saturating_sub(most);
        self.handshakes.drain(..too_many);
        Ok(())
    }
}

/// Returns the rank behind a hello, or the reason to refuse it.
///
/// `hello` is `None` if the bytes are not a hello.
fn admit(
    member: &Member,
    hello: Option<Hello>,
    is_present: impl Fn(u32) -> bool,
) -> Result<u32, GroupRefusal> {
    let hello = hello.ok_or(GroupRefusal::NotAHello)?;
    let (rank, world_size) = (member.rank, member.world_size);
    if hello.version != VERSION {
        Err(GroupRefusal::Version { expected: VERSION })
    } else if hello.group != member.group {
        Err(GroupRefusal::Group)
    } else if hello.world_size != world_size {
        Err(GroupRefusal::WorldSize {
            expected: world_size,
        })
    } else if hello.to != rank {
        Err(GroupRefusal::Rank { expected: rank })
    } else if hello.from >= world_size || hello.from == rank {
        Err(GroupRefusal::NotAHello)
    } else if is_present(hello.from) {
        Err(GroupRefusal::Duplicate)
    } else {
        Ok(hello.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: Member = Member {
        rank: 2,
        world_size: 4,
        group: [7; 16],
    };
    const RIGHT: Hello = Hello {
        version: VERSION,
        from: 3,
        to: 2,
        world_size: 4,
        group: [7; 16],
        offers_memory: false,
    };

    fn answer(change: impl Fn(&mut Hello)) -> Result<u32, GroupRefusal> {
        let mut hello = RIGHT;
        change(&mut hello);
        admit(&MEMBER, Some(hello), |rank| rank == 1)
    }

    #[test]
    fn only_a_rank_of_the_group_that_meant_this_one_is_admitted() {
        assert_eq!(answer(|_| {}), Ok(3));
        let expected = VERSION;
        let wrong = answer(|hello| hello.version += 1);
        assert_eq!(wrong, Err(GroupRefusal::Version { expected }));
        assert_eq!(
            answer(|hello| hello.group[15] = 0),
            Err(GroupRefusal::Group)
        );
        let wrong = answer(|hello| hello.world_size = 5);
        assert_eq!(wrong, Err(GroupRefusal::WorldSize { expected: 4 }));
        let wrong = answer(|hello| hello.to = 1);
        assert_eq!(wrong, Err(GroupRefusal::Rank { expected: 2 }));
        assert_eq!(answer(|hello| hello.from = 1), Err(GroupRefusal::Duplicate));
        for impossible in [2, 4, u32::MAX] {
            let wrong = answer(|hello| hello.from = impossible);
            assert_eq!(wrong, Err(GroupRefusal::NotAHello));
        }
        assert_eq!(
            admit(&MEMBER, None, |_| false),
            Err(GroupRefusal::NotAHello)
        );
    }
}
