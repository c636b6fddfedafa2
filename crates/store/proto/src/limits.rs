//! Bounds of a server and of a client.

use std::time::Duration;

/// Default maximum memory of a client for one reply.
///
/// This is eight times the default of [`Limits::max_value_bytes`].
pub const MAX_REPLY_BYTES: usize = 64 << 20;

/// Bounds of one server.
///
/// If a client exceeds a bound other than [`Limits::max_unsent_bytes`], the server closes only this
/// client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a key on the wire, including its leading `/`.
    ///
    /// Default 8192 B, as in PyTorch.
    pub max_key_bytes: usize,
    /// Maximum length of a value in one request. Default 8 MiB, as in PyTorch.
    pub max_value_bytes: usize,
    /// Maximum number of keys in one `CHECK`, `WAIT`, `MULTI_GET` or `MULTI_SET`.
    ///
    /// Default 131072, as in PyTorch.
    pub max_keys_per_request: usize,
    /// Maximum number of keys and non-empty queues. Default 10 million.
    ///
    /// One connection may hold an eighth of them, and an address without an agent a quarter, but
    /// each at least 1024. Agents have no share limit.
    pub max_keys: usize,
    /// Maximum number of connections at a time. Default 200 000.
    ///
    /// The process usually reaches its open-files limit first.
    pub max_connections: usize,
    /// Maximum memory for keys, values, waiters and the buffers of all connections.
    ///
    /// Default 4 GiB. Connections and addresses have the same shares as for keys, but at least
    /// 64 KiB.
    pub max_memory_bytes: usize,
    /// Size of a connection's unsent replies that pauses it. Default 1 MiB.
    ///
    /// The server stops reading from a connection above this size, and resumes at half of it. A
    /// single reply may be larger.
    pub max_unsent_bytes: usize,
    /// Maximum number of pending waits of one connection. Default 64.
    ///
    /// A client of PyTorch has at most one pending wait.
    pub max_waits: usize,
    /// Maximum length of a request of an extension.
    ///
    /// With 0, the default, extension opcodes are unknown. A server with an extension accepts at
    /// least 8 KiB.
    pub max_extension_bytes: usize,
    /// Time within which a new connection must send `VALIDATE`. Default 30 s.
    pub validation_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_key_bytes: 8192,
            max_value_bytes: 8 << 20,
            max_keys_per_request: 131_072,
            max_keys: 10_000_000,
            max_connections: 200_000,
            max_memory_bytes: 4 << 30,
            max_unsent_bytes: 1 << 20,
            max_waits: 64,
            max_extension_bytes: 0,
            validation_timeout: Duration::from_secs(30),
        }
    }
}

/// Parses a number of bytes, or a number followed by KiB, MiB or GiB.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => {
            return Err(
                "a size is a number of bytes, or a number followed by KiB, MiB or GiB".to_owned(),
            );
        }
    };
    let number: usize = digits
        .trim()
        .parse()
        .map_err(|_| format!("{digits:?} is not a whole number"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "the size is more than this machine can address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("12"), Ok(12));
        assert_eq!(parse_size("3MiB"), Ok(3 << 20));
        assert_eq!(parse_size("3 KiB"), Ok(3 << 10));
        for bad in ["", "MiB", "3MB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
