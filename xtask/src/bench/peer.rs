//! Child processes that answer requests, or serve the measured processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::Context;
use serde_json::Value;

use super::launcher::Running;

/// Child process that answers lines, and is killed when this value is dropped.
pub(crate) struct Peer {
    process: Running,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        Ok(Self {
            questions: process.0.stdin.take().expect("stdin is piped"),
            answers: BufReader::new(process.0.stdout.take().expect("stdout is piped")),
            process,
        })
    }

    /// Sends one line.
    pub(super) fn tell(&mut self, what: &str) -> anyhow::Result<()> {
        writeln!(self.questions, "{what}").with_context(|| format!("cannot send '{what}'"))
    }

    /// Reads the next line of the process and parses it as JSON.
    pub(super) fn answer(&mut self) -> anyhow::Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("bad answer: '{}'", line.trim()))
    }

    /// Sends one line, and returns the answer as JSON.
    pub(crate) fn ask(&mut self, what: &str) -> anyhow::Result<Value> {
        self.tell(what)?;
        self.answer()
    }

    /// Waits for the process to exit, without a signal.
    pub(super) fn end(mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.process.0.wait()?)
    }

    /// Reads the next line. The string is empty at the end of the output.
    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line)
    }
}

/// Server process that is killed when this value is dropped.
pub(crate) struct Server {
    peer: Peer,
    pub(super) port: u16,
}

impl Server {
    /// Starts the server and reads its port, from the end of its first line.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // PyTorch's server logs every reply that it cannot send on a closed connection.
        let mut peer = Peer::start(command.stderr(Stdio::null()))?;
        let line = peer.line()?;
        let port = port(&line).with_context(|| format!("a server printed '{}'", line.trim()))?;
        Ok(Self { peer, port })
    }

    /// Returns the address of the server on loopback.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn process_id(&self) -> u32 {
        self.peer.process.pid()
    }

    /// Sends SIGTERM, and waits for the server to exit.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.peer.process.end()
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
        assert_eq!(port("29500\n"), Some(29500));
        assert_eq!(port(""), None);
    }
}
