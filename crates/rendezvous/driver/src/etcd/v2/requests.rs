//! Requests of the v2 API, repeated while the server is away.

use std::time::Duration;

use rdzv_core::escape::escape;
use serde::de::DeserializeOwned;
use ureq::http::{Method, Response};

use super::wire::{KeyAnswer, Node, Refusal, Version, code, form, path};
use crate::etcd::failure::{Cause, Failure, Retry};
use crate::etcd::http::{Call, Http, Lines, parse};

/// Tells the index of the whole store.
const INDEX_HEADER: &str = "x-etcd-index";

/// What was answered, read in whole.
type Answer = Response<Vec<u8>>;

/// A client of the v2 API. Clones share its connections, and its end.
#[derive(Debug, Clone)]
pub(super) struct V2 {
    http: Http,
}

/// What was read.
#[derive(Debug)]
pub(super) struct Read {
    /// `None` if the key is absent.
    pub(super) node: Option<Node>,
    /// Everything up to this change of the store has been seen.
    pub(super) index: u64,
}

/// How a write ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// Done, as the change of that index.
    Done(u64),
    /// The condition did not hold.
    Refused {
        /// An earlier attempt, whose answer was lost, may have been carried out: perhaps it is what
        /// was refused.
        maybe_done: bool,
    },
}

/// Under which condition something is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    Always,
    Absent,
    /// The last change of the key is that of this index.
    Unchanged(u64),
}

impl V2 {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    pub(super) fn http(&self) -> &Http {
        &self.http
    }

    /// The same server, through connections of its own.
    pub(super) fn separate(&self) -> Self {
        Self::new(self.http.separate())
    }

    /// Reads a key, or a folder with all that is in it.
    pub(super) fn read(&self, operation: &'static str, key: &str) -> Result<Read, Failure> {
        // Without a quorum, a server that is behind would answer with the past.
        let path = format!("{}?quorum=true&recursive=true", path(key));
        let call = bare(Method::GET, &path);
        match self.ask(operation, key, &call)?.0 {
            Ok(answer) => {
                let header = answer.headers().get(INDEX_HEADER);
                let index = header
                    .and_then(|value| value.to_str().ok())
                    .and_then(|text| text.parse().ok());
                let node = self.parsed::<KeyAnswer>(operation, key, &answer)?.node;
                Ok(Read {
                    index: index.unwrap_or(node.modified),
                    node: Some(node),
                })
            }
            Err(refusal) => Ok(Read {
                node: None,
                index: refusal.index,
            }),
        }
    }

    /// Writes a key, to be cleared after `seconds` if any.
    pub(super) fn write(
        &self,
        operation: &'static str,
        key: &str,
        value: &str,
        condition: Condition,
        seconds: Option<u64>,
    ) -> Result<Put, Failure> {
        let (index, seconds) = (
            match condition {
                Condition::Unchanged(index) => index.to_string(),
                _ => String::new(),
            },
            seconds.map(|seconds| seconds.to_string()),
        );
        let mut fields = vec![("value", value)];
        if let Some(seconds) = &seconds {
            fields.push(("ttl", seconds));
        }
        match condition {
            Condition::Always => {}
            Condition::Absent => fields.push(("prevExist", "false")),
            Condition::Unchanged(_) => fields.push(("prevIndex", &index)),
        }
        let body = form(&fields);
        let call = Call {
            method: Method::PUT,
            path: &path(key),
            content_type: Some("application/x-www-form-urlencoded"),
            body: body.as_bytes(),
        };
        match self.ask(operation, key, &call)? {
            (Ok(answer), _) => {
                let answer = self.parsed::<KeyAnswer>(operation, key, &answer)?;
                Ok(Put::Done(answer.node.modified))
            }
            (Err(_), maybe_done) => Ok(Put::Refused { maybe_done }),
        }
    }

