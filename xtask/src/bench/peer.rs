//! A process that is asked, or that those who are measured meet at.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::Context;
use serde_json::Value;

use super::launcher::Running;

/// A process that answers lines with lines, and runs until this is dropped.
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

    /// The next line that it writes, as JSON.
    pub(super) fn answer(&mut self) -> anyhow::Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("it answered '{}'", line.trim()))
    }

    /// The JSON that it answers to a line.
    pub(crate) fn ask(&mut self, what: &str) -> anyhow::Result<Value> {
        self.tell(what)?;
        self.answer()
    }

    /// Waits until it has ended by itself.
    pub(super) fn end(mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.process.0.wait()?)
    }

    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line)
    }
}

/// A server that runs until this is dropped.
pub(crate) struct Server {
    peer: Peer,
    pub(super) port: u16,
}

impl Server {
    /// Starts it, and waits until it says where it listens: at the end of its first line.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // PyTorch's server reports every reply that a closed connection does not take.
        let mut peer = Peer::start(command.stderr(Stdio::null()))?;
        let line = peer.line()?;
        let port = port(&line).with_context(|| format!("a server said '{}'", line.trim()))?;
        Ok(Self { peer, port })
    }

    /// Its address on loopback.
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
