//! Connection of an agent.
//!
//! If the end of the connection may mean the end of the process, the connection closes cleanly only
//! after `Detach`, or with the process.
//!
//! A coordinator may treat the end of the stream as the end of the process and its workers, which
//! the kernel then kills. `rdzv_rendezvous_proto::coordinator` lists the conditions. A live process
//! therefore never just closes such a stream. It first sends [`Operation::Detach`], or resets the
//! connection. No other process inherits the descriptor, so the kernel closes the connection when
//! this process ends.

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

pub(super) struct Link {
    channel: Channel,
    /// Socket of the channel, for waits.
    socket: TcpStream,
    /// Local address, if the end of the connection may mean the end of the process.
    from: Option<SocketAddr>,
    /// `true` once `Detach` is sent.
    is_said: bool,
}

impl Link {
    /// Registers a connection with the runtime of the caller.
    ///
    /// With `is_of_process`, the end of the connection may mean the end of the process.
    pub(super) fn new(channel: Channel, is_of_process: bool) -> io::Result<Self> {
        channel.stream().set_nonblocking(true)?;
        Ok(Self {
            socket: TcpStream::from_std(channel.stream().try_clone()?)?,
            from: own_end(&channel, is_of_process),
            channel,
            is_said: false,
        })
    }

    /// Returns the local address, if the link's end may be that of the process.
    pub(super) fn from(&self) -> Option<String> {
        self.from.map(numeric)
    }

    /// Lets the kernel end the connection if the other machine is silent.
    ///
    /// A stopped process is not silent, because its kernel sends acknowledgements for it.
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

    /// Writes an operation. Each piece waits for buffer space for up to `within`.
    pub(super) async fn send(&mut self, operation: &[u8], within: Duration) -> io::Result<()> {
        let write = |bytes: &[u8]| self.channel.write(bytes);
        write_all(&self.socket, operation, within, write).await?;
        self.is_said |= operation.first() == Some(&Operation::Detach.opcode());
        Ok(())
    }

    /// Sends `Detach`, so that the connection closes cleanly.
    pub(super) async fn detach(&mut self, within: Duration) {
        if self.from.is_some() {
            let mut detach = Vec::new();
            Operation::Detach.write(&mut detach);
            // If the send fails, the connection is reset.
            let _ = self.send(&detach, within).await;
        }
    }
}

/// Returns the local address of a connection that may end with the process.
pub(super) fn own_end(channel: &Channel, is_of_process: bool) -> Option<SocketAddr> {
    let own = channel.stream().local_addr().ok();
    own.filter(|_| is_of_process)
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.is_said && self.from.is_some() {
            // Otherwise the peer would see the same as at the end of the process.
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

    /// Creates a connection of an agent, and its peer.
    ///
    /// The caller must be in a runtime.
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
