//! Two processes and two rings between them.
//!
//! ```sh
//! cargo run --release -p rdzv-shm --example rings          # prints what they can do
//! ```
//!
//! The program starts itself again as the peer, `rings echo` or `rings sink`, with the socket as its
//! standard input: the peer accepts the rings and sends everything back, or only reads it, until the socket
//! ends.

use std::env;
use std::error::Error;
use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rdzv_shm::spin::SpinBudget;
use rdzv_shm::{Link, ShmError, pair, pass};
use rustix::event::{PollFd, PollFlags, poll};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("echo") => echo(spin()?),
        Some("sink") => sink(),
        Some(other) => Err(format!("there is no part called {other}").into()),
        None => measure(),
    }
}

/// The second word: how many microseconds to wait awake.
fn spin() -> Result<SpinBudget> {
    let micros = env::args().nth(2).map(|word| word.parse()).transpose()?;
    Ok(SpinBudget::new(Duration::from_micros(micros.unwrap_or(20))))
}

/// The rings that the process at the other end of standard input offers.
fn accepted() -> Result<(UnixStream, Link)> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut message = [0; pair::MESSAGE];
    let (length, descriptors) = pass::receive(&socket, &mut message)?;
    assert_eq!(length, pair::MESSAGE, "an offer comes in one piece");
    let link = pair::accept(&message, descriptors)?;
    let mut socket = UnixStream::from(socket);
    socket.write_all(b"y")?;
    Ok((socket, link))
}

fn echo(spin: SpinBudget) -> Result<()> {
    let (socket, mut link) = accepted()?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = link.consumer.read(&mut buffer)?;
        if length == 0 {
            let wait = spin.begin();
            let came = wait.spin(|| matches!(link.consumer.available(), Ok(1..)));
            if !came && link.consumer.prepare_to_sleep() {
                let more = sleep(link.consumer.doorbell(), &socket)?;
                link.consumer.awake();
                if !more {
                    return Ok(());
                }
            }
            spin.learn(wait.elapsed());
            continue;
        }
        if !write_all(&mut link, &socket, &buffer[..length])? {
            return Ok(());
        }
    }
}

fn sink() -> Result<()> {
    let (socket, mut link) = accepted()?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        if link.consumer.read(&mut buffer)? == 0 && link.consumer.prepare_to_sleep() {
            let more = sleep(link.consumer.doorbell(), &socket)?;
            link.consumer.awake();
            if !more {
                return Ok(());
            }
        }
    }
}

/// False: the peer is gone.
fn write_all(link: &mut Link, socket: &UnixStream, mut bytes: &[u8]) -> Result<bool> {
    while !bytes.is_empty() {
        let written = link.producer.write(&[IoSlice::new(bytes)])?;
        bytes = &bytes[written..];
        if written == 0 && link.producer.prepare_to_sleep() {
            let more = sleep(link.producer.doorbell(), socket)?;
            link.producer.awake();
            if !more {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Until the doorbell rings (true) or the socket ends (false).
fn sleep(doorbell: impl AsFd, socket: &UnixStream) -> Result<bool> {
    let mut wait = [
        PollFd::new(&doorbell, PollFlags::IN),
        PollFd::new(socket, PollFlags::IN),
    ];
    match poll(&mut wait, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(wait[1].revents().is_empty())
}

/// The other process, and our ends.
struct Peer {
    process: Child,
    socket: UnixStream,
    link: Link,
}

fn start(words: &[&str], capacity: usize) -> Result<Peer> {
    let (mut socket, theirs) = UnixStream::pair()?;
    let process = Command::new(env::current_exe()?)
        .args(words)
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let offer = pair::offer(capacity)?;
    pass::send(
        &socket,
        &[IoSlice::new(&offer.message())],
        &offer.descriptors(),
    )?;
    socket.read_exact(&mut [0])?;
    let link = offer.taken();
    Ok(Peer {
        process,
        socket,
        link,
    })
}

impl Peer {
    fn stop(mut self) -> Result<()> {
        drop(self.socket);
        let status = self.process.wait()?;
        assert!(status.success(), "the peer ended with {status}");
        Ok(())
    }
}

fn measure() -> Result<()> {
    for micros in ["0", "20"] {
        ping_pong(micros)?;
    }
    for (label, capacity) in [
        ("64 KiB", 64 << 10),
        ("256 KiB", pair::CAPACITY),
        ("2 MiB", 2 << 20),
    ] {
        stream(label, capacity)?;
    }
    Ok(())
}

fn ping_pong(micros: &str) -> Result<()> {
    const ROUNDS: usize = 20_000;
    let mut peer = start(&["echo", micros], pair::CAPACITY)?;
    let spin = SpinBudget::new(Duration::from_micros(micros.parse()?));
    let mut took = Vec::with_capacity(ROUNDS);
    let mut bytes = [7; 64];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        write_all(&mut peer.link, &peer.socket, &bytes)?;
        receive(&mut peer, &mut bytes, &spin)?;
        took.push(begun.elapsed());
    }
    peer.stop()?;
    took.sort_unstable();
    let at = |share: usize| took[ROUNDS * share / 1000].as_nanos() as f64 / 1000.0;
    println!(
        "64 bytes there and back, {micros} us awake: p50 {:.2} us, p90 {:.2} us, p99 {:.2} us",
        at(500),
        at(900),
        at(990)
    );
    Ok(())
}

fn receive(
    peer: &mut Peer,
    into: &mut [u8],
    spin: &SpinBudget,
) -> std::result::Result<(), ShmError> {
    let mut done = 0;
    while done < into.len() {
        let link = &mut peer.link;
        done += link.consumer.read(&mut into[done..])?;
        if done == into.len() {
            break;
        }
        let wait = spin.begin();
        let came = wait.spin(|| matches!(link.consumer.available(), Ok(1..)));
        if !came && link.consumer.prepare_to_sleep() {
            let there = sleep(link.consumer.doorbell(), &peer.socket);
            assert!(there.is_ok_and(|there| there), "the peer is gone");
            link.consumer.awake();
        }
        spin.learn(wait.elapsed());
    }
    Ok(())
}

fn stream(label: &str, capacity: usize) -> Result<()> {
    const PIECE: usize = 64 << 20;
    const TIMES: usize = 16;
    let mut peer = start(&["sink"], capacity)?;
    let bytes = vec![3; PIECE];
    write_all(&mut peer.link, &peer.socket, &bytes)?;
    let begun = Instant::now();
    for _ in 0..TIMES {
        write_all(&mut peer.link, &peer.socket, &bytes)?;
    }
    while peer.link.producer.space()? < capacity {
        std::hint::spin_loop();
    }
    let took = begun.elapsed();
    peer.stop()?;
    let speed = (PIECE * TIMES) as f64 / took.as_secs_f64() / 1e9;
    println!("stream through a ring of {label}: {speed:.2} GB/s");
    Ok(())
}
