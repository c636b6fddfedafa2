//! Requests to an agent of a job, over its Unix socket or over TCP.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rdzv_agent::observe::NodeReport;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env::RDZV_JOB_TOKEN_FILE;
use rdzv_core::escape::escape;
use rdzv_store::Token;

use super::job::{Message, parse};
use super::socket;
use crate::exit::Exit;
use crate::suggestion::did_you_mean;
use crate::terminal::complain;

/// Time limit to connect, and to wait for an answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Time limit for the reports of all agents on this machine.
const STATUS_WITHIN: Duration = Duration::from_secs(5);

/// Selection of a job.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct JobArgs {
    /// Job id, or HOST:PORT of --status-addr (default: this user's only job)
    #[arg(value_name = "JOB|HOST:PORT")]
    job: Option<String>,

    /// File with the job token, for an agent on another host.
    ///
    /// Without this flag, RDZV_JOB_TOKEN_FILE names the file.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// An agent that answers requests.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Socket(PathBuf),
    Tcp {
        endpoint: String,
        bearer: Option<String>,
    },
}

/// Error about a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    /// The command line names no usable job, file or terminal (exit code 2).
    #[error("{0}")]
    Selection(String),
    /// The agent does not answer as expected, or the answer cannot be shown.
    #[error("{0}")]
    Answer(String),
    /// The agent cannot be reached, or stops answering.
    #[error("cannot read from {agent}: {source}")]
    Connection { agent: String, source: io::Error },
}

impl ViewError {
    /// `true` if nothing listens at the agent's address.
    pub(crate) fn has_exited(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Connection { source, .. }
            if matches!(source.kind(), ConnectionRefused | NotFound))
    }
}

/// Prints the error of a command, and returns its exit code.
pub(crate) fn ended(command: &str, result: Result<(), ViewError>) -> ExitCode {
    match result {
        Ok(()) => Exit::Success.into(),
        Err(error) => {
            complain(&format!("rdzv {command}: {error}"));
            match error {
                ViewError::Selection(_) => Exit::Usage.into(),
                ViewError::Answer(_) | ViewError::Connection { .. } => Exit::Failure.into(),
            }
        }
    }
}

impl JobArgs {
    /// Returns an agent of the selected job.
    pub(crate) fn find(&self) -> Result<Target, ViewError> {
        let name = self.job.as_deref();
        let endpoint = name.filter(|name| name.contains(':'));
        let endpoint = endpoint.and_then(|name| Endpoint::parse(name, 0).ok());
        if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.port != 0) {
            let endpoint = endpoint.to_string();
            let bearer = self.bearer()?;
            return Ok(Target::Tcp { endpoint, bearer });
        }
        let mut found = reports();
        let mut names: Vec<String> = found.iter().map(|(_, it)| it.run_id.clone()).collect();
        names.dedup();
        if let Some(name) = name {
            found.retain(|(_, report)| report.run_id == name);
            names.retain(|known| known == name || found.is_empty());
        }
        match (found.pop(), names.as_slice()) {
            (Some((path, _)), [_]) => Ok(Target::Socket(path)),
            (_, []) => Err(ViewError::Selection(
                "this user has no running job on this machine\nhelp: start this command on a node \
                 of the job, or specify HOST:PORT of --status-addr"
                    .to_owned(),
            )),
            (None, names) => {
                let name = name.unwrap_or_default();
                let similar = did_you_mean(name, names.iter().map(String::as_str));
                Err(ViewError::Selection(format!(
                    "this user has no job '{}' on this machine{similar}\nhelp: `rdzv ps` lists the jobs",
                    escape(name)
                )))
            }
            (Some(_), names) => Err(ViewError::Selection(format!(
                "this user has {} jobs on this machine\nhelp: specify one of {}",
                names.len(),
                names.join(", ")
            ))),
        }
    }

    fn bearer(&self) -> Result<Option<String>, ViewError> {
        let variable = std::env::var_os(RDZV_JOB_TOKEN_FILE).filter(|value| !value.is_empty());
        let path = self.token_file.clone().or(variable.map(PathBuf::from));
        let token = path.map(|path| Token::from_file(&path)).transpose();
        let token = token.map_err(|error| ViewError::Selection(error.to_string()))?;
        Ok(token.map(|token| token.bearer()))
    }
}

