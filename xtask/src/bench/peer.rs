//! Process that answers questions, or a server of the measured processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::Context;
use serde_json::Value;

use super::launcher::Running;

/// Process that answers lines with lines, and runs until the drop.
pub(crate) struct Peer {
    process: Running,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut process = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        Ok(Self {
            questions: process.0.stdin.take().expect("it is piped"),
            answers: BufReader::new(process.0.stdout.take().expect("it is piped")),
            process,
        })
    }

    pub(super) fn tell(&mut self, what: &str) -> anyhow::Result<()> {
        writeln!(self.questions, "{what}").with_context(|| format!("'{what}' is not read any more"))
    }

    /// Returns its next line of output, as JSON.
    pub(super) fn answer(&mut self) -> anyhow::Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("it answered '{}'", line.trim()))
    }

    /// Sends a line, and returns the JSON of the answer.
    pub(crate) fn ask(&mut self, what: &str) -> anyhow::Result<Value> {
        self.tell(what)?;
        self.answer()
    }

    /// Waits until the process has ended.
    pub(super) fn end(mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.process.0.wait()?)
    }

    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line)
    }
}

/// Server that runs until the drop.
pub(crate) struct Server {
    peer: Peer,
    pub(super) port: u16,
}

impl Server {
    /// Starts the server, and waits for its port at the end of its first line.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // PyTorch's server reports every reply that cannot be sent on a closed connection.
        let mut peer = Peer::start(command.stderr(Stdio::null()))?;
        let line = peer.line()?;
        let port = port(&line).with_context(|| format!("a server printed '{}'", line.trim()))?;
        Ok(Self { peer, port })
    }

    /// Returns its address on loopback.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn process_id(&self) -> u32 {
        self.peer.process.pid()
    }

    /// Sends SIGTERM, and waits until the server has ended.
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
