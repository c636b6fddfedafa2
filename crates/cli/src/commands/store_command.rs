//! `rdzv store`: a key/value store on its own, until a signal ends it.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rdzv_store::{Admission, Limits, ServerOptions, TcpStoreServer, parse_size};

use crate::exit::Exit;
use crate::terminal::{complain, finish_lines, start_lines};
use crate::trust::{self, NO_TOKEN, Trust, TrustArgs};

/// Flags of `rdzv store`.
#[derive(Debug, Clone, Args, PartialEq, Eq)]
pub(crate) struct StoreArgs {
    /// Name or address to listen on; not given, all addresses of this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port to listen on; 0 picks a free one
    ///
    /// The address in use is the first line on stdout.
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    port: u16,

    /// Longest key
    #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = parse_size)]
    max_key_size: usize,

    /// Longest value of one request
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_size)]
    max_value_size: usize,

    /// Most keys in the store
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    max_keys: usize,

    /// Most connections at a time
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    max_connections: usize,

    /// Most memory for keys, values and the buffers of all connections
    ///
    /// One connection may use an eighth of it, one address from which no agent has joined a quarter, and
    /// all but agents three quarters. A peer that is over its share is refused, and the others go on.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    max_memory: usize,

    #[command(flatten, next_help_heading = "The secret of the job")]
    trust: TrustArgs,
}

impl StoreArgs {
    /// The bounds that these flags set; the others are the server's own.
    fn limits(&self) -> Limits {
        Limits {
            max_key_bytes: self.max_key_size,
            max_value_bytes: self.max_value_size,
            max_keys: self.max_keys,
            max_connections: self.max_connections,
            max_memory_bytes: self.max_memory,
            ..Limits::default()
        }
    }
}

/// The time for clients to leave once the server is to end.
const LINGER: Duration = Duration::from_millis(200);

/// The time for the reader of stderr to take the last lines.
const FINAL_FLUSH: Duration = Duration::from_millis(200);

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub(crate) fn run(arguments: &StoreArgs) -> ExitCode {
    let directory = std::env::current_dir().unwrap_or_default();
    let trust = arguments
        .trust
        .resolve(|name| std::env::var_os(name), &directory);
    // Its bytes have been read.
    trust::remove_copy();
    let trust = match trust {
        Ok(trust) => trust,
        Err(refusal) => {
            complain(&format!("rdzv store: {refusal}"));
            return Exit::Usage.into();
        }
    };
    let code = match serve(arguments, trust) {
        Ok(()) => Exit::Success,
        Err(error) => {
            complain(&format!("rdzv store: {error:#}"));
            Exit::Failure
        }
    };
    finish_lines(Some(FINAL_FLUSH));
    code.into()
}

fn serve(arguments: &StoreArgs, trust: Trust) -> anyhow::Result<()> {
    rdzv_agent::host::raise_open_files_limit();
    // Before anybody learns that we are here, so that no signal can come too early.
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    ends.thread_block().context("handle signals")?;
    // After that, so that its thread takes no signal either.
    start_lines();
    let ends = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC).context("handle signals")?;
    for warning in &trust.warnings {
        tracing::warn!("{warning}");
    }
    let is_open = trust.credentials.is_empty();
    let options = ServerOptions {
        admission: Admission {
            credentials: trust.credentials,
            torch_clients: trust.torch_clients,
            agent_prefix: None,
        },
        host: arguments.host.clone(),
        port: arguments.port,
        limits: arguments.limits(),
        extension: Some(rdzv_rendezvous::dynamic::native::extension()),
        ..ServerOptions::default()
    };
    TcpStoreServer::serve(options, ends.into(), LINGER, |address| {
        if is_open && !address.ip().is_loopback() {
            tracing::warn!("{NO_TOKEN}");
        }
        let mut stdout = io::stdout().lock();
        // A reader that went away has no use for the line, but its clients may have for the store.
        let _ = writeln!(stdout, "listening on {address}");
        let _ = stdout.flush();
    })
    // The text is complete; as a cause it would be told twice.
    .map_err(|error| anyhow!("failed to {error}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreArgs,
    }

    #[test]
    fn the_defaults_are_the_servers() {
        let line = Line::try_parse_from(["store"]).unwrap();
        assert_eq!(line.store.limits(), Limits::default());
    }
}
