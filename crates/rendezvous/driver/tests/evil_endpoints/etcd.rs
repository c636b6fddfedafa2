//! Endpoints for an agent's etcd rendezvous.

use std::time::Duration;

use crate::peer::Peer;
use crate::table::{GARBAGE, Row, etcd, http_redirect, ssh};

pub(crate) const ROWS: &[Row] = &[
    etcd("silent", Peer::hold, &["no answer", "read_timeout"]),
    etcd("accepts and closes", drop, &["--rdzv-endpoint"]),
    etcd("SSH banner", ssh, &["--rdzv-endpoint"]),
    etcd("endless body", endless_body, &["--rdzv-endpoint"]),
    etcd(
        "a body of millions of parts",
        many_parts,
        &["the limit of 1048576 parts"],
    ),
    etcd("endless headers", endless_headers, &["--rdzv-endpoint"]),
    etcd(
        "endless interim answers",
        endless_interim,
        &["--rdzv-endpoint"],
    ),
    etcd(
        "a byte at a time",
        slow_http,
        &["no answer", "read_timeout"],
    ),
    etcd("garbage", garbage_body, &["not an etcd server"]),
    etcd("redirect", http_redirect, &["not an etcd server"]),
    etcd(
        "a refusal without end",
        long_refusal,
        &["etcd rejected", "bytes)"],
    ),
    etcd(
        "a huge body",
        huge_body,
        &["the limit of 67108864 bytes", "--rdzv-endpoint"],
    ),
];

fn endless_body(mut peer: Peer) {
    if peer.http_answer("200 OK", "").is_some() {
        peer.flood(b" ");
    }
}

fn huge_body(mut peer: Peer) {
    if peer
        .http_answer("200 OK", "content-length: 1099511627776\r\n")
        .is_some()
    {
        peer.flood(b" ");
    }
}

fn many_parts(mut peer: Peer) {
    if peer.http_answer("200 OK", "").is_some() {
        let nodes = b"{},".repeat(1 << 20);
        for part in [&b"{\"kvs\":["[..], &nodes, b"{}]}"] {
            peer.send(part);
        }
    }
}

fn endless_headers(mut peer: Peer) {
    if peer.http_request().is_some() {
        peer.send("HTTP/1.1 200 OK\r\n");
        peer.flood(b"x-more: and more\r\n");
    }
}

fn endless_interim(mut peer: Peer) {
    if peer.http_request().is_some() {
        peer.flood(b"HTTP/1.1 102 Processing\r\n\r\n");
    }
}

fn slow_http(mut peer: Peer) {
    if peer
        .http_answer("200 OK", "content-length: 4096\r\n")
        .is_some()
    {
        peer.drip(GARBAGE, Duration::from_millis(50));
    }
}

fn garbage_body(mut peer: Peer) {
    if peer.http_answer("200 OK", "").is_some() {
        peer.send(GARBAGE);
    }
}

fn long_refusal(mut peer: Peer) {
    if peer.http_answer("400 Bad Request", "").is_some() {
        peer.send("{\"code\":3,\"message\":\"");
        for _ in 0..1024 {
            peer.send([b'x'; 1024]);
        }
        peer.send("\"}");
    }
}
