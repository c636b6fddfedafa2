//! Connection of a worker to itself: a pair of sockets.

use std::os::unix::net::UnixStream;

use super::Carrier;
use super::connect::near_carrier;
use super::error::TransportError;
use super::unix::Agreed;

/// Returns both ends of a connection.
///
/// # Errors
///
/// [`TransportError::System`] if the system cannot create sockets.
pub fn pair() -> Result<(Carrier, Carrier), TransportError> {
    let broken = || TransportError::system("create a pair of sockets");
    let (near, far) = UnixStream::pair().map_err(broken())?;
    let end = |stream: UnixStream| {
        stream.set_nonblocking(true).map_err(broken())?;
        let why = Agreed::Socket("same process".to_owned());
        near_carrier(stream.into(), why, "this process".to_owned())
    };
    Ok((end(near)?, end(far)?))
}
