//! The host of the store.

use std::io::{Read as _, stdin};

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
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
