//! Requests and watches of etcd's v3 API, through its JSON gateway.
//!
//! The client repeats requests while the server is away.
//!
//! The server may execute a request although its answer is lost. [`Answer::repeated`] reports this
//! possibility to callers for which a second execution matters.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::StatusCode;

use super::failure::{Cause, Failure, shown};
use super::http::{Client, Lines, parse};
use super::wire::{Answer, Int, KeyValue, Refusal, text};

/// gRPC status codes.
mod code {
    pub(super) const CANCELLED: i64 = 1;
    pub(super) const DEADLINE_EXCEEDED: i64 = 4;
    pub(super) const NOT_FOUND: i64 = 5;
    pub(super) const RESOURCE_EXHAUSTED: i64 = 8;
    pub(super) const UNAVAILABLE: i64 = 14;
}

impl Client {
    /// Reads one key, and returns the revision of the store with it.
    pub(crate) fn read(&self, key: &[u8]) -> Result<(Option<KeyValue>, i64), Failure> {
        let body = json!({ "key": text(key) });
        let answer = self.ask("read", key, "/v3/kv/range", &body)?;
        Ok((answer.held(), answer.header.revision.0))
    }

    /// Lists the keys that begin with `prefix`, with or without their values.
    pub(crate) fn range(&self, prefix: &[u8], keys_only: bool) -> Result<Answer, Failure> {
        let body = json!({
            "key": text(prefix), "range_end": text(&after(prefix)), "keys_only": keys_only
        });
        self.ask("list", prefix, "/v3/kv/range", &body)
    }

    /// Returns the number of keys that begin with `prefix`.
    pub(crate) fn count(&self, prefix: &[u8]) -> Result<i64, Failure> {
        let body = json!({
            "key": text(prefix), "range_end": text(&after(prefix)), "count_only": true
        });
        let answer = self.ask("count", prefix, "/v3/kv/range", &body)?;
        Ok(answer.count.0)
    }

    /// Deletes the keys from `first` to before `end` and returns their number.
    ///
    /// Without an `end`, it deletes only `first`.
    pub(crate) fn remove(&self, first: &[u8], end: Option<&[u8]>) -> Result<i64, Failure> {
        let mut body = json!({ "key": text(first) });
        if let Some(end) = end {
            body["range_end"] = text(end).into();
        }
        let answer = self.ask("delete", first, "/v3/kv/deleterange", &body)?;
        Ok(answer.deleted.0)
    }

    /// Executes `success` if all conditions in `compare` hold, otherwise `failure`.
    pub(crate) fn transact(
        &self,
        operation: &'static str,
        key: &[u8],
        compare: &[Value],
        success: &[Value],
        failure: &[Value],
    ) -> Result<Answer, Failure> {
        let body = json!({ "compare": compare, "success": success, "failure": failure });
        self.ask(operation, key, "/v3/kv/txn", &body)
    }

    /// Creates a lease; `key` appears only in errors.
    pub(crate) fn grant(&self, time_to_live: Duration, key: &[u8]) -> Result<i64, Failure> {
        let seconds = i64::try_from(time_to_live.as_secs()).unwrap_or(i64::MAX);
        let body = json!({ "TTL": Int(seconds) });
        let answer = self.ask("create a lease for", key, "/v3/lease/grant", &body)?;
        Ok(answer.id.0)
    }

    /// Renews a lease; `false` if the lease does not exist.
    pub(crate) fn keep_alive(&self, lease: i64) -> Result<bool, Failure> {
        let body = json!({ "ID": Int(lease) });
        let answer = self.ask("renew the lease of", b"", "/v3/lease/keepalive", &body)?;
        Ok(answer
            .result
            .is_some_and(|result| result.time_to_live.0 > 0))
    }

