//! Health, metrics and status over HTTP, on a separate thread.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | 200 while the agent's own threads make progress, or 503; a line for each thread |
//! | `GET /metrics` | OpenMetrics text |
//! | `GET /status` | the worker group, and the group of its coordinator, as JSON |
//! | `GET /` from a browser, `/events`, `/stacks`, `/output` | the views: see `views/routes` |
//! | `/workers/⟨local rank⟩/…` | the answer of the worker's own server, through its socket |
//!
//! `rdzv store` serves the same pages, without the worker group, the views and the workers.
//!
//! Health needs no authentication, and the health port serves nothing else. If the job has a
//! token, everything else requires the bearer token from peers that do not use loopback. `rdzv
//! token --bearer FILE` prints it. The Unix socket serves the same pages except `/`, only to this
//! user and root.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path as Captured, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use rdzv_agent::health::{Liveness, SILENCE};
use rdzv_agent::launcher::host::name_so_far;
use rdzv_agent::observe::NodeReport;
use rdzv_rendezvous::{GroupReport, GroupStatus};
use rdzv_store::Token;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::views::routes;
use crate::views::server::JobServer;
use crate::views::socket::is_own;
use crate::views::web::page;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Sources of the answers.
#[derive(Debug)]
pub(crate) struct Sources {
    /// State of the agent's own threads.
    pub(crate) liveness: Liveness,
    /// Metrics for Prometheus.
    pub(crate) metrics: Registry,
    /// State of the worker group, and views of the job, if this is an agent.
    pub(crate) job: Option<JobServer>,
    /// State of the coordinator's group, if there may be one.
    pub(crate) group: Option<GroupStatus>,
    /// Token of the job, if it has one.
    pub(crate) token: Option<Token>,
    /// Directory of the workers' sockets, if they have any.
    pub(crate) worker_sockets: Option<PathBuf>,
}

pub(crate) struct Listener {
    socket: TcpListener,
    health_only: bool,
}

impl Listener {
    /// Binds a host and a port, for all pages or only for health.
    pub(crate) fn bind(host: &str, port: u16, health_only: bool) -> io::Result<Self> {
        let socket = TcpListener::bind((host, port))?;
        socket.set_nonblocking(true)?;
        let what = if health_only { "health" } else { "status" };
        info!("{what} at http://{}/", socket.local_addr()?);
        Ok(Self {
            socket,
            health_only,
        })
    }

    /// Binds a port on all addresses, only for health.
    pub(crate) fn health(port: u16) -> io::Result<Self> {
        let bound = Self::bind("::", port, true);
        bound.or_else(|_| Self::bind("0.0.0.0", port, true))
    }

    fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

/// Serves until the program ends, on TCP and on the socket of this user.
pub(crate) fn start(
    listeners: Vec<Listener>,
    socket: Option<UnixListener>,
    sources: Sources,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let sources = Arc::new(sources);
    let job = sources.job.clone();
    thread::Builder::new()
        .name("status".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                let mut servers = Vec::new();
                if let Some(socket) = socket {
                    servers.push(tokio::spawn(serve_user(socket, Arc::clone(&sources))));
                }
                if let Some(job) = job {
                    tokio::spawn(job.run());
                }
                for listener in listeners {
                    servers.push(tokio::spawn(serve(listener, Arc::clone(&sources))));
                }
                for server in servers {
                    let _ = server.await;
                }
            });
        })?;
    Ok(())
}

