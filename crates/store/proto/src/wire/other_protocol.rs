//! The protocol of a server that is not a store, detected by its first bytes.

/// First bytes, and the kind of server that sends them.
const KINDS: [(&[u8], &str); 9] = [
    (b"HTTP/", "an HTTP server"),
    (b"SSH-", "an SSH server"),
    // A TLS alert; the second row is a handshake record.
    (&[0x15, 0x03], "a TLS server; this client speaks plain TCP"),
    (&[0x16, 0x03], "a TLS server; this client speaks plain TCP"),
    (b"220", "a mail or FTP server"),
    (b"+OK", "a mail server"),
    (b"* OK", "a mail server"),
    (b"-ERR", "a Redis server"),
    (b"-DENIED", "a Redis server"),
];

/// Returns the kind of server that answers with these bytes, if it is known.
pub fn kind_of_server(first: &[u8]) -> Option<&'static str> {
    // The settings frame that begins a connection: a length of three bytes, the type 4, stream 0.
    if let [0, 0, _, 4, 0, 0, 0, 0, 0, ..] = first {
        return Some("an HTTP/2 or gRPC server");
    }
    let (_, kind) = KINDS.iter().find(|(start, _)| first.starts_with(start))?;
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_distinguished_by_their_first_bytes() {
        for (first, word) in [
            (&b"HTTP/1.1 400 Bad Request"[..], "HTTP"),
            (b"SSH-2.0-OpenSSH", "SSH"),
            (&[0x15, 3, 1, 0, 2, 2, 70], "TLS"),
            (&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0], "gRPC"),
            (b"220 mail ready", "FTP"),
            (b"-ERR unknown command", "Redis"),
        ] {
            assert!(
                kind_of_server(first).unwrap().contains(word),
                "{first:02x?}"
            );
        }
        for first in [&b""[..], b"\x01\x02\x03\x04", b"HTT"] {
            assert_eq!(kind_of_server(first), None, "{first:02x?}");
        }
    }
}
