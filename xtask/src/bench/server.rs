//! A server that is measured, or that those who are measured meet at.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// A server that runs until this is dropped.
pub(super) struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Starts it, and waits until it says where it listens: at the end of its first line.
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // PyTorch's server reports every reply that a closed connection does not take.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {:?}", command.get_program()))?;
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line)?;
        let server = Self {
            process,
            port: port(&line).with_context(|| format!("a server said '{}'", line.trim()))?,
        };
        Ok(server)
    }

    /// Its address on loopback.
    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn port(line: &str) -> Option<u16> {
    line.trim().rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::port;

    #[test]
    fn the_port_stands_at_the_end_of_the_line() {
        assert_eq!(port("listening on [::]:29500\n"), Some(29500));
        assert_eq!(port("listening on 127.0.0.1:1\n"), Some(1));
        assert_eq!(port(""), None);
    }
}
