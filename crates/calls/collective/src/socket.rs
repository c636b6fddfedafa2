//! Sockets between ranks, which never block.
//!
//! Processes on one host use Unix sockets, and other processes use TCP. If a ring in shared memory
//! is available (`shared`), the Unix socket carries no data.
//!
//! A Unix socket has 1.5 times the throughput of TCP over loopback, because nothing is cut into
//! segments and acknowledged. Its name is abstract and random. There is therefore no file to
//! remove, and no other process can take the name first. A rank is local if its host and its
//! network namespace have the same identities as those of this process. TCP is used if the Unix
//! socket is not available.

use std::fs;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, ipproto, sockopt,
};

use crate::wire::{FRAME, Frame, Sent};

/// Send buffer of a Unix socket, in bytes.
///
/// It holds several messages, so that ranks switch less often. The kernel may grant less.
const LOCAL_BUFFER: usize = 1 << 20;

/// Endpoint at which a rank listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// TCP address, which all ranks can use.
    pub(crate) address: SocketAddr,
    /// Name of the Unix socket, for ranks on the same host; `None` to use TCP only.
    pub(crate) local: Option<String>,
}

/// Returns the identity of the host and network namespace of this process.
///
/// `None` if `/proc` does not have it.
pub(crate) fn host_name() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.to_str()?))
}

/// Returns the name of the Unix socket at which a rank listens.
///
/// Every user of the host can read the name, so it reveals nothing about the group.
pub(crate) fn local_name(number: uuid::Uuid) -> String {
    format!("rdzv-{}", number.simple())
}

pub(crate) fn messages_name(name: &str) -> String {
    format!("{name}-messages")
}

#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    local: bool,
}

impl Socket {
    /// Starts to connect. The first use of the socket returns the result.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket cannot be created. A connection that was refused immediately
    /// is returned with the refusal.
    pub(crate) fn dial(endpoint: &Endpoint) -> io::Result<(Self, Option<io::Error>)> {
        if let Some(local) = &endpoint.local
            && let Ok(socket) = Self::dial_local(local)
        {
            return Ok((socket, None));
        }
        let family = match endpoint.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = new(family, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let refused = match rustix::net::connect(&socket, &endpoint.address) {
            Ok(()) | Err(Errno::INPROGRESS) => None,
            Err(error) => Some(rdzv_store::connect_error(error.into())),
        };
        Ok((Self::new(socket, false), refused))
    }

    fn new(descriptor: impl Into<OwnedFd>, local: bool) -> Self {
        let descriptor = descriptor.into();
        Self { descriptor, local }
    }

    fn dial_local(name: &str) -> io::Result<Self> {
        let socket = new(AddressFamily::UNIX, None)?;
        rustix::net::connect(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        Ok(Self::new(socket, true))
    }

    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// Enlarges the send buffer of a Unix socket that carries data.
    pub(crate) fn widen(&self) {
        if self.local {
            // A failure only makes the socket slower.
            let _ = sockopt::set_socket_send_buffer_size(&self.descriptor, LOCAL_BUFFER);
        }
    }

    /// Reads available bytes. The end of the stream is an error.
    pub(crate) fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read = try_now(|| rustix::io::readv(&self.descriptor, into))?;
        if read == Some(0) {
            let closed = "connection closed";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, closed));
        }
        Ok(read.unwrap_or(0))
    }

    /// Sends the bytes that the socket accepts now; 0 if it accepts none.
    pub(crate) fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL;
        let sent = try_now(|| rustix::net::sendmsg(&self.descriptor, from, &mut nothing, flags));
        Ok(sent?.unwrap_or(0))
    }

    /// Sends a control frame.
    ///
    /// A peer gets at most two control frames, for which every socket has room. If the peer has
    /// ended, no process needs the frame.
    pub(crate) fn send_control(&self, frame: &Frame) {
        let _ = self.write(&[IoSlice::new(&frame.encode())]);
    }

    pub(crate) fn finish(&self) {
        // This fails only without an open connection.
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn new(family: AddressFamily, protocol: Option<rustix::net::Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        protocol,
    )?)
}

/// Repeats a call that a signal interrupted; `None` if the call would block.
fn try_now(mut call: impl FnMut() -> Result<usize, Errno>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Frame without a payload that is being received.
#[derive(Debug, Default)]
pub(crate) struct Control {
    bytes: [u8; FRAME],
    read: usize,
}

impl Control {
    /// Returns the frame once it is complete.
    pub(crate) fn read(&mut self, socket: &Socket) -> io::Result<Option<Sent>> {
        while self.read < FRAME {
            match socket.read(&mut [IoSliceMut::new(&mut self.bytes[self.read..])])? {
                0 => return Ok(None),
                read => self.read += read,
            }
        }
        Ok(Some(Frame::read(self.bytes)))
    }
}

/// Listener and endpoints of a rank, for its collectives or for its messages.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) listener: Listener,
    pub(crate) endpoints: Vec<Endpoint>,
    /// `true` if ranks of one host exchange data in shared memory.
    pub(crate) share: bool,
}

/// Sockets at which one rank can be reached.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    local: Option<UnixListener>,
}

impl Listener {
    /// Listens for TCP connections.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { tcp, local: None })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Also listens for ranks of this host.
    pub(crate) fn bind_local(&mut self, name: &str) -> io::Result<()> {
        let local = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
        local.set_nonblocking(true)?;
        self.local = Some(local);
        Ok(())
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.tcp.as_fd()).chain(self.local.iter().map(AsFd::as_fd))
    }

    /// Returns the next connection, and the name of its source.
    pub(crate) fn accept(&self) -> io::Result<(Socket, String)> {
        if let Some(local) = &self.local {
            match local.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    return Ok((Socket::new(stream, true), "this host".to_owned()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let (stream, from) = self.tcp.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok((Socket::new(stream, false), from.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_socket_is_short_enough() {
        let name = messages_name(&local_name(uuid::Uuid::from_bytes([7; 16])));
        assert!(name.len() < 100, "{name}");
    }

    #[test]
    fn this_host_has_a_name() {
        assert_eq!(host_name(), host_name());
        assert!(host_name().is_some_and(|name| name.contains("net:[")));
    }
}
