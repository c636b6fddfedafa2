//! Detection of torchrun agents that use a run through etcd's v2 API.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rdzv_core::ident::RunId;
use serde_json::Value;
use ureq::http::StatusCode;

use super::http::{Client, parse};
use super::v3::refusal;
use crate::RendezvousError;

/// The folder of the v2 API in which torchrun keeps the states of all runs.
const FOLDER: &str = "/torch/elastic/rendezvous/";

/// Fails if torchrun agents use the run, because they cannot join it here.
///
/// A server answers 404 if the key does not exist, or if it does not serve the v2 API.
pub(super) fn refuse_run_of_torchrun(
    client: &Client,
    run_id: &RunId,
) -> Result<(), RendezvousError> {
    let key = format!("{FOLDER}{run_id}");
    let name = utf8_percent_encode(run_id.as_str(), NON_ALPHANUMERIC);
    let path = format!("/v2/keys{FOLDER}{name}?quorum=true");
    let (is_there, _) = client.repeat("read", &key, |limit| {
        let (head, body) = client.send(&path, None, limit)?.into_parts();
        match head.status {
            StatusCode::OK => Ok(parse::<Value>(&body)?.get("node").is_some()),
            status if status.is_server_error() => Err(refusal(status.as_u16(), &body)),
            _ => Ok(false),
        }
    })?;
    if is_there {
        return Err(RendezvousError::Argument(format!(
            "agents of torchrun use run '{run_id}' through etcd's v2 API (key '{key}') at {}, and \
             --rdzv-backend etcd-v2 cannot join them: start all agents with --rdzv-backend c10d, or \
             use another --rdzv-id",
            client.endpoint()
        )));
    }
    Ok(())
}
