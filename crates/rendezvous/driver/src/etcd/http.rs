//! HTTP client for one etcd server, with support for streamed answers.
//!
//! [`Client::repeat`] retries a request while the server is unavailable. The clones of a [`Client`]
//! share its connections and keep them alive. A streamed answer uses a separate connection. The
//! client ignores the proxies in the environment, because etcd is inside the cluster. `v3.rs`
//! contains the API calls.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{fmt, fs};

use rdzv_lock::{Condvar, Mutex};
use rdzv_store::{local_address, resolve};
use rdzv_store_proto::limits::MAX_REPLY_BYTES;
use serde::de::DeserializeOwned;
use ureq::http::{Request, Response, header};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, BodyReader, Error, Timeout};

use super::failure::{Cause, Failure, Retry};
use super::options::{EtcdOptions, EtcdTlsFiles};
use crate::RendezvousError;

/// Maximum size of an answer, or of one line of a streamed answer, in bytes.
const LONGEST_ANSWER: u64 = MAX_REPLY_BYTES as u64;

/// Maximum number of objects, lists and their elements in one answer.
///
/// In JSON, each may take only two characters. In memory, each takes much more.
const MOST_PARTS: usize = 1 << 20;

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for one attempt.
///
/// etcd itself fails a request after 7 s if it has no leader.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Time without data after which a connection is considered dead and replaced.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Number of disconnections without an answer that indicate another protocol.
const HANG_UPS: u32 = 5;

/// HTTP client for one server.
///
/// Clones share their connections, and [`Client::close`] closes all of them.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: Agent,
    /// Scheme, host and port.
    base: String,
    endpoint: String,
    /// Time for which requests are retried while the server is unavailable.
    limit: Duration,
    addresses: Vec<SocketAddr>,
    closed: Arc<Closed>,
    met: Arc<Met>,
}

/// Answers and disconnections that the client has received from the server.
#[derive(Debug, Default)]
struct Met {
    answered: AtomicBool,
    /// Number of times that the server closed the connection without an answer.
    hung_up: AtomicU32,
}

#[derive(Debug, Default)]
struct Closed {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Client {
    /// Creates a client without connecting.
    ///
    /// Resolves the host name, but only for messages and for [`Client::local_address`]. A name that
    /// does not resolve is only a warning, because a later request may resolve it.
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, RendezvousError> {
        let mut config = Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT));
        let mut scheme = "http";
        if let Some(files) = &options.tls {
            scheme = "https";
            config = config.tls_config(tls_config(files)?);
        }
        let endpoint = &options.endpoint;
        let found = resolve(&endpoint.host, endpoint.port, Some(options.read_timeout));
        let addresses = found.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot resolve the etcd endpoint {endpoint}: {error}; check the host in \
                 --rdzv-endpoint and this host's name server; retrying for up to {} s",
                options.read_timeout.as_secs()
            );
            Vec::new()
        });
        let described = match addresses.first() {
            Some(address) if address.to_string() != endpoint.to_string() => {
                format!("the etcd endpoint {endpoint} ({address})")
            }
            _ => format!("the etcd endpoint {endpoint}"),
        };
        Ok(Self {
            agent: config.build().into(),
            base: format!("{scheme}://{}", options.endpoint),
            endpoint: described,
            limit: options.read_timeout,
            addresses,
            closed: Arc::default(),
            met: Arc::default(),
        })
    }

    /// Returns a client for the same server that is closed separately.
    pub(crate) fn separate(&self) -> Self {
        Self {
            agent: self.agent.config().clone().into(),
            closed: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns a separate client that retries for at most `limit`.
    pub(crate) fn with_limit(&self, limit: Duration) -> Self {
        Self {
            limit,
            ..self.separate()
        }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the server's name for use in errors, with its address if known.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the local address from which this machine reaches the server.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        let addresses = self.addresses.iter();
        addresses
            .copied()
            .find_map(|address| local_address(address).ok())
    }

    /// Calls `attempt` until it returns an answer or a final cause, or time is up.
    ///
    /// The `bool` is `true` if the server may have executed an earlier attempt whose answer was
    /// lost.
    pub(crate) fn repeat<T>(
        &self,
        operation: &'static str,
        key: impl fmt::Display,
        mut attempt: impl FnMut(Duration) -> Result<T, Cause>,
    ) -> Result<(T, bool), Failure> {
        let mut retry = Retry::within(self.limit);
        let mut repeated = false;
        loop {
            // The first attempt is made even if almost no time is left.
            let limit = retry.left().clamp(Duration::from_millis(100), ATTEMPT);
            let cause = match attempt(limit) {
                Ok(answer) => return Ok((answer, repeated)),
                Err(cause) => cause,
            };
            if let Cause::Away { reason, maybe_done } = &cause {
                tracing::debug!(endpoint = self.endpoint, reason, "etcd is unavailable");
                repeated |= maybe_done;
            }
            let again = cause.is_passing().then(|| retry.pause()).flatten();
            if again.is_none_or(|pause| self.pause(pause)) {
                return Err(retry.failure(operation, key, &self.endpoint, cause));
            }
        }
    }

    /// Sends a request and reads the complete answer within `limit`.
    ///
    /// `path` includes the escaped query. The request is a POST if it has a `body` in JSON, and a
    /// GET otherwise.
    pub(crate) fn send(
        &self,
        path: &str,
        body: Option<&str>,
        limit: Duration,
    ) -> Result<Response<Vec<u8>>, Cause> {
        let request = self.request(path, body)?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(limit))
            .build();
        let mut response = self.run(request)?;
        if response
            .body()
            .content_length()
            .is_some_and(|length| length > LONGEST_ANSWER)
        {
            return Err(too_long());
        }
        let body = response
            .body_mut()
            .with_config()
            .limit(LONGEST_ANSWER)
            .read_to_vec()
            .map_err(|error| cause(&error))?;
        Ok(response.map(|_| body))
    }

    /// Sends a JSON body, and returns the lines of the answer as they arrive.
    ///
    /// A read fails after [`SILENCE`] without data. The whole exchange takes at most `limit`.
    pub(crate) fn stream(
        &self,
        path: &str,
        body: &str,
        limit: Option<Duration>,
    ) -> Result<Lines, Cause> {
        let request = self.request(path, Some(body))?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(limit)
            .timeout_per_read(Some(SILENCE))
            .build();
        let response = self.run(request)?;
        let status = response.status().as_u16();
        let reader = BufReader::new(response.into_body().into_reader());
        Ok(Lines { status, reader })
    }

    /// Aborts all running and later requests of this client and its clones.
    ///
    /// The requests may run on any thread. A connection attempt is not aborted, but it has a
    /// timeout.
    pub(crate) fn close(&self) {
        *self.closed.closed.lock() = true;
        self.closed.changed.notify_all();
        self.agent.clone().shutdown();
    }

    /// Waits before the next attempt, unless the client is or becomes closed.
    ///
    /// Returns `true` if the client is closed.
    pub(crate) fn pause(&self, pause: Duration) -> bool {
        let closed = self.closed.closed.lock();
        let changed = &self.closed.changed;
        let (closed, _) = changed.wait_timeout_while(closed, pause, |closed| !*closed);
        *closed
    }

    fn run(&self, request: Request<&str>) -> Result<Response<Body>, Cause> {
        let error = match self.agent.run(request) {
            Ok(response) => {
                self.met.answered.store(true, Ordering::Relaxed);
                return Ok(response);
            }
            Err(error) => error,
        };
        let hung_up = matches!(&error, Error::Io(io) if io.kind() == io::ErrorKind::UnexpectedEof);
        // A server that is shutting down also does this, but such a server has answered before.
        if hung_up
            && !self.met.answered.load(Ordering::Relaxed)
            && self.met.hung_up.fetch_add(1, Ordering::Relaxed) + 1 >= HANG_UPS
        {
            let found = "it closed the connection without an HTTP response";
            return Err(Cause::NotEtcd(found.to_owned()));
        }
        Err(cause(&error))
    }

    fn request<'a>(&self, path: &str, body: Option<&'a str>) -> Result<Request<&'a str>, Cause> {
        let url = format!("{}{path}", self.base);
        let request = match body {
            Some(_) => Request::post(url).header(header::CONTENT_TYPE, "application/json"),
            None => Request::get(url),
        };
        let request = request.body(body.unwrap_or_default());
        request.map_err(|error| Cause::Refused {
            code: 0,
            message: format!("cannot encode the request ({error})"),
        })
    }
}

