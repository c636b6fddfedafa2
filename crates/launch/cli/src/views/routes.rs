//! The routes of the views.
//!
//! | request | answer |
//! |---|---|
//! | `GET /events` | the messages of the job, as server-sent events |
//! | `GET /stacks?rank=N` | stacks of all ranks of the job, or of one |
//! | `GET /output?rank=N&from=N&lines=N&stderr=1` | lines that a rank wrote to its file |
//! | the same with `wait=1` | the same, but waits up to 4 s for a line |
//! | the same with `pid=N` | the same, but from the start if the rank runs in another process now |

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::channel::Channel;
use rdzv_agent::observe::OutputTail;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::job::{ALONE, Message, Output, Question};
use super::server::{JobServer, MOST_VIEWERS, PERIOD};

/// Returns the routes of the views.
pub(crate) fn routes(server: JobServer) -> Router {
    Router::new()
        .route("/events", get(events))
        .route("/stacks", get(all_stacks))
        .route("/output", get(output))
        .with_state(server)
}

/// Answers `GET /events` until the run ends, or the viewer exits or is slow.
async fn events(State(server): State<JobServer>) -> Response {
    let Some((viewer, job, mut messages)) = server.attach() else {
        let text = format!("{MOST_VIEWERS} viewers are attached to this agent already\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let (mut sender, body) = Channel::<axum::body::Bytes>::new(16);
    tokio::spawn(async move {
        let _viewer = viewer;
        for message in job {
            if sender.send_data(event(&message).into()).await.is_err() {
                return;
            }
        }
        loop {
            let text = match timeout(PERIOD * 5, messages.recv()).await {
                Ok(Ok(text)) if text.is_empty() => return,
                Ok(Ok(text)) => format!("data: {text}\n\n"),
                // The viewer is too slow. When it connects again, it gets the whole job.
                Ok(Err(_)) => return,
                Err(_) => ":\n\n".to_owned(),
            };
            if sender.send_data(text.into()).await.is_err() {
                return;
            }
        }
    });
    let kind = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (kind, Body::new(body)).into_response()
}

fn event(message: &Message) -> String {
    let text = serde_json::to_string(message).unwrap_or_default();
    format!("data: {text}\n\n")
}

/// Parameters of a question.
#[derive(Debug, Deserialize)]
struct Asked {
    rank: Option<u32>,
    from: Option<u64>,
    pid: Option<u32>,
    lines: Option<usize>,
    stderr: Option<u8>,
    wait: Option<u8>,
}

/// Answers `GET /stacks`.
async fn all_stacks(State(server): State<JobServer>, Query(asked): Query<Asked>) -> Response {
    let question = Question {
        rank: asked.rank,
        ..Question::default()
    };
    let is_one = asked.rank.is_some();
    let answers = server.ask(question, |answers, nodes| {
        let some = answers.iter().any(|answer| !answer.stacks.is_empty());
        is_one && some || answers.len() >= nodes
    });
    let answers = answers.await;
    let mut stacks: Vec<_> = answers.into_iter().flat_map(|it| it.stacks).collect();
    stacks.sort_by_key(|stack| stack.rank);
    json(&stacks)
}

/// Answers `GET /output`.
async fn output(State(server): State<JobServer>, Query(asked): Query<Asked>) -> Response {
    let question = Question {
        rank: Some(asked.rank.unwrap_or(0)),
        output: Some(Output {
            from: asked.from,
            pid: asked.pid.unwrap_or_default(),
            lines: asked.lines,
            is_stderr: asked.stderr.is_some_and(|stderr| stderr != 0),
            waits: asked.wait.is_some_and(|wait| wait != 0),
        }),
        ..Question::default()
    };
    let answers = server.ask(question, |answers, _| {
        answers.iter().any(|answer| answer.tail.is_some())
    });
    let answers = answers.await;
    let text = match answers.into_iter().find_map(|answer| answer.tail) {
        Some(tail) => return json(&tail),
        // The rank has no process during a restart.
        None if let (Some(next), Some(pid)) = (asked.from, asked.pid) => {
            sleep(PERIOD).await;
            return json(&OutputTail {
                next,
                pid,
                ..OutputTail::default()
            });
        }
        None if server.node().is_alone => format!("the rank is not on this node; {ALONE}\n"),
        None => "no agent of the job has this rank\n".to_owned(),
    };
    (StatusCode::NOT_FOUND, text).into_response()
}

fn json(value: &impl serde::Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
