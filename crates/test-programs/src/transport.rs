//! Connects to a worker, and prints the transport and its reason:
//!
//! ```text
//! transport CONTACT [CERTIFICATE KEY AUTHORITY]
//! ```
//!
//! The contact is the JSON form of a [`PeerAddress`]. With certificates, TCP is encrypted. The
//! program greets the worker, and ends when the worker closes the connection.

use std::env;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::Identity;
use rdzv_rpc::transport::{PeerAddress, TransportOptions, connect};
use rustix::event::{PollFd, PollFlags, poll};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [peer_address, files @ ..] = &arguments[..] else {
        return Err("usage: transport CONTACT [CERTIFICATE KEY AUTHORITY]".into());
    };
    let peer_address: PeerAddress = serde_json::from_str(peer_address)?;
    let mut options = TransportOptions::default();
    if let [certificate, key, authority] = files {
        let [certificate, key, authority] = [certificate, key, authority].map(Path::new);
        let identity = Identity::from_files(certificate, key, authority)?;
        options.tls = Some(Arc::new(identity));
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut carrier = connect(&peer_address, &options, deadline)?;
    println!("connected by {}: {}", carrier.kind, carrier.reason);
    // The first bytes into a new connection always fit.
    carrier.write.write(&[IoSlice::new(b"hello")])?;
    let mut piece = [0; 4096];
    loop {
        match carrier.read.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => println!("{count} bytes"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if carrier.read.prepare_to_sleep() {
                    let descriptor = carrier.read.descriptor();
                    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None)?;
                    carrier.read.awake();
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
