//! A store server that belongs to no agent, for runs whose nodes come and go.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// `rdzv store` on a free port; killed when this is dropped.
pub(crate) struct Store {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Store {
    pub(crate) fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rdzv"))
            .args(["store", "--host", "127.0.0.1", "--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.strip_prefix("listening on ").unwrap().trim_end();
        Self {
            address: address.parse().unwrap(),
            child,
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