    /// Ends a lease, which deletes the keys attached to it.
    pub(crate) fn revoke(&self, lease: i64) -> Result<(), Failure> {
        let body = json!({ "ID": Int(lease) });
        match self.ask("revoke the lease of", b"", "/v3/lease/revoke", &body) {
            Err(failure) if !is_no_lease(&failure) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Starts the watches in `creations` and returns the lines of the answer.
    ///
    /// The server numbers the watches from 0 in the order of `creations`. A read fails after
    /// [`SILENCE`](super::http::SILENCE) without data.
    pub(crate) fn watch(
        &self,
        creations: &[Value],
        limit: Option<Duration>,
    ) -> Result<Lines, Cause> {
        let body: String = creations
            .iter()
            .map(|creation| json!({ "create_request": creation }).to_string())
            .collect();
        let lines = self.stream("/v3/watch", &body, limit)?;
        match lines.status {
            200 => Ok(lines),
            503 => Err(Cause::away("HTTP status 503", true)),
            status => Err(Cause::NotEtcd(format!("HTTP status {status}"))),
        }
    }

    fn ask(
        &self,
        operation: &'static str,
        key: &[u8],
        path: &str,
        body: &Value,
    ) -> Result<Answer, Failure> {
        let body = body.to_string();
        let key = String::from_utf8_lossy(key);
        let (answer, repeated) =
            self.repeat(operation, key, |limit| self.attempt(path, &body, limit))?;
        Ok(Answer { repeated, ..answer })
    }

    fn attempt(&self, path: &str, body: &str, limit: Duration) -> Result<Answer, Cause> {
        let (head, body) = self.send(path, Some(body), limit)?.into_parts();
        if head.status == StatusCode::OK {
            return parse(&body);
        }
        Err(refusal(head.status.as_u16(), &body))
    }
}

/// Converts an HTTP status other than 200 into a cause.
pub(super) fn refusal(status: u16, body: &[u8]) -> Cause {
    let Ok(said) = parse::<Refusal>(body) else {
        return match status {
            502..=504 => Cause::away(format!("HTTP status {status}"), true),
            _ => Cause::NotEtcd(format!("HTTP status {status}")),
        };
    };
    let message = match (&said.error, said.message) {
        (Value::String(error), message) if message.is_empty() => shown(error),
        (_, message) => shown(&message),
    };
    let passing = match said.code {
        code::UNAVAILABLE | code::DEADLINE_EXCEEDED | code::CANCELLED => true,
        code::RESOURCE_EXHAUSTED => message.contains("too many requests"),
        _ => false,
    };
    if passing {
        return Cause::away(message, true);
    }
    Cause::Refused {
        code: said.code,
        message,
    }
}

/// `true` if the server refused a request because a lease in it does not exist.
pub(crate) fn is_no_lease(failure: &Failure) -> bool {
    matches!(
        &failure.cause,
        Cause::Refused { code: code::NOT_FOUND, message } if message.contains("lease not found")
    )
}

/// Returns the first key after all keys that begin with `prefix`.
pub(crate) fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's notation for "to the end".
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_one() {
        assert_eq!(after(b"a/"), b"a0");
        assert_eq!(after(b"a\xff"), b"b");
        assert_eq!(after(b"\xff"), b"\0");
    }

    #[test]
    fn refusals_are_distinguished() {
        let of = |status, body: &str| refusal(status, body.as_bytes());
        assert!(of(503, r#"{"error":"etcdserver: no leader","code":14}"#).is_passing());
        assert!(of(502, "<html>").is_passing());
        let hostile = of(400, r#"{"error":"x","message":"no\u001b[2J\n","code":3}"#).to_string();
        assert!(hostile.ends_with("no\\u{1b}[2J\\n"), "{hostile:?}");
        assert_eq!(
            of(404, "Not Found"),
            Cause::NotEtcd("HTTP status 404".to_owned())
        );
        let large = r#"{"error":"x","message":"etcdserver: request is too large","code":3}"#;
        assert_eq!(
            of(400, large),
            Cause::Refused {
                code: 3,
                message: "etcdserver: request is too large".to_owned()
            }
        );
        assert!(
            !of(
                429,
                r#"{"message":"etcdserver: mvcc: database space exceeded","code":8}"#
            )
            .is_passing()
        );
    }
}
