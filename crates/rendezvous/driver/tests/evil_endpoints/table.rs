//! Table of endpoints, each with a client and the expected error.

use rdzv_store_proto::limits::MAX_REPLY_BYTES;

use crate::clients::{Client, MAX_REPLY};
use crate::peer::Peer;
use crate::{coordinator, store};

/// One endpoint and one client.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    /// Function that serves each connection.
    pub(crate) endpoint: fn(Peer),
    /// Expected parts of the client's error, in addition to the address.
    pub(crate) says: Says,
    /// Maximum number of bytes that the client may read.
    pub(crate) most: usize,
}

type Says = &'static [&'static str];

pub(crate) const fn get(name: &'static str, endpoint: fn(Peer), says: Says) -> Row {
    row(Client::Get, name, endpoint, says)
}

pub(crate) const fn list(name: &'static str, endpoint: fn(Peer), says: Says) -> Row {
    row(Client::List, name, endpoint, says)
}

pub(crate) const fn c10d(name: &'static str, endpoint: fn(Peer), says: Says) -> Row {
    row(Client::C10d, name, endpoint, says)
}

pub(crate) const fn etcd(name: &'static str, endpoint: fn(Peer), says: Says) -> Row {
    row(Client::Etcd, name, endpoint, says)
}

const fn row(client: Client, name: &'static str, endpoint: fn(Peer), says: Says) -> Row {
    let most = match client {
        Client::Get | Client::List => MAX_REPLY,
        _ => MAX_REPLY_BYTES,
    };
    Row {
        name,
        client,
        endpoint,
        says,
        most,
    }
}

pub(crate) const GARBAGE: &[u8] = &[0xa5; 4096];

/// Returns all rows.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    [store::ROWS, coordinator::ROWS, crate::etcd::ROWS]
        .into_iter()
        .flatten()
}

pub(crate) fn say(mut peer: Peer, bytes: &[u8]) {
    peer.send(bytes);
    peer.hold();
}

pub(crate) fn http_in_turn(mut peer: Peer) {
    let _ = peer.http_answer("404 Not Found", "");
}

pub(crate) fn http_redirect(mut peer: Peer) {
    let _ = peer.http_answer("301 Moved Permanently", "location: http://example.com/\r\n");
}

pub(crate) fn ssh(peer: Peer) {
    say(peer, b"SSH-2.0-OpenSSH_9.2p1\r\n");
}
