//! The sockets between ranks: Unix sockets between processes of one host, TCP otherwise. They never
//! block. Where a ring in shared memory can be had (`ring`), a Unix socket carries no data.
//!
//! A Unix socket carries half as much again as TCP over loopback, since nothing is cut into segments
//! and acknowledged. Its name is an abstract one, made of what only the ranks of the group know, so
//! there is no file to clear away. Whether a rank is near is told by what its host and the network
//! namespace of its process call themselves; where the Unix socket cannot be had, TCP is used.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, ipproto, sockopt,
};

use crate::wire::GroupId;

/// How much may be on its way in a Unix socket: some messages, so that ranks take fewer turns. The
/// kernel may grant less.
const NEAR_BUFFER: usize = 1 << 20;

/// Where a rank listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// For everybody.
    pub(crate) address: SocketAddr,
    /// For ranks of the same host: the name of a Unix socket.
    pub(crate) near: Option<String>,
}

/// What the host and the network namespace of this process call themselves; nothing if they do not.
pub(crate) fn host_name() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.to_str()?))
}

/// The name of the Unix socket that a rank of a group listens at.
pub(crate) fn near_name(group: &GroupId, rank: u32) -> String {
    format!("rdzv-{}-{rank}", uuid::Uuid::from_bytes(*group).simple())
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    near: bool,
}

impl Socket {
    /// Begins to connect. What comes of it shows when the socket is used.
    ///
    /// # Errors
    ///
    /// If there can be no socket; or with what the other side answered at once.
    pub(crate) fn dial(place: &Place) -> io::Result<Result<Self, io::Error>> {
        if let Some(near) = &place.near
            && let Ok(socket) = Self::dial_near(near)
        {
            return Ok(Ok(socket));
        }
        let family = match place.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = new(family, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(match rustix::net::connect(&socket, &place.address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Self {
                descriptor: socket,
                near: false,
            }),
            Err(error) => Err(error.into()),
        })
    }

    fn dial_near(name: &str) -> io::Result<Self> {
        let socket = new(AddressFamily::UNIX, None)?;
        rustix::net::connect(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        Ok(Self {
            descriptor: socket,
            near: true,
        })
    }

    /// Whether it is a Unix socket.
    pub(crate) fn is_near(&self) -> bool {
        self.near
    }

    /// Makes room for data, if the socket is to carry them between ranks of one host.
    pub(crate) fn widen(&self) {
        if self.near {
            // It is slower without.
            let _ = sockopt::set_socket_send_buffer_size(&self.descriptor, NEAR_BUFFER);
        }
    }

    /// Reads what is there.
    pub(crate) fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(rustix::io::readv(&self.descriptor, into)?)
    }

    /// Sends what the socket takes now.
    pub(crate) fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(&self.descriptor, from, &mut nothing, SendFlags::NOSIGNAL)?;
        Ok(sent)
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

/// Where one rank can be reached.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    near: Option<UnixListener>,
}

impl Listener {
    /// Listens for TCP connections.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { tcp, near: None })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Also listens for ranks of this host.
    pub(crate) fn bind_near(&mut self, name: &str) -> io::Result<()> {
        let near = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
        near.set_nonblocking(true)?;
        self.near = Some(near);
        Ok(())
    }

    /// What to watch for input.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.tcp.as_fd()).chain(self.near.iter().map(AsFd::as_fd))
    }

    /// The next connection, and where it comes from.
    pub(crate) fn accept(&self) -> io::Result<(Socket, String)> {
        if let Some(near) = &self.near {
            match near.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    let socket = Socket {
                        descriptor: stream.into(),
                        near: true,
                    };
                    return Ok((socket, "this host".to_owned()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let (stream, from) = self.tcp.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let socket = Socket {
            descriptor: stream.into(),
            near: false,
        };
        Ok((socket, from.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_socket_is_short_enough_and_tells_ranks_apart() {
        let (low, high) = (near_name(&[7; 16], 0), near_name(&[7; 16], u32::MAX));
        assert_ne!(low, high);
        assert!(high.len() < 100, "{high}");
    }

    #[test]
    fn this_host_has_a_name() {
        assert_eq!(host_name(), host_name());
        assert!(host_name().is_some_and(|name| name.contains("net:[")));
    }
}
