//! A bare store server: prints its address and serves until its standard input ends.
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
    // Whoever started this closes the pipe, or ends, to end it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