/// Answer that the caller reads line by line.
pub(crate) struct Lines {
    /// HTTP status.
    pub(crate) status: u16,
    reader: BufReader<BodyReader<'static>>,
}

impl Lines {
    /// Returns the next line without its terminator, or `None` at the end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let read = self
            .reader
            .by_ref()
            .take(LONGEST_ANSWER)
            .read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if read as u64 == LONGEST_ANSWER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok((read > 0).then_some(line))
    }
}

/// Parses JSON. The error describes why the input is invalid.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Cause> {
    let parts = body
        .iter()
        .filter(|byte| matches!(byte, b'{' | b'[' | b','));
    if parts.count() > MOST_PARTS {
        return Err(Cause::TooLong(format!("{MOST_PARTS} parts")));
    }
    serde_json::from_slice(body).map_err(|error| Cause::NotEtcd(error.to_string()))
}

/// Returns the cause for an answer that exceeds [`LONGEST_ANSWER`].
pub(super) fn too_long() -> Cause {
    Cause::TooLong(format!("{LONGEST_ANSWER} bytes"))
}

/// Returns `true` if a read of [`Lines`] failed only because it timed out.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>())
    {
        Some(Error::Timeout(_)) => true,
        _ => error.kind() == io::ErrorKind::TimedOut,
    }
}

/// Converts an error from the HTTP client into a cause.
fn cause(error: &Error) -> Cause {
    let away = |maybe_done| Cause::away(error.to_string(), maybe_done);
    match error {
        Error::HostNotFound
        | Error::ConnectionFailed
        | Error::Timeout(Timeout::Resolve | Timeout::Connect) => away(false),
        Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Cause::away("connection refused", false)
        }
        Error::Io(_) | Error::Timeout(_) | Error::BodyStalled => away(true),
        Error::BodyExceedsLimit(_) => too_long(),
        other => Cause::NotEtcd(other.to_string()),
    }
}

/// Reads the certificate files.
fn tls_config(files: &EtcdTlsFiles) -> Result<TlsConfig, RendezvousError> {
    let mut config = TlsConfig::builder();
    if let Some(authority) = &files.authority {
        config = config.root_certs(RootCerts::new_with_certs(&certificates(authority)?));
    }
    if let Some((certificate, key)) = &files.identity {
        let client = ClientCert::new_with_certs(&certificates(certificate)?, private_key(key)?);
        config = config.client_cert(Some(client));
    }
    Ok(config.build())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, RendezvousError> {
    let pem = read_file(path)?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(unusable(path, "it contains no PEM certificate"));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, RendezvousError> {
    PrivateKey::from_pem(&read_file(path)?).map_err(|error| unusable(path, &error.to_string()))
}

fn read_file(path: &Path) -> Result<Vec<u8>, RendezvousError> {
    fs::read(path).map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> RendezvousError {
    RendezvousError::Argument(format!(
        "The etcd certificate file {} cannot be used: {why}.",
        path.display()
    ))
}
