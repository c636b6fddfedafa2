//! The server thread, which accepts connections. Other threads call handlers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rdzv_core::escape::escape;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{sleep, timeout};

use crate::{Answer, Handler, HttpRequest};

const PAGE: &str =
    "<h1>torch.distributed.WorkerServer</h1>\n<a href=\"/handler/\">Handler names</a>\n";

/// Path prefix of the handlers.
const HANDLERS: &str = "/handler/";

/// Largest body of a request, in bytes.
const LARGEST_BODY: usize = 1 << 20;

/// Time that a client has for the header of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a client has for the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept, usually for lack of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(250);

type Handlers = Arc<BTreeMap<String, Handler>>;

pub(super) enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Starts the thread, which ends once the other end of `ended` is dropped.
pub(super) fn spawn(
    socket: Socket,
    handlers: BTreeMap<String, Handler>,
    ended: oneshot::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handlers = Arc::new(handlers);
    thread::Builder::new()
        .name("worker-server".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    failed = serve(socket, handlers) => if let Err(error) = failed {
                        tracing::warn!(%error, "the worker's control plane has stopped");
                    },
                    _ = ended => {}
                }
            });
            // A handler that does not return must not delay the end of the worker.
            runtime.shutdown_background();
        })
}

async fn serve(socket: Socket, handlers: Handlers) -> io::Result<()> {
    match socket {
        Socket::Unix(listener) => {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => converse(stream, &handlers),
                    Err(_) => sleep(ACCEPT_BACKOFF).await,
                }
            }
        }
        Socket::Tcp(listener) => {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => converse(stream, &handlers),
                    Err(_) => sleep(ACCEPT_BACKOFF).await,
                }
            }
        }
    }
}

/// Answers the requests of one connection in a separate task.
fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, handlers: &Handlers) {
    let handlers = Arc::clone(handlers);
    tokio::spawn(async move {
        let service = service_fn(|request| {
            let handlers = Arc::clone(&handlers);
            async move { Ok::<_, Infallible>(render(answer(&handlers, request).await)) }
        });
        // Errors of a client that disconnects or speaks another protocol are ignored.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
}

async fn answer(handlers: &Handlers, request: hyper::Request<Incoming>) -> Option<Answer> {
    let path = request.uri().path().to_owned();
    match (request.method(), &*path) {
        (&Method::GET, "/") => Some(Answer::new(200, "text/html", PAGE)),
        (&Method::GET, HANDLERS) => {
            let names: Vec<&String> = handlers.keys().collect();
            Some(match serde_json::to_string(&names) {
                Ok(json) => Answer::json(json),
                Err(error) => Answer::new(500, "text/plain", error.to_string()),
            })
        }
        (&Method::POST, _) => {
            let name = path
                .strip_prefix(HANDLERS)
                .filter(|name| !name.is_empty())?;
            let name = decoded(name);
            let Some(handler) = handlers.get(&name) else {
                let name = escape(&name);
                let text = format!("Handler {name} not found: Failed to find handler {name}");
                return Some(Answer::new(404, "text/plain", text));
            };
            Some(ask(&name, Arc::clone(handler), request).await)
        }
        _ => None,
    }
}

async fn ask(name: &str, handler: Handler, request: hyper::Request<Incoming>) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let parameters = form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect();
    let too_large = || {
        let text = format!("the body has more than {LARGEST_BODY} bytes");
        Answer::new(413, "text/plain", text)
    };
    // The server answers before it reads the body, because it would not accept the body.
    if request.body().size_hint().lower() > LARGEST_BODY as u64 {
        return too_large();
    }
    let body = Limited::new(request.into_body(), LARGEST_BODY).collect();
    let Ok(body) = timeout(BODY_TIMEOUT, body).await else {
        return Answer::new(408, "text/plain", "the body did not arrive");
    };
    let body = match body {
        Ok(body) => body.to_bytes().to_vec(),
        Err(error) if error.is::<LengthLimitError>() => return too_large(),
        Err(error) => return Answer::new(400, "text/plain", error.to_string()),
    };
    let request = HttpRequest { parameters, body };
    let answered = spawn_blocking(move || handler(&request)).await;
    answered.unwrap_or_else(|error| {
        let text = format!("Handler {name} failed: {}", panic_text(error));
        Answer::new(500, "text/plain", text)
    })
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else {
        return "the worker is shutting down".to_owned();
    };
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it panicked".to_owned())
}

/// Decodes a percent-encoded name (`%20` is a space).
fn decoded(name: &str) -> String {
    percent_encoding::percent_decode_str(name)
        .decode_utf8_lossy()
        .into_owned()
}

/// Renders an answer; `None` becomes 404 without content.
fn render(answer: Option<Answer>) -> Response<Full<Bytes>> {
    let empty = |status| {
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        response
    };
    let Some(answer) = answer else {
        return empty(hyper::StatusCode::NOT_FOUND);
    };
    Response::builder()
        .status(answer.status)
        .header(CONTENT_TYPE, answer.content_type)
        .body(Full::new(Bytes::from(answer.content)))
        // The handler returned a status or a content type that HTTP does not allow.
        .unwrap_or_else(|_| empty(hyper::StatusCode::INTERNAL_SERVER_ERROR))
}
