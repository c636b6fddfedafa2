//! Health, metrics and status over HTTP, on a thread of its own that sleeps until it is asked.
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | 200 while the agent's own threads make progress, else 503 with the silent ones |
//! | `GET /metrics` | OpenMetrics text |
//! | `GET /status` | the worker group as JSON |
//! | `/workers/⟨local rank⟩/…` | whatever the worker's own server says (`workers`) |
//!
//! The health port serves `/` alone: it is open to everybody.

mod workers;

use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{any, get};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use rdzv_agent::health::{Liveness, SILENCE};
use rdzv_agent::observe::NodeStatus;
use tokio::runtime::Builder;
use tracing::{info, warn};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What there is to tell.
#[derive(Debug)]
pub(crate) struct Told {
    /// The agent's own threads.
    pub(crate) liveness: Liveness,
    /// Everything for Prometheus.
    pub(crate) metrics: Registry,
    /// The worker group.
    pub(crate) status: Arc<Mutex<NodeStatus>>,
    /// Where the workers' sockets are, if they have any.
    pub(crate) worker_sockets: Option<PathBuf>,
}

/// A socket that listens.
pub(crate) struct Listener {
    socket: TcpListener,
    health_only: bool,
}

impl Listener {
    /// Binds a host and a port, for everything or for health alone.
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

    /// Binds a port on all addresses, IPv6 and IPv4 where there are both, for health alone.
    pub(crate) fn health(port: u16) -> io::Result<Self> {
        let bound = Self::bind("::", port, true);
        bound.or_else(|_| Self::bind("0.0.0.0", port, true))
    }

    fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }
}

/// Serves until the program ends.
pub(crate) fn start(listeners: Vec<Listener>, told: Told) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let told = Arc::new(told);
    thread::Builder::new()
        .name("status".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                let mut servers = Vec::new();
                for listener in listeners {
                    servers.push(tokio::spawn(serve(listener, Arc::clone(&told))));
                }
                for server in servers {
                    let _ = server.await;
                }
            });
        })?;
    Ok(())
}

async fn serve(listener: Listener, told: Arc<Told>) {
    let address = listener.address();
    let served = match tokio::net::TcpListener::from_std(listener.socket) {
        Ok(socket) => axum::serve(socket, routes(told, listener.health_only)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        warn!("serving health and status at {address:?} has ended: {error}");
    }
}

fn routes(told: Arc<Told>, health_only: bool) -> Router {
    let health_routes = Router::new().route("/", get(health));
    if health_only {
        return health_routes.with_state(told);
    }
    health_routes
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/workers/{local_rank}/", any(workers::root))
        .route("/workers/{local_rank}/{*path}", any(workers::path))
        .with_state(told)
}

/// Waits for a tenth of a second if a thread does not answer at once.
async fn health(State(told): State<Arc<Told>>) -> impl IntoResponse {
    let mut text = String::new();
    let mut code = StatusCode::OK;
    let pulses = told.liveness.check();
    if pulses.is_empty() {
        text.push_str("starting\n");
    }
    for pulse in pulses {
        if !pulse.is_alive(SILENCE) {
            code = StatusCode::SERVICE_UNAVAILABLE;
        }
        // Writing to a String cannot fail.
        let _ = match pulse.silent {
            None => writeln!(text, "{}: has ended", pulse.name),
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

async fn metrics(State(told): State<Arc<Told>>) -> impl IntoResponse {
    let mut text = String::new();
    match text::encode(&mut text, &told.metrics) {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            let kind = [(header::CONTENT_TYPE, "text/plain")];
            (code, kind, format!("encode the metrics: {error}\n"))
        }
    }
}

async fn status(State(told): State<Arc<Told>>) -> impl IntoResponse {
    let status = told.status.lock();
    let status = status.unwrap_or_else(PoisonError::into_inner);
    let json = serde_json::to_string(&*status).expect("its keys are text, so it is JSON");
    ([(header::CONTENT_TYPE, "application/json")], json)
}

#[cfg(test)]
mod tests;
