//! `rdzv store`: a key/value store on its own, until it is told to end.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rdzv_store::{ServerOptions, TcpStoreServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
    // Before anybody learns that we are here, so that no signal can come too early.
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    ends.thread_block().context("handle signals")?;
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC).context("handle signals")?;
    let options = ServerOptions {
        host: arguments.host.clone(),
        port: arguments.port,
        listener: None,
        limits: arguments.limits(),
        extension: Some(rdzv_rendezvous::dynamic::native::extension()),
    };
    TcpStoreServer::serve(options, ends.into(), LINGER, |address| {
        let mut stdout = io::stdout().lock();
        // A reader that went away has no use for the line, but its clients may have for the store.
        let _ = writeln!(stdout, "listening on {address}");
        let _ = stdout.flush();
    })
    // The text is complete; as a cause it would be told twice.
    .map_err(|error| anyhow!("failed to {error}"))
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
