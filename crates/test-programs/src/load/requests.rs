//! Requests on several connections, with a fixed number in flight on each.
//!
//! Each connection alternates between a request for a value of 32 bytes (`GET`) and an increment of
//! its counter (`ADD`). The keys have the length of those of a process group's start. As soon as
//! replies arrive, the same number of new requests is sent in one write.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdzv_store_proto::wire::request;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::load::{Figures, server_time};

const VALUE: [u8; 32] = [b'v'; 32];
/// Sizes of the replies to `GET` and `ADD`, which alternate.
const REPLIES: [usize; 2] = [8 + VALUE.len(), 8];

struct Connection {
    stream: TcpStream,
    /// The two requests, repeated for the largest single write.
    requests: Vec<u8>,
    /// Offset in `requests` at which each request starts.
    starts: Vec<usize>,
    /// Index of the request that is sent next.
    next: usize,
    /// Index of the reply that comes next, and the bytes of it that have arrived.
    reply: usize,
    reply_bytes: usize,
}

pub(crate) fn run(
    address: SocketAddr,
    pid: u32,
    connections: usize,
    in_flight: usize,
    time: Duration,
) -> io::Result<Figures> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut table = Vec::new();
    for index in 0..connections {
        let connection = Connection::open(address, index, in_flight)?;
        let token = EventData::new_u64(index as u64);
        // Every read empties the socket, so only new arrivals need an event.
        let interest = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &connection.stream, token, interest)?;
        table.push(connection);
    }
    for connection in &mut table {
        connection.send(in_flight)?;
    }
    // A warm-up that takes a tenth of the time is not counted.
    drive(&epoll, &mut table, time / 10)?;
    let (began, spent) = (Instant::now(), server_time::spent(pid)?);
    let done = drive(&epoll, &mut table, time)?;
    Ok(Figures {
        done,
        wall: began.elapsed(),
        server: server_time::spent(pid)? - spent,
    })
}

fn drive(
    epoll: &impl std::os::fd::AsFd,
    table: &mut [Connection],
    time: Duration,
) -> io::Result<u64> {
    let (began, mut done) = (Instant::now(), 0);
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let mut scratch = [0; 16 << 10];
    let mut to_send = Vec::new();
    let tenth = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    while began.elapsed() < time {
        events.clear();
        epoll::wait(epoll, spare_capacity(&mut events), Some(&tenth))?;
        // Reading from all connections before writing to all is cheapest for this side, so the
        // result shows the speed of the server.
        for event in &events {
            let index = event.data.u64() as usize;
            let answered = table[index].receive(&mut scratch)?;
            if answered > 0 {
                to_send.push((index, answered));
                done += answered as u64;
            }
        }
        for (index, count) in to_send.drain(..) {
            table[index].send(count)?;
        }
    }
    Ok(done)
}

impl Connection {
    fn open(address: SocketAddr, index: usize, in_flight: usize) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let key = format!("/default_pg/0//cpu//0/{index}");
        let counter = format!("/default_pg/0//cpu//0/n{index}");
        let mut start = Vec::new();
        request::preamble(&mut start, 7);
        request::set(&mut start, key.as_bytes(), &VALUE);
        stream.write_all(&start)?;
        stream.read_exact(&mut [0; 4])?;
        stream.set_nonblocking(true)?;
        let (mut requests, mut starts) = (Vec::new(), vec![0]);
        for number in 0..=in_flight {
            match number % 2 {
                0 => request::get(&mut requests, key.as_bytes()),
                _ => request::add(&mut requests, counter.as_bytes(), 1),
            }
            starts.push(requests.len());
        }
        Ok(Self {
            stream,
            requests,
            starts,
            next: 0,
            reply: 0,
            reply_bytes: 0,
        })
    }

    fn send(&mut self, count: usize) -> io::Result<()> {
        let bytes = &self.requests[self.starts[self.next]..self.starts[self.next + count]];
        // The requests in flight always fit into the socket's buffer.
        self.stream.write_all(bytes)?;
        self.next = (self.next + count) % 2;
        Ok(())
    }

    fn receive(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        let received = match self.stream.read(scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        self.reply_bytes += received;
        let mut answered = 0;
        while self.reply_bytes >= REPLIES[self.reply] {
            self.reply_bytes -= REPLIES[self.reply];
            self.reply = 1 - self.reply;
            answered += 1;
        }
        Ok(answered)
    }
}
