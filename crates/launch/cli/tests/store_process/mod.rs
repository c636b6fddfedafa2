//! Store server that belongs to no agent, for runs with a changing membership.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use rdzv_testing::Process;

/// Process of `rdzv store` on a free port; it is killed on drop.
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
