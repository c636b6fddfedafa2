//! Control socket of workers that recover in their processes (`--in-process`).
//!
//! Each side writes one JSON object per line. `docs/recovery.md` lists the messages. The process id
//! of the peer, which the kernel reports, identifies the worker.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdzv_agent_proto::group::GroupInput;
use rdzv_core::rank::LocalRank;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::private_directory;

/// Pause after a failed `accept`.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Message of a worker; unknown fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Message {
    Hello {},
    Ready { round: u64 },
    Failed { round: u64 },
}

enum Event {
    Connected(u32, OwnedWriteHalf),
    Line(u32, Message),
}

/// Server of the control socket.
#[derive(Debug)]
pub(crate) struct Control {
    directory: PathBuf,
    path: PathBuf,
    events: UnboundedReceiver<Event>,
    /// Connections by the process id of the worker.
    writers: BTreeMap<u32, OwnedWriteHalf>,
    /// Round of each worker, by its process id.
    rounds: BTreeMap<u32, u64>,
}

impl Control {
    /// Creates the socket below `base`; must be called inside the runtime.
    pub(crate) fn new(base: &Path) -> io::Result<Self> {
        let directory = private_directory::unique(base, "rdzv_control")?;
        let path = directory.join("control");
        let listener = UnixListener::bind(&path)?;
        let (sender, events) = unbounded_channel();
        spawn_local(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // The process has too many open files, for example.
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) else {
                    continue;
                };
                let (reader, writer) = stream.into_split();
                if sender.send(Event::Connected(pid, writer)).is_err() {
                    return;
                }
                let sender = sender.clone();
                spawn_local(async move {
                    let mut lines = BufReader::new(reader).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        if let Ok(message) = serde_json::from_str(&line) {
                            let _ = sender.send(Event::Line(pid, message));
                        }
                    }
                });
            }
        });
        Ok(Self {
            directory,
            path,
            events,
            writers: BTreeMap::new(),
            rounds: BTreeMap::new(),
        })
    }

    pub(crate) fn path(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Sets the round in which a worker runs its function.
    pub(crate) fn enter(&mut self, pid: u32, round: u64) {
        self.rounds.insert(pid, round);
    }

    /// Returns the round in which a worker runs its function.
    pub(crate) fn round(&self, pid: u32) -> u64 {
        self.rounds.get(&pid).copied().unwrap_or(0)
    }

    /// Forgets a worker that has exited.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.writers.remove(&pid);
        self.rounds.remove(&pid);
    }

    /// Sends a worker a message.
    /// The message is lost if the worker does not read. A worker that does not react to an abort is
    /// killed after the abort timeout.
    pub(crate) fn send(&self, pid: u32, message: &Value) {
        if let Some(writer) = self.writers.get(&pid) {
            let _ = writer.try_write(format!("{message}\n").as_bytes());
        }
    }

    /// Waits for the next message of a worker.
    /// `local_rank` maps process ids to workers. Cancel-safe: the caller may drop the future.
    pub(crate) async fn next(
        &mut self,
        local_rank: impl Fn(u32) -> Option<LocalRank>,
    ) -> GroupInput {
        loop {
            match self.events.recv().await {
                Some(Event::Connected(pid, writer)) if local_rank(pid).is_some() => {
                    self.writers.insert(pid, writer);
                }
                Some(Event::Line(pid, message)) => {
                    let Some(worker) = local_rank(pid) else {
                        continue;
                    };
                    let own = self.round(pid);
                    match message {
                        Message::Hello {} => return GroupInput::Recoverable(worker),
                        Message::Ready { round } if round == own => {
                            return GroupInput::Ready(worker);
                        }
                        Message::Failed { round } if round == own => {
                            return GroupInput::Raised(worker);
                        }
                        _ => {}
                    }
                }
                Some(Event::Connected(..)) => {}
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
