//! Requests for a worker's own server, passed on to its socket.
//!
//! `/workers/2/handler/ping` becomes `/handler/ping` at the socket of local rank 2, with method,
//! query and body as they are; the answer comes back as it is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path as Captured, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::Told;

/// How long a worker may take to begin its answer. Some handlers collect traces.
const PATIENCE: Duration = Duration::from_secs(60);

/// `/workers/⟨local rank⟩/`.
pub(super) async fn root(
    State(told): State<Arc<Told>>,
    Captured(local_rank): Captured<u32>,
    request: Request,
) -> Response {
    pass(&told, local_rank, "", request).await
}

/// Anything below it.
pub(super) async fn path(
    State(told): State<Arc<Told>>,
    Captured((local_rank, _)): Captured<(u32, String)>,
    request: Request,
) -> Response {
    // As it was sent: what was captured is decoded, and the worker decodes it itself.
    let path = request.uri().path().to_owned();
    let rest = path.splitn(4, '/').nth(3).unwrap_or_default();
    pass(&told, local_rank, rest, request).await
}

async fn pass(told: &Told, local_rank: u32, path: &str, mut request: Request) -> Response {
    let Some(directory) = &told.worker_sockets else {
        let text = "workers have no sockets; start the run with --worker-server\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let query = request.uri().query();
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let Ok(uri) = format!("/{path}{query}").parse::<Uri>() else {
        return (StatusCode::BAD_REQUEST, "this is no path\n").into_response();
    };
    *request.uri_mut() = uri;
    // The version is a matter of each connection, and so is whether it stays.
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().remove(header::CONNECTION);
    let host = HeaderValue::from_static("worker");
    request.headers_mut().insert(header::HOST, host);
    let socket = directory.join(local_rank.to_string());
    match timeout(PATIENCE, ask(&socket, request)).await {
        Ok(Ok(response)) => response.map(Body::new).into_response(),
        Ok(Err(error)) => {
            let text = format!(
                "local rank {local_rank} does not answer at {}: {error}; its server is there while \
                 the script is inside `worker_main`\n",
                socket.display()
            );
            (StatusCode::BAD_GATEWAY, text).into_response()
        }
        Err(_) => {
            let text = format!(
                "local rank {local_rank} has not answered within {} s\n",
                PATIENCE.as_secs()
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
