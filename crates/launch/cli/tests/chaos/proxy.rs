//! The link between an agent and the store, which can be cut or stalled.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Proxy to which an agent connects instead of the store.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    link: Arc<Link>,
}

#[derive(Default)]
struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stalled: bool,
    ended: bool,
    connections: Vec<TcpStream>,
}

impl Proxy {
    /// Starts a proxy for a store.
    pub(crate) fn new(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let link = Arc::new(Link::default());
        let shared = Arc::clone(&link);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if shared.state.lock().unwrap().ended {
                    return;
                }
                if let Ok(far) = TcpStream::connect(store) {
                    shared.join(&near, &far);
                }
            }
        });
        Self { address, link }
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.link.cut();
    }

    /// Stops the traffic, or resumes it.
    pub(crate) fn stall(&self, stalled: bool) {
        self.link.state.lock().unwrap().stalled = stalled;
        self.link.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.state.lock().unwrap().ended = true;
        self.stall(false);
        self.cut();
        // The connection wakes the accepting thread, which then exits.
        let _ = TcpStream::connect(self.address);
    }
}

impl Link {
    fn cut(&self) {
        for connection in self.state.lock().unwrap().connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn join(self: &Arc<Self>, near: &TcpStream, far: &TcpStream) {
        let mut state = self.state.lock().unwrap();
        for (from, to) in [(near, far), (far, near)] {
            let _ = from.set_nodelay(true);
            state.connections.push(from.try_clone().unwrap());
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let link = Arc::clone(self);
            thread::spawn(move || link.pass(from, to));
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 65536];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let state = self.state.lock().unwrap();
            drop(self.changed.wait_while(state, |state| state.stalled));
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}
