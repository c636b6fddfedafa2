//! A store server that belongs to no agent, for runs whose nodes come and go.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use rdzv_testing::Process;

/// `rdzv store` on a free port; killed when this is dropped.
pub(crate) struct Store {
    _process: Process,
    pub(crate) address: SocketAddr,
}

impl Store {
    pub(crate) fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdzv"));
        command
            .args(["store", "--host", "127.0.0.1", "--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let process = Process::start(&mut command);
        let address = process.stdout.await_line("listening on ");
        Self {
            address: address.parse().unwrap(),
            _process: process,
        }
    }
}
