//! The host, and what went through it.

use std::io::{BufRead as _, stdin};

use rdzv_rendezvous::dynamic::native;
use rdzv_store::{ServerOptions, TcpStoreServer};

/// Serves until its standard input ends.
pub(crate) fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let server = TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        extension: Some(native::extension()),
        ..ServerOptions::default()
    })?;
    println!("{}", server.port());
    for line in stdin().lock().lines() {
        line?;
        let (requests, traffic) = (server.stats().requests, server.traffic());
        println!(
            "{{\"requests\":{requests},\"received\":{},\"sent\":{}}}",
            traffic.received_bytes, traffic.sent_bytes
        );
    }
    Ok(())
}
