//! Parser for init-method URLs, which it splits in the same way as PyTorch.
//!
//! PyTorch uses Python's `urlparse`: the scheme and the host become lower case, user names are
//! dropped, and nothing is percent-decoded.

use std::collections::BTreeMap;
use std::fmt;

use rdzv_core::endpoint::Endpoint;

use crate::RendezvousError;

/// Parsed init-method URL: `scheme://host:port/path?name=value&...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Scheme in lower case; empty if the URL has none.
    pub scheme: String,
    /// Host in lower case; an IPv6 address has no brackets.
    pub host: Option<String>,
    /// Port as text; [`Url::port`] returns it as a number.
    port: Option<String>,
    /// Path with its leading slash; can be empty.
    pub path: String,
    /// Names and values of the query.
    pub query: BTreeMap<String, String>,
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if a part of the query has no value, or a name has two different values.
    pub fn parse(text: &str) -> Result<Self, RendezvousError> {
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            _ => (String::new(), text),
        };
        let (authority, rest) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, port) = split_authority(authority);
        Ok(Self {
            scheme,
            host: Some(host.to_lowercase()).filter(|host| !host.is_empty()),
            port: port.filter(|port| !port.is_empty()).map(str::to_owned),
            path: path.to_owned(),
            query: parse_query(query, text)?,
        })
    }

    /// Returns the port, or `None` if the URL has none.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the port is not a number from 0 to 65535.
    pub fn port(&self) -> Result<Option<u16>, RendezvousError> {
        let Some(text) = &self.port else {
            return Ok(None);
        };
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(RendezvousError::Argument(format!(
                "Port could not be cast to integer value as '{text}'"
            )));
        }
        text.parse()
            .map(Some)
            .map_err(|_| RendezvousError::argument("Port out of range 0-65535"))
    }

    /// Returns the number under `name` in the query, or `None` if it is absent.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the value is not a whole number.
    pub fn number(&self, name: &str) -> Result<Option<u32>, RendezvousError> {
        self.query
            .get(name)
            .map(|text| whole_number(name, text))
            .transpose()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://", self.scheme)?;
        match (&self.host, self.port().ok().flatten()) {
            (Some(host), Some(port)) => {
                let host = host.clone();
                write!(formatter, "{}", Endpoint { host, port })?;
            }
            (Some(host), None) => formatter.write_str(host)?,
            (None, _) => {}
        }
        formatter.write_str(&self.path)?;
        for (index, (name, value)) in self.query.iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            write!(formatter, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

/// Parses a rank or a world size.
pub(crate) fn whole_number(name: &str, text: &str) -> Result<u32, RendezvousError> {
    let number = integer(text)?;
    u32::try_from(number).map_err(|_| {
        RendezvousError::Argument(format!(
            "{name} must be from 0 to {}, not {number}",
            u32::MAX
        ))
    })
}

pub(super) fn integer(text: &str) -> Result<i64, RendezvousError> {
    text.trim().parse().map_err(|_| {
        RendezvousError::Argument(format!("invalid literal for int() with base 10: '{text}'"))
    })
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
}

fn split_authority(authority: &str) -> (&str, Option<&str>) {
    let address = authority.rsplit('@').next().unwrap_or_default();
    if let Some((host, rest)) = address
        .strip_prefix('[')
        .and_then(|inside| inside.split_once(']'))
    {
        return (host, rest.strip_prefix(':'));
    }
    match address.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    }
}

fn parse_query(query: &str, url: &str) -> Result<BTreeMap<String, String>, RendezvousError> {
    let mut parsed = BTreeMap::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let mut pieces = part.split('=');
        let (Some(name), Some(value)) = (pieces.next(), pieces.next()) else {
            return Err(RendezvousError::Argument(format!(
                "the part '{part}' of the query in {url} has no value; write name=value"
            )));
        };
        let earlier = parsed.insert(name.to_owned(), value.to_owned());
        if let Some(earlier) = earlier.filter(|earlier| earlier != value) {
            return Err(RendezvousError::Argument(format!(
                "the query of {url} has {name}={earlier} and {name}={value}: specify each name once"
            )));
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn all_parts_are_found() {
        let url = parsed("TCP://user@Node-A:29500/x?rank=1&&world_size=2=3#part");
        assert_eq!(url.scheme, "tcp");
        assert_eq!(url.host.as_deref(), Some("node-a"));
        assert_eq!(url.port().unwrap(), Some(29500));
        assert_eq!(url.path, "/x");
        assert_eq!(url.number("rank").unwrap(), Some(1));
        assert_eq!(url.query["world_size"], "2");
        assert_eq!(url.to_string(), "tcp://node-a:29500/x?rank=1&world_size=2");
    }

    #[test]
    fn missing_parts_are_missing() {
        let url = parsed("env://");
        assert_eq!((url.host.as_ref(), url.port().unwrap()), (None, None));
        assert_eq!(url.path, "");
        assert_eq!(parsed("tcp://host:?rank=0").port().unwrap(), None);
        assert_eq!(parsed("file:///a b/c").path, "/a b/c");
        assert_eq!(parsed("no scheme").scheme, "");
    }

    #[test]
    fn ipv6_addresses_lose_their_brackets() {
        let url = parsed("tcp://[::1]:5?rank=0");
        assert_eq!(url.host.as_deref(), Some("::1"));
        assert_eq!(url.port().unwrap(), Some(5));
        assert_eq!(url.to_string(), "tcp://[::1]:5?rank=0");
    }

    #[test]
    fn bad_numbers_are_named() {
        let port = |text| parsed(text).port().unwrap_err().to_string();
        assert_eq!(port("tcp://h:65536"), "Port out of range 0-65535");
        assert_eq!(port("tcp://h:99999999999"), "Port out of range 0-65535");
        assert_eq!(
            port("tcp://h:x"),
            "Port could not be cast to integer value as 'x'"
        );
        let rank = |text| parsed(text).number("rank").unwrap_err().to_string();
        assert_eq!(
            rank("env://?rank=one"),
            "invalid literal for int() with base 10: 'one'"
        );
        assert!(rank("env://?rank=-2").contains("-2"));
        assert!(
            Url::parse("env://?rank")
                .unwrap_err()
                .to_string()
                .contains("'rank'")
        );
    }
}