/// Returns the reports of all agents of this user on this machine, by job.
///
/// Asks all agents at the same time, and prints which of them do not answer in time.
pub(crate) fn reports() -> Vec<(PathBuf, NodeReport)> {
    let mut asked = socket::all();
    let (answers, arriving) = channel();
    for path in asked.clone() {
        let answers = answers.clone();
        let question = path.clone();
        let thread = thread::Builder::new().spawn(move || {
            let status = Target::Socket(question.clone()).get("/status");
            let _ = answers.send((question, status));
        });
        if let Err(error) = thread {
            complain(&format!("rdzv: cannot ask {}: {error}", path.display()));
            asked.remove(&path);
        }
    }
    drop(answers);
    let end = Instant::now() + STATUS_WITHIN;
    let mut reports: Vec<(PathBuf, NodeReport)> = Vec::new();
    let left = || end.saturating_duration_since(Instant::now());
    while let Ok((path, status)) = arriving.recv_timeout(left()) {
        asked.remove(&path);
        let report = status.ok().and_then(|it| serde_json::from_str(&it).ok());
        reports.extend(report.map(|report| (path, report)));
    }
    for path in asked {
        let process = path.file_name().unwrap_or_default().display();
        complain(&format!(
            "rdzv: the agent with process id {process} does not answer within {} s",
            STATUS_WITHIN.as_secs()
        ));
    }
    reports.sort_by(|(_, one), (_, other)| {
        (&one.run_id, one.group_rank).cmp(&(&other.run_id, other.group_rank))
    });
    reports
}

impl Target {
    /// Returns the body of the answer to a request.
    pub(crate) fn get(&self, path: &str) -> Result<String, ViewError> {
        let mut body = String::new();
        let mut answer = self.request(path)?;
        let read = answer.read_to_string(&mut body);
        read.map_err(|error| self.failed(error))?;
        Ok(body)
    }

    /// Calls `take` for each message of the job.
    ///
    /// Returns when `take` returns `false`, or at the end of the stream.
    pub(crate) fn follow(&self, mut take: impl FnMut(Message) -> bool) -> Result<(), ViewError> {
        for line in BufReader::new(self.request("/events")?).lines() {
            let line = line.map_err(|error| self.failed(error))?;
            let message = line.strip_prefix("data: ");
            let message = message.and_then(|text| parse(text.as_bytes()).ok());
            if message.is_some_and(|message| !take(message)) {
                break;
            }
        }
        Ok(())
    }

    /// Sends a request, and returns the stream behind the head of the answer.
    pub(crate) fn request(&self, path: &str) -> Result<Box<dyn Read + Send>, ViewError> {
        let failed = |error| self.failed(error);
        let mut head = format!("GET {path} HTTP/1.0\r\nHost: rdzv\r\n");
        let mut stream: Box<dyn Stream> = match self {
            Self::Socket(path) => {
                let stream = socket::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
                Box::new(stream)
            }
            Self::Tcp { endpoint, bearer } => {
                if let Some(bearer) = bearer {
                    head.push_str(&format!("Authorization: Bearer {bearer}\r\n"));
                }
                let stream = connect(endpoint).map_err(failed)?;
                stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
                Box::new(stream)
            }
        };
        stream
            .write_all((head + "\r\n").as_bytes())
            .map_err(failed)?;
        let mut answer = BufReader::new(stream);
        let mut status = String::new();
        answer.read_line(&mut status).map_err(failed)?;
        loop {
            let mut header = String::new();
            if answer.read_line(&mut header).map_err(failed)? == 0 || header == "\r\n" {
                break;
            }
        }
        let code = status.split(' ').nth(1).unwrap_or_default();
        if code == "200" {
            return Ok(Box::new(answer));
        }
        let mut reason = String::new();
        let _ = answer.take(1 << 10).read_to_string(&mut reason);
        Err(ViewError::Answer(format!(
            "{} answers {}: {}",
            self.name(),
            escape(code),
            escape(reason.trim())
        )))
    }

    fn name(&self) -> String {
        match self {
            Self::Socket(path) => path.display().to_string(),
            Self::Tcp { endpoint, .. } => endpoint.clone(),
        }
    }

    fn failed(&self, source: io::Error) -> ViewError {
        let agent = self.name();
        ViewError::Connection { agent, source }
    }
}

trait Stream: Read + io::Write + Send {}

impl<T: Read + io::Write + Send> Stream for T {}

fn connect(endpoint: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in endpoint.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
