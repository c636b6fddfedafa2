//! An address that stands for a server: connections to it are passed on, as by a service of a cluster.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context;

/// Passes connections on as long as it is there.
pub(super) struct Forwarder {
    at: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    pub(super) fn start(at: SocketAddr, to: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(at).context("the address of the service is in use")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // Nobody may be there: the client's connection is closed then.
                if let Ok(server) = TcpStream::connect(to) {
                    pass_on(&client, &server);
                    pass_on(&server, &client);
                }
            }
        });
        let thread = Some(thread);
        Ok(Self {
            at,
            is_over,
            thread,
        })
    }
}

/// Passes on what comes, in a thread of its own, until one of the two has ended.
fn pass_on(from: &TcpStream, to: &TcpStream) {
    if let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            for stream in [from, to] {
                // The other thread may have ended it.
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // It waits for the next connection.
        let woken = TcpStream::connect(self.at);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
