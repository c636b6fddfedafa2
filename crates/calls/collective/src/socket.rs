//! The sockets between ranks: Unix sockets between processes of one host, TCP otherwise. They never
//! block. Where a ring in shared memory can be had (`ring`), a Unix socket carries no data.
//!
//! A Unix socket carries half as much again as TCP over loopback, since nothing is cut into
//! segments and acknowledged. Its name is an abstract one, and random, so there is no file to clear
//! away, and nobody can take it first. Whether a rank is local is told by what its host and the
//! network namespace of its process call themselves; where the Unix socket cannot be had, TCP is
//! used.

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

/// Send buffer of a Unix socket, in bytes: some messages, so that ranks switch less often. The
/// kernel may grant less.
const LOCAL_BUFFER: usize = 1 << 20;

/// Where a rank listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// For everybody.
    pub(crate) address: SocketAddr,
    /// For ranks of the same host: the name of a Unix socket.
    pub(crate) local: Option<String>,
}

/// Identity of the host and of the network namespace of this process; `None` if `/proc` does not
/// have it.
pub(crate) fn host_name() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.to_str()?))
}

/// The name of the Unix socket that a rank listens at.
///
/// Every user of the host can read it, so it tells nothing of the group.
pub(crate) fn local_name(number: uuid::Uuid) -> String {
    format!("rdzv-{}", number.simple())
}

/// The same for the messages of the rank.
pub(crate) fn messages_name(name: &str) -> String {
    format!("{name}-messages")
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    local: bool,
}

impl Socket {
    /// Begins to connect. What comes of it shows when the socket is used.
    ///
    /// # Errors
    ///
    /// If there can be no socket. A connection that was refused immediately is returned with the
    /// refusal.
    pub(crate) fn dial(place: &Endpoint) -> io::Result<(Self, Option<io::Error>)> {
        if let Some(local) = &place.local
            && let Ok(socket) = Self::dial_local(local)
        {
            return Ok((socket, None));
        }
        let family = match place.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = new(family, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let refused = match rustix::net::connect(&socket, &place.address) {
            Ok(()) | Err(Errno::INPROGRESS) => None,
            Err(error) => Some(error.into()),
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

    /// `true` if it is a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// Makes room for data, if the socket is to carry them between ranks of one host.
    pub(crate) fn widen(&self) {
        if self.local {
            // It is slower without.
            let _ = sockopt::set_socket_send_buffer_size(&self.descriptor, LOCAL_BUFFER);
        }
    }

    /// Reads what has arrived. The end of the stream is an error.
    pub(crate) fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read = try_now(|| rustix::io::readv(&self.descriptor, into))?;
        if read == Some(0) {
            let closed = "connection closed";
            return Err(io::Error::new(ErrorKind::UnexpectedEof, closed));
        }
        Ok(read.unwrap_or(0))
    }

    /// Sends what the socket takes now; 0 bytes if it takes none.
    pub(crate) fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL;
        let sent = try_now(|| rustix::net::sendmsg(&self.descriptor, from, &mut nothing, flags));
        Ok(sent?.unwrap_or(0))
    }

    /// Sends a control frame.
    ///
    /// A peer gets two of them at most, which any socket has room for; if it is gone there is
    /// nobody to tell.
    pub(crate) fn send_control(&self, frame: &Frame) {
        let _ = self.write(&[IoSlice::new(&frame.encode())]);
    }

    /// Nothing more will be sent.
    pub(crate) fn finish(&self) {
        // Fails only if the other side is gone.
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

/// Calls again if a signal interrupts; `None` if the call would have to wait.
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

/// A frame without a payload that is being received.
#[derive(Debug, Default)]
pub(crate) struct Control {
    bytes: [u8; FRAME],
    read: usize,
}

impl Control {
    /// The frame once all of it is there.
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

/// Where a rank listens and connects, for its collectives or for its messages.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) listener: Listener,
    /// Of all ranks.
    pub(crate) endpoints: Vec<Endpoint>,
    /// `true` if ranks of one host exchange data in shared memory.
    pub(crate) share: bool,
}

/// Where one rank can be reached.
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

    /// The descriptors to poll for input.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.tcp.as_fd()).chain(self.local.iter().map(AsFd::as_fd))
    }

    /// The next connection, and where it comes from.
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