    /// Removes a key; tells whether it was there, as far as is known.
    pub(super) fn remove(&self, key: &str) -> Result<bool, Failure> {
        let path = path(key);
        match self.ask("delete", key, &bare(Method::DELETE, &path))? {
            (Ok(_), _) => Ok(true),
            (Err(_), maybe_done) => Ok(maybe_done),
        }
    }

    /// Waits for the first change of a key that is not before `index`; a read fails when nothing has
    /// come for `silence`.
    pub(super) fn next_change(
        &self,
        key: &str,
        index: u64,
        silence: Duration,
    ) -> Result<Lines, Cause> {
        let path = format!("{}?wait=true&waitIndex={index}", path(key));
        self.http.stream(&bare(Method::GET, &path), silence, None)
    }

    /// Why a request that has not begun well has failed.
    pub(super) fn failure(&self, operation: &'static str, key: &str, cause: Cause) -> Failure {
        Retry::within(Duration::ZERO).failure(operation, key, self.http.place(), cause)
    }

    fn parsed<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        key: &str,
        answer: &Answer,
    ) -> Result<T, Failure> {
        parse(answer.body()).map_err(|cause| self.failure(operation, key, cause))
    }

    /// Sends a request until there is an answer. Also returns whether an attempt whose answer was
    /// lost may have been carried out. A refusal is about the key: it is absent, or the condition of a
    /// write does not hold.
    fn ask(
        &self,
        operation: &'static str,
        key: &str,
        call: &Call<'_>,
    ) -> Result<(Result<Answer, Refusal>, bool), Failure> {
        self.http
            .repeat(operation, key, |limit| self.attempt(call, limit))
    }

    fn attempt(&self, call: &Call<'_>, limit: Duration) -> Result<Result<Answer, Refusal>, Cause> {
        let answer = self.http.send(call, limit)?;
        let status = answer.status().as_u16();
        if matches!(status, 200 | 201) {
            return Ok(Ok(answer));
        }
        let Ok(refusal) = parse::<Refusal>(answer.body()) else {
            return Err(self.no_v2(status, limit));
        };
        match refusal.code {
            code::KEY_NOT_FOUND | code::COMPARE_FAILED | code::KEY_EXISTS => Ok(Err(refusal)),
            _ => Err(cause_of(refusal)),
        }
    }

    /// What it means that something else than the v2 API has answered.
    fn no_v2(&self, status: u16, limit: Duration) -> Cause {
        if matches!(status, 502..=504) {
            return Cause::Away {
                reason: format!("HTTP status {status}"),
                maybe_done: true,
            };
        }
        let call = bare(Method::GET, "/version");
        let version = self.http.send(&call, limit).ok();
        let version: Option<Version> = version.and_then(|answer| parse(answer.body()).ok());
        match version {
            Some(version) => Cause::Refused {
                code: status.into(),
                message: format!(
                    "this server ({}) does not serve the v2 API; start it with --enable-v2=true \
                     (before etcd 3.6), or use --rdzv-backend etcd, which speaks v3",
                    version.server
                ),
            },
            None => Cause::NotEtcd(format!("HTTP status {status}")),
        }
    }
}

/// A request without a body.
fn bare(method: Method, path: &str) -> Call<'_> {
    Call {
        method,
        path,
        content_type: None,
        body: b"",
    }
}

/// What a refusal means that is not about a key's condition.
pub(super) fn cause_of(refusal: Refusal) -> Cause {
    let Refusal {
        code,
        message,
        cause,
        ..
    } = refusal;
    let message = match cause.as_str() {
        "" => escape(&message),
        cause => escape(&format!("{message} ({cause})")),
    };
    match code {
        code::RAFT_INTERNAL | code::LEADER_ELECTION => Cause::Away {
            reason: message,
            maybe_done: true,
        },
        _ => Cause::Refused { code, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_escaped() {
        let refusal = r#"{"errorCode":1,"message":"no\u001b[2J","cause":"\n"}"#;
        let cause = cause_of(serde_json::from_str(refusal).unwrap()).to_string();
        assert!(cause.ends_with("no\\u{1b}[2J (\\n)"), "{cause:?}");
    }
}
