//! An error that the callee sends to the caller.

use std::error::Error;

use rdzv_core::escape::{escape, escape_lines};
use serde::{Deserialize, Serialize};

use crate::error::{RemoteError, RpcError, RpcErrorKind};

/// Failure of a function: any error type, a text, or a [`RemoteError`].
///
/// A `RemoteError` arrives with all its fields, and its texts are escaped.
pub trait FunctionFailure {
    /// Returns the failure in a form that another process understands.
    fn into_remote(self) -> RemoteError;
}

impl<E> FunctionFailure for E
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn into_remote(self) -> RemoteError {
        let type_name = std::any::type_name::<E>();
        let boxed: Box<dyn Error + Send + Sync> = self.into();
        let boxed = match boxed.downcast::<RemoteError>() {
            Ok(remote) => return *remote,
            Err(boxed) => boxed,
        };
        let mut causes = Vec::new();
        let mut next = boxed.source();
        while let Some(cause) = next {
            causes.push(cause.to_string());
            next = cause.source();
        }
        RemoteError {
            type_name: type_name.to_owned(),
            message: boxed.to_string(),
            causes,
            ..RemoteError::default()
        }
    }
}

/// Body of an error frame.
///
/// It does not name the callee and the method: the caller knows both.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    kind: RpcErrorKind,
    message: String,
    remote: Option<RemoteError>,
    /// Names of the offered methods, if the requested method does not exist.
    pub(crate) methods: Vec<String>,
}

impl Refusal {
    /// Extracts the part of an error that is sent to the caller.
    pub(crate) fn new(error: RpcError) -> Self {
        Self {
            kind: error.kind,
            message: error.message,
            remote: error.remote.map(|remote| *remote),
            methods: Vec::new(),
        }
    }

    /// Creates the refusal of an unknown method, with the offered names.
    pub(crate) fn no_such_method(methods: Vec<String>) -> Self {
        let kind = RpcErrorKind::NoSuchMethod;
        let message = String::new();
        Self {
            methods,
            ..Self::new(RpcError::new(kind, message))
        }
    }

    /// Returns the refusal as the bytes of a frame body.
    ///
    /// This cannot fail: postcard can serialise every refusal.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Decodes a refusal as the error that the caller gets.
    pub(crate) fn into_error(body: &[u8], method: &str) -> RpcError {
        let Ok(refusal) = postcard::from_bytes::<Self>(body) else {
            let message = "the worker answered with an invalid error message";
            return RpcError::new(RpcErrorKind::Protocol, message).with_method(method);
        };
        let message = match refusal.kind {
            RpcErrorKind::NoSuchMethod if refusal.message.is_empty() => {
                escape(&no_such_method(method, &refusal.methods))
            }
            _ => escape_lines(&refusal.message),
        };
        let escaped = |remote: RemoteError| RemoteError {
            type_name: escape(&remote.type_name),
            message: escape_lines(&remote.message),
            causes: remote
                .causes
                .iter()
                .map(|cause| escape_lines(cause))
                .collect(),
            ..remote
        };
        RpcError {
            remote: refusal.remote.map(escaped).map(Box::new),
            ..RpcError::new(refusal.kind, message).with_method(method)
        }
    }
}

/// Returns the error text for an unknown method, with some offered names.
pub(crate) fn no_such_method(wanted: &str, offered: &[String]) -> String {
    let last = |name: &str| {
        let name = name.rsplit(['.', ':', '/']).next().unwrap_or(name);
        name.to_ascii_lowercase()
    };
    let near: Vec<&str> = offered
        .iter()
        .map(String::as_str)
        .filter(|name| {
            let (theirs, ours) = (last(name), last(wanted));
            theirs.contains(&ours) || ours.contains(&theirs)
        })
        .take(5)
        .collect();
    let (which, names) = if near.is_empty() {
        let first: Vec<&str> = offered.iter().map(String::as_str).take(10).collect();
        ("it offers", first)
    } else {
        ("similar names are", near)
    };
    if names.is_empty() {
        return format!("the worker offers no methods; register {wanted} there");
    }
    format!(
        "the worker offers no method {wanted}; {which} {}; register the method there with the same \
         version",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("naïve: {text}")]
    struct Naive {
        text: String,
        source: std::num::ParseIntError,
    }

    #[test]
    fn type_text_and_causes_survive() {
        let source = "x".parse::<u8>().unwrap_err();
        let text = "two\nlines".to_owned();
        let remote = Naive { text, source }.into_remote();
        assert!(remote.type_name.ends_with("Naive"));
        assert_eq!(remote.message, "naïve: two\nlines");
        assert_eq!(remote.causes, ["invalid digit found in string"]);
        let texts = [
            "text".into_remote().message,
            "text".to_owned().into_remote().message,
        ];
        assert_eq!(texts, ["text", "text"]);
    }

    #[test]
    fn a_remote_error_arrives_as_it_is() {
        let own = RemoteError {
            code: 7,
            details: vec![1, 2],
            message: "own".to_owned(),
            ..RemoteError::default()
        };
        assert_eq!(own.clone().into_remote(), own);
        let error = RpcError {
            remote: Some(Box::new(own.clone())),
            ..RpcError::new(RpcErrorKind::Remote, "own")
        };
        let back = Refusal::into_error(&Refusal::new(error).to_bytes(), "m");
        assert_eq!(back.remote.as_deref(), Some(&own));
        assert_eq!(
            (back.kind, back.method.as_deref()),
            (RpcErrorKind::Remote, Some("m"))
        );
    }

    #[test]
    fn a_remote_error_is_escaped() {
        let hostile = || "x\u{1b}[2J\ny".to_owned();
        let remote = RemoteError {
            type_name: hostile(),
            message: hostile(),
            causes: vec![hostile()],
            ..RemoteError::default()
        };
        let error = RpcError {
            remote: Some(Box::new(remote)),
            ..RpcError::new(RpcErrorKind::Remote, hostile())
        };
        let back = Refusal::into_error(&Refusal::new(error).to_bytes(), "m");
        let remote = back.remote.unwrap();
        assert_eq!(remote.type_name, "x\\u{1b}[2J\\ny");
        for text in [&back.message, &remote.message, &remote.causes[0]] {
            assert_eq!(text, "x\\u{1b}[2J\ny");
        }
        let unknown = Refusal::no_such_method(vec![hostile()]);
        let back = Refusal::into_error(&unknown.to_bytes(), "m");
        assert!(back.message.contains("x\\u{1b}[2J\\ny"), "{back:?}");
    }

    #[test]
    fn close_names_are_listed() {
        let offered = ["ps.push".to_owned(), "ps.pull".to_owned()];
        let text = no_such_method("server.push", &offered);
        assert!(text.contains("similar names are ps.push;"), "{text}");
        assert!(no_such_method("x", &offered).contains("it offers ps.push, ps.pull;"));
        let garbage = Refusal::into_error(&[0xff, 0xff], "m");
        assert_eq!(garbage.kind, RpcErrorKind::Protocol);
    }
}