async fn serve(listener: Listener, sources: Arc<Sources>) {
    let address = listener.address();
    let served = match tokio::net::TcpListener::from_std(listener.socket) {
        Ok(socket) => {
            let routes = routes(sources, listener.health_only);
            let service = routes.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(socket, service).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        warn!("the server for health and status at {address:?} has stopped: {error}");
    }
}

/// Listening socket that accepts only processes of this user and of root.
struct UserListener(tokio::net::UnixListener);

impl axum::serve::Listener for UserListener {
    type Io = UnixStream;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let accepted = axum::serve::Listener::accept(&mut self.0).await;
            if is_own(&accepted.0) {
                return accepted;
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

async fn serve_user(socket: UnixListener, sources: Arc<Sources>) {
    let served = match tokio::net::UnixListener::from_std(socket) {
        Ok(socket) => {
            let routes = pages(&sources).with_state(sources);
            axum::serve(UserListener(socket), routes).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        warn!("the server for this user's views has stopped: {error}");
    }
}

fn routes(sources: Arc<Sources>, health_only: bool) -> Router {
    let health_routes = Router::new().route("/", get(health));
    if health_only {
        return health_routes.with_state(sources);
    }
    pages(&sources)
        .route_layer(from_fn_with_state(Arc::clone(&sources), authorize))
        .merge(Router::new().route("/", get(page_or_health)))
        .with_state(sources)
}

/// Returns the pages that need the token over TCP, except on loopback.
fn pages(sources: &Sources) -> Router<Arc<Sources>> {
    let pages = Router::new()
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/workers/{local_rank}/", any(worker_root))
        .route("/workers/{local_rank}/{*path}", any(worker_path));
    match &sources.job {
        Some(job) => pages.merge(routes::routes(job.clone()).with_state(())),
        None => pages,
    }
}

/// Answers `GET /`: the page of the job to a browser, health to other clients.
async fn page_or_health(
    sources: State<Arc<Sources>>,
    peer: ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let accepted = request.headers().get(header::ACCEPT);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    if sources.job.is_none() || !accepted.is_some_and(|accepted| accepted.contains("text/html")) {
        return health(sources).await.into_response();
    }
    if may(&sources, &peer, &request) {
        Html(page(None)).into_response()
    } else {
        refused()
    }
}

/// Requires the bearer token, if the job has one, except over loopback.
async fn authorize(
    State(sources): State<Arc<Sources>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if may(&sources, &peer, &request) {
        next.run(request).await
    } else {
        refused()
    }
}

/// `false` if a request over loopback names another machine.
///
/// Without this check, a page of another site whose name leads to loopback could read the answer
/// in the user's browser.
fn names_this_machine(peer: &SocketAddr, request: &Request) -> bool {
    let host = request.headers().get(header::HOST);
    let Some(host) = host.filter(|_| peer.ip().to_canonical().is_loopback()) else {
        return true;
    };
    let host = host.to_str().unwrap_or_default();
    let (name, _) = host.rsplit_once(':').unwrap_or((host, ""));
    let is_domain = name.contains('.') && name.parse::<IpAddr>().is_err();
    !is_domain || name == name_so_far()
}

fn may(sources: &Sources, peer: &SocketAddr, request: &Request) -> bool {
    if !names_this_machine(peer, request) {
        return false;
    }
    let shown = request.headers().get(header::AUTHORIZATION);
    let shown = shown.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    match &sources.token {
        Some(token) if !peer.ip().to_canonical().is_loopback() => {
            shown.is_some_and(|shown| token.is_bearer(shown))
        }
        _ => true,
    }
}

fn refused() -> Response {
    let text = "if the job has a token, send `Authorization: Bearer` with what \
                `rdzv token --bearer FILE` prints for its file; on loopback, use the address of \
                this machine or `localhost` in the URL\n";
    let scheme = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, scheme, text).into_response()
}

/// Answers `GET /`; waits up to 0.1 s for the answers of the threads.
async fn health(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let mut text = String::new();
    let mut code = StatusCode::OK;
    let pulses = sources.liveness.check();
    if pulses.is_empty() {
        text.push_str("starting\n");
    }
    for pulse in pulses {
        if !pulse.is_alive(SILENCE) {
            code = StatusCode::SERVICE_UNAVAILABLE;
        }
        // Writing to a String cannot fail.
        let _ = match pulse.silent {
            None => writeln!(text, "{}: has exited", pulse.name),
            Some(silent) if silent.is_zero() => writeln!(text, "{}: alive", pulse.name),
            Some(silent) => writeln!(
                text,
                "{}: no progress for {:.1} s (limit {} s)",
                pulse.name,
                silent.as_secs_f64(),
                SILENCE.as_secs()
            ),
        };
    }
    (code, text)
}

async fn metrics(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let mut text = String::new();
    match text::encode(&mut text, &sources.metrics) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            let kind = [(header::CONTENT_TYPE, "text/plain")];
            (code, kind, format!("cannot encode the metrics: {error}\n"))
        }
    }
}

#[derive(Serialize)]
struct Status {
    #[serde(flatten)]
    node: Option<NodeReport>,
    group: Option<GroupReport>,
}

/// Answers `GET /status`.
///
/// Waits up to 0.1 s for the thread of the store server.
async fn status(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let node = sources.job.as_ref().map(JobServer::node);
    let group = sources.group.as_ref().and_then(GroupStatus::look);
    let status = Status { node, group };
    let json = serde_json::to_string(&status).expect("its keys are text, so it is JSON");
    ([(header::CONTENT_TYPE, "application/json")], json)
}

/// Time limit for the start of a worker's answer; some handlers collect traces.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

async fn worker_root(
    State(sources): State<Arc<Sources>>,
    Captured(local_rank): Captured<u32>,
    request: Request,
) -> Response {
    forward(&sources, local_rank, "", request).await
}

/// Answers every path below `/workers/⟨local rank⟩/`.
async fn worker_path(
    State(sources): State<Arc<Sources>>,
    Captured((local_rank, _)): Captured<(u32, String)>,
    request: Request,
) -> Response {
    // The captured path is decoded, but the worker decodes the path too, so the raw path is sent.
    let path = request.uri().path().to_owned();
    let rest = path.splitn(4, '/').nth(3).unwrap_or_default();
    forward(&sources, local_rank, rest, request).await
}

async fn forward(sources: &Sources, local_rank: u32, path: &str, mut request: Request) -> Response {
    let Some(directory) = &sources.worker_sockets else {
        let text = "workers have no sockets; start the run with --worker-server\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let query = request.uri().query();
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let Ok(uri) = format!("/{path}{query}").parse::<Uri>() else {
        return (StatusCode::BAD_REQUEST, "the path is invalid\n").into_response();
    };
    *request.uri_mut() = uri;
    // The HTTP version and the `Connection` header belong to each connection, not to the request.
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().remove(header::CONNECTION);
    let host = HeaderValue::from_static("worker");
    request.headers_mut().insert(header::HOST, host);
    let socket = directory.join(local_rank.to_string());
    match timeout(ANSWER_TIMEOUT, ask(&socket, request)).await {
        Ok(Ok(response)) => response.map(Body::new).into_response(),
        Ok(Err(error)) => {
            let text = format!(
                "local rank {local_rank} does not answer at {}: {error}; its server runs only \
                 while the script is inside `worker_main`\n",
                socket.display()
            );
            (StatusCode::BAD_GATEWAY, text).into_response()
        }
        Err(_) => {
            let text = format!(
                "local rank {local_rank} has not answered within {} s\n",
                ANSWER_TIMEOUT.as_secs()
            );
            (StatusCode::GATEWAY_TIMEOUT, text).into_response()
        }
    }
}

async fn ask(
    socket: &Path,
    request: Request,
) -> Result<hyper::Response<hyper::body::Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Ends with the response, or with the worker.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
mod tests;
