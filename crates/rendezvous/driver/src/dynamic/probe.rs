//! Connection to a store server, and detection of a coordinator there.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER, PROBE_VOTER};
use rdzv_store_proto::wire::request;
use rdzv_trust::channel::OpenError;
use rdzv_trust::handshake::is_refusal;
use rdzv_trust::{Channel, Credentials};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::time::timeout;

/// Kind of server that answered.
#[derive(Debug)]
pub(super) enum Found {
    /// A coordinator, with a connection for the native rendezvous.
    Coordinator(Channel),
    /// A voter that is not the coordinator.
    ///
    /// The connection is usable between voters, and to ask for the coordinator.
    Voter(Channel),
    /// A store without a coordinator.
    ///
    /// PyTorch's store echoes the probe. An older one, which does not know it, closes the
    /// connection.
    Store,
}

/// Reason why the probe found no store.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProbeError {
    /// One side refuses the token or certificate of the other. A retry cannot help.
    #[error("{0}")]
    Refused(String),
    /// No process listens at the address.
    #[error("{0}")]
    Vacant(String),
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for ProbeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Vacant(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<OpenError> for ProbeError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Refused(why) => Self::Refused(why),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Connects, authenticates and sends the probe.
pub(super) fn probe(
    address: SocketAddr,
    within: Duration,
    credentials: &Credentials,
) -> Result<Found, ProbeError> {
    let stream = TcpStream::connect_timeout(&address, within)?;
    prepare(&stream, within)?;
    let (mut channel, mut preamble) = Channel::open(stream, credentials, within)?;
    request::preamble(&mut preamble, PROBE);
    let exchanged = channel
        .write_all(&preamble)
        .and_then(|()| read_answer(&mut channel, within));
    match exchanged {
        Ok(answer) => match u32::from_le_bytes(answer) {
            PROBE_ANSWER => {
                channel.stream().set_read_timeout(None)?;
                Ok(Found::Coordinator(channel))
            }
            PROBE_VOTER => Ok(Found::Voter(channel)),
            PROBE => Ok(Found::Store),
            _ if is_refusal(&answer) => {
                let refusal = channel.rest_of_refusal(&answer, within);
                Err(ProbeError::Refused(refusal))
            }
            _ => Err(ProbeError::Other(format!(
                "a process that is not a store answered {:?}",
                String::from_utf8_lossy(&answer)
            ))),
        },
        Err(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(Found::Store),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let what = "the peer accepted the connection but sent nothing";
                Err(ProbeError::Other(what.to_owned()))
            }
            // The peer checks this side's certificate after its own part of the handshake.
            io::ErrorKind::InvalidData => Err(ProbeError::Refused(format!("TLS failed: {error}"))),
            _ => Err(error.into()),
        },
    }
}

/// Reads the whole answer within the time limit, even if its bytes come slowly.
fn read_answer(channel: &mut Channel, within: Duration) -> io::Result<[u8; 4]> {
    let mut answer = [0; 4];
    read_exact(channel, &mut answer, within)?;
    Ok(answer)
}

/// Fills a buffer within the time limit, from a blocking stream.
pub(super) fn read_exact(
    channel: &mut Channel,
    buffer: &mut [u8],
    within: Duration,
) -> io::Result<()> {
    let end = Instant::now().checked_add(within);
    let mut length = 0;
    while length < buffer.len() {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        channel.stream().set_read_timeout(left)?;
        match channel.read(&mut buffer[length..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all bytes with `write` to a nonblocking stream.
///
/// Each piece waits for buffer space for up to `within`.
pub(super) async fn write_all(
    socket: &tokio::net::TcpStream,
    mut bytes: &[u8],
    within: Duration,
    mut write: impl FnMut(&[u8]) -> io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = socket.async_io(Interest::WRITABLE, || write(bytes));
        match timeout(within, written).await {
            Ok(Ok(count)) => bytes = &bytes[count..],
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let what = "the peer no longer accepts data";
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
        }
    }
    Ok(())
}

fn prepare(stream: &TcpStream, within: Duration) -> io::Result<()> {
    let within = within.max(Duration::from_millis(1));
    stream.set_write_timeout(Some(within))?;
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)
}
