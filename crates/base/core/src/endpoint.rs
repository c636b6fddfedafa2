//! Endpoints `host:port`, as in `--rdzv-endpoint` and init-method URLs.

use std::fmt;

use thiserror::Error;

/// Host (name, IPv4 address, or IPv6 address without brackets) and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Name or address of the host; an IPv6 address has no brackets.
    pub host: String,
    /// TCP port.
    /// A server with port 0 listens on a free port, which the system selects.
    pub port: u16,
}

/// Reason why a text is not an endpoint; the messages are PyTorch's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The part after the last colon is not a valid port.
    #[error(
        "The port number of the rendezvous endpoint '{0}' must be an integer between 0 and 65536."
    )]
    Port(String),
    /// The part before the port is not a valid host.
    #[error(
        "The hostname of the rendezvous endpoint '{0}' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address."
    )]
    Host(String),
}

impl Endpoint {
    /// Parses an endpoint; a blank text means `localhost` with the default port.
    ///
    /// An IPv6 address needs brackets if a port follows (`[::1]:29500`). Without brackets, the text
    /// after the last colon is interpreted as the port, as in PyTorch.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] if the text is not an endpoint, or the port is out of range.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, EndpointError> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(Self {
                host: "localhost".to_owned(),
                port: default_port,
            });
        }
        let bare_brackets = trimmed.starts_with('[') && trimmed.ends_with(']');
        let (host, port) = match trimmed.rsplit_once(':') {
            Some((host, port)) if !bare_brackets => (host, parse_port(port, text)?),
            _ => (trimmed, default_port),
        };
        let host = bare_host(host);
        let valid = |letter: char| letter.is_alphanumeric() || "_.:-".contains(letter);
        if host.is_empty() || !host.chars().all(valid) {
            return Err(EndpointError::Host(text.to_owned()));
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// Returns a host without surrounding spaces, and without IPv6 brackets.
///
/// URLs and endpoints need the brackets (`[::1]:29500`). Workers and sockets need the bare address.
pub fn bare_host(text: &str) -> &str {
    let text = text.trim();
    let inside = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inside.unwrap_or(text)
}

fn parse_port(digits: &str, whole: &str) -> Result<u16, EndpointError> {
    let plausible =
        (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(port) if plausible => Ok(port),
        _ => Err(EndpointError::Port(whole.to_owned())),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, u16) {
        let endpoint = Endpoint::parse(text, 29400).unwrap();
        (endpoint.host, endpoint.port)
    }

    #[test]
    fn the_forms_of_the_reference() {
        assert_eq!(parsed(" "), ("localhost".into(), 29400));
        assert_eq!(parsed("node-a"), ("node-a".into(), 29400));
        assert_eq!(parsed("10.0.0.1:080"), ("10.0.0.1".into(), 80));
        assert_eq!(parsed("[::1]:29500"), ("::1".into(), 29500));
        assert_eq!(parsed("[::1]"), ("::1".into(), 29400));
        assert_eq!(parsed("::1:5"), ("::1".into(), 5));
    }

    #[test]
    fn a_host_is_bare_without_brackets_and_spaces() {
        for (text, bare) in [
            (" [::1] ", "::1"),
            ("::1", "::1"),
            ("node", "node"),
            ("[::1", "[::1"),
        ] {
            assert_eq!(bare_host(text), bare);
        }
    }

    #[test]
    fn bad_ports_and_hosts_are_refused() {
        for text in ["a:", "a:65536", "a:x", "a:000001", "a:+1"] {
            assert_eq!(
                Endpoint::parse(text, 1),
                Err(EndpointError::Port(text.into()))
            );
        }
        for text in ["a b:1", "fe80::1%eth0:1", "http://a:1", ":1"] {
            assert_eq!(
                Endpoint::parse(text, 1),
                Err(EndpointError::Host(text.into()))
            );
        }
    }

    #[test]
    fn display_brackets_ipv6() {
        let endpoint = Endpoint {
            host: "::1".into(),
            port: 5,
        };
        assert_eq!(endpoint.to_string(), "[::1]:5");
        assert_eq!(Endpoint::parse(&endpoint.to_string(), 0).unwrap(), endpoint);
    }
}
