//! A store server that prints its address and serves until its input ends.
//!
//! `serve [host] [port]`

use std::io::Read as _;
use std::time::Duration;

use rdzv_store::{ServerOptions, StoreError, TcpStoreServer};

pub(crate) fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let server = TcpStoreServer::start(ServerOptions {
        host: arguments.next(),
        port: arguments
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or(0),
        ..ServerOptions::default()
    })?;
    println!("{}", server.local_addr());
    // The parent process closes the pipe, or exits, to end this program.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
