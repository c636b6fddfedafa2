//! `rdzv store`: a key/value store on its own, until it is told to end.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdzv_store::{ServerOptions, TcpStoreServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::store::StoreArgs;
use crate::exit::Exit;
use crate::terminal::complain;

/// How long clients have to leave once the server is told to end.
const LINGER: Duration = Duration::from_millis(200);

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub(crate) fn run(arguments: &StoreArgs) -> ExitCode {
    match serve(arguments) {
        Ok(()) => Exit::Success.into(),
        Err(error) => {
            complain(&format!("rdzv store: {error:#}"));
            Exit::Failure.into()
        }
    }
}

fn serve(arguments: &StoreArgs) -> anyhow::Result<()> {
    raise_open_files_limit();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    // Before anybody learns that we are here, so that no signal can come too early.
    let mut ends = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ]
    .into_iter()
    .map(signal)
    .collect::<io::Result<Vec<_>>>()
    .context("handle signals")?;
    let server = TcpStoreServer::start(ServerOptions {
        host: arguments.host.clone(),
        port: arguments.port,
        listener: None,
        limits: arguments.limits(),
    })
    // The text is complete; as a cause it would be told twice.
    .map_err(|error| anyhow!("failed to {error}"))?;
    let mut stdout = io::stdout().lock();
    // A reader that went away has no use for the line, but its clients may have for the store.
    let _ = writeln!(stdout, "listening on {}", server.local_addr());
    let _ = stdout.flush();
    drop(stdout);
    let [terminate, interrupt, hangup] = &mut ends[..] else {
        unreachable!("three signals make three streams")
    };
    runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    });
    server.shutdown(LINGER);
    Ok(())
}

/// Every connection is a descriptor, and the usual soft limit is 1024 of them.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("raise the limit of open files: {error}");
    }
}
