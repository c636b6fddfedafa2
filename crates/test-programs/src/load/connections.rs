//! Many simultaneous connections, each one opened as by a PyTorch client.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rdzv_store_proto::wire::request;
use socket2::{Domain, Socket, Type};

use crate::load::{Figures, server_time};

/// Maximum number of pending connections, below the kernel's `accept` queue.
const UNDER_WAY: usize = 1024;

pub(crate) fn run(address: SocketAddr, pid: u32, count: usize) -> io::Result<Figures> {
    let mut preamble = Vec::new();
    request::preamble(&mut preamble, 7);
    let mut open: Vec<TcpStream> = Vec::with_capacity(count);
    let (began, spent) = (Instant::now(), server_time::spent(pid)?);
    for index in 0..count {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.connect(&address.into())?;
        let mut stream = TcpStream::from(socket);
        stream.write_all(&preamble)?;
        open.push(stream);
        if index >= UNDER_WAY {
            open[index - UNDER_WAY].read_exact(&mut [0; 4])?;
        }
    }
    let last = count.saturating_sub(UNDER_WAY);
    for stream in &mut open[last..] {
        stream.read_exact(&mut [0; 4])?;
    }
    let figures = Figures {
        done: count as u64,
        wall: began.elapsed(),
        server: server_time::spent(pid)? - spent,
    };
    for stream in open {
        // A reset leaves no port blocked for a minute.
        Socket::from(stream).set_linger(Some(std::time::Duration::ZERO))?;
    }
    Ok(figures)
}
