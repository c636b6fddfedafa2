//! The connection of an agent: it ends in order only by the agent's word, or with the process.
//!
//! A coordinator may take the end of the stream for the end of the process, and of the workers,
//! which the kernel kills then (`rdzv_rendezvous_proto::coordinator` says under which conditions).
//! So a process that lives never ends a stream without a word: it says [`Operation::Detach`]
//! before, or resets the connection, whatever the reason is that it has none any more. The
//! descriptor is inherited by no other process, so that the kernel closes the connection with this
//! one.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::Operation;
use rdzv_trust::Channel;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::dynamic::node::numeric;
use crate::dynamic::probe::write_all;

/// A connection to the coordinator.
pub(super) struct Link {
    channel: Channel,
    /// The socket of the channel, for waits.
    socket: TcpStream,
    /// Its own end, if what becomes of it tells of the process.
    from: Option<SocketAddr>,
    /// It is said that this end is about to be closed though the process lives.
    is_said: bool,
}

impl Link {
    /// Registers a connection with the runtime of the caller.
    ///
    /// `is_of_process`: its end may be that of the process.
    pub(super) fn new(channel: Channel, is_of_process: bool) -> io::Result<Self> {
        channel.stream().set_nonblocking(true)?;
        Ok(Self {
            socket: TcpStream::from_std(channel.stream().try_clone()?)?,
            from: own_end(&channel, is_of_process),
            channel,
            is_said: false,
        })
    }

    /// The address of its own end, if its end may be that of the process.
    pub(super) fn from(&self) -> Option<String> {
        self.from.map(numeric)
    }

    /// Has the kernel end the connection to a machine that is silent.
    ///
    /// A process that is stopped is not silent: its kernel answers for it.
    pub(super) fn watch(&self, silence: Duration) {
        let socket = SockRef::from(self.channel.stream());
        if let Err(error) = socket.set_tcp_user_timeout(Some(silence)) {
            tracing::debug!("the connection to the coordinator cannot be watched: {error}");
        }
    }

    /// Waits for bytes. Returns their number, 0 at the end of the stream.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = || self.channel.read(into);
        self.socket.async_io(Interest::READABLE, read).await
    }

    /// Writes an operation. Each piece may wait so long for room.
    pub(super) async fn send(&mut self, operation: &[u8], within: Duration) -> io::Result<()> {
        let write = |bytes: &[u8]| self.channel.write(bytes);
        write_all(&self.socket, operation, within, write).await?;
        self.is_said |= operation.first() == Some(&Operation::Detach.opcode());
        Ok(())
    }

    /// Says that this process lives, so that the connection is closed in order: whatever was sent arrives.
    pub(super) async fn detach(&mut self, within: Duration) {
        if self.from.is_some() {
            let mut detach = Vec::new();
            Operation::Detach.write(&mut detach);
            // If it cannot be said, the connection is reset.
            let _ = self.send(&detach, within).await;
        }
    }
}

/// The own end of a connection that may end with the process.
pub(super) fn own_end(channel: &Channel, is_of_process: bool) -> Option<SocketAddr> {
    let own = channel.stream().local_addr().ok();
    own.filter(|_| is_of_process)
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.is_said && self.from.is_some() {
            // Without this, the other end would see an end like that of the process.
            let reset = SockRef::from(self.channel.stream()).set_linger(Some(Duration::ZERO));
            if let Err(error) = reset {
                tracing::debug!("a connection cannot be reset: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection of an agent, and the other end. To be called in a runtime.
    fn connected(is_of_process: bool) -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, from) = listener.accept().unwrap();
        let link = Link::new(Channel::Plain(stream), is_of_process).unwrap();
        assert_eq!(link.from(), is_of_process.then(|| numeric(from)));
        (link, other)
    }

    fn read_to_end(mut stream: TcpStream) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).map(|_| bytes)
    }

    #[tokio::test]
    async fn it_ends_in_order_behind_the_word_of_the_agent() {
        let (mut link, other) = connected(true);
        link.send(b"last", Duration::from_secs(1)).await.unwrap();
        link.detach(Duration::from_secs(1)).await;
        drop(link);
        let mut expected = b"last".to_vec();
        Operation::Detach.write(&mut expected);
        assert_eq!(read_to_end(other).unwrap(), expected);
    }

    #[tokio::test]
    async fn without_its_word_it_is_reset_also_by_a_panic() {
        let (link, other) = connected(true);
        drop(link);
        let error = read_to_end(other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let (link, other) = connected(true);
        let panics = tokio::spawn(async move {
            let _link = link;
            std::panic::resume_unwind(Box::new(()));
        });
        panics.await.unwrap_err();
        read_to_end(other).unwrap_err();
    }

    #[tokio::test]
    async fn one_that_tells_nothing_of_the_process_ends_as_any_other() {
        let (mut link, other) = connected(false);
        link.detach(Duration::from_secs(1)).await;
        drop(link);
        assert_eq!(read_to_end(other).unwrap(), b"");
    }
}
