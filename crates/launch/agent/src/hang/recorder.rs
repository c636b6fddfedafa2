//! PyTorch's flight recorder, from a worker's server (`--worker-server`).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, str};

use rdzv_agent_proto::hang::flight_recorder::{self, FlightRecord};
use rdzv_core::rank::{LocalRank, Rank};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::warn;

/// Time limit for the answer of a worker, so that the report is not late.
const LIMIT: Duration = Duration::from_secs(4);

/// Maximum size of an answer: ten times the entries of PyTorch's default.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Backends, and the handlers that return their recorders.
const HANDLERS: [(&str, &str); 2] = [("gloo", "fr_trace_json"), ("nccl", "dump_nccl_trace_json")];

pub(crate) type Recorders = BTreeMap<LocalRank, Recorder>;

/// Source of a worker's flight recorder, and the file for its dump.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    socket: PathBuf,
    file: Option<PathBuf>,
}

impl Recorder {
    /// Creates a recorder that saves its dump next to the worker's error file.
    pub(super) fn new(socket: PathBuf, error_file: Option<&Path>) -> Self {
        let file = error_file.map(|path| path.with_file_name("flight-recorder.json"));
        Self { socket, file }
    }

    /// Reads the recorder, and saves its dump.
    /// Returns `None` if the worker serves no requests, has recorded nothing, or if reading fails.
    pub(super) async fn read(self, rank: Rank) -> Option<FlightRecord> {
        let read = async {
            let mut dumps = Vec::new();
            for (backend, handler) in HANDLERS {
                dumps.extend(ask(&self.socket, handler).await?.map(|it| (backend, it)));
            }
            let saved = spawn_blocking(|| save(dumps, self.file)).await;
            saved.map_err(io::Error::other)?
        };
        match timeout(LIMIT, read)
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
        {
            Ok(record) => record,
            // The script is not inside `worker_main`.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) =>
            {
                None
            }
            Err(error) => {
                let limit = LIMIT.as_secs();
                warn!("cannot read the flight recorder of rank {rank} (limit: {limit} s): {error}");
                None
            }
        }
    }
}

/// Sends a request to a worker, and returns the body of the answer.
/// `None` if the worker has no such handler.
async fn ask(socket: &Path, handler: &str) -> io::Result<Option<Vec<u8>>> {
    let stream = UnixStream::connect(socket).await?;
    let request = format!(
        "POST /handler/{handler} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    let mut answer = Vec::new();
    let mut stream = stream.take(MOST_BYTES);
    stream.get_mut().write_all(request.as_bytes()).await?;
    stream.read_to_end(&mut answer).await?;
    let head = memchr::memmem::find(&answer, b"\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
    let is_found = answer.starts_with(b"HTTP/1.1 200 ");
    Ok(is_found.then(|| answer.split_off(head + 4)))
}

/// Saves dumps as one JSON object with a dump for each backend.
fn save(dumps: Vec<(&str, Vec<u8>)>, file: Option<PathBuf>) -> io::Result<Option<FlightRecord>> {
    let mut record = FlightRecord::default();
    let mut texts = Vec::new();
    for (backend, dump) in dumps {
        let groups = flight_recorder::read(&dump, backend)?;
        if !groups.is_empty() {
            record.groups.extend(groups);
            let dump = str::from_utf8(&dump).map_err(io::Error::other)?;
            texts.push(format!("\"{backend}\": {dump}"));
        }
    }
    if texts.is_empty() {
        return Ok(None);
    }
    if let Some(file) = file {
        let file_name = file.display().to_string();
        match fs::write(&file, format!("{{{}}}\n", texts.join(",\n"))) {
            Ok(()) => record.file = Some(file_name),
            Err(error) => warn!("cannot write {file_name}: {error}"),
        }
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const EMPTY: &str = "HTTP/1.1 200 OK\r\n\r\n{\"pg_config\": {}}";

    /// Reads the recorder of a worker that gives these answers to the two requests.
    /// Returns the number of groups, and the saved dump.
    fn read(answers: [&'static str; 2]) -> Option<(usize, String)> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let recorder = Recorder::new(socket, Some(&directory.path().join("error.json")));
        let worker = thread::spawn(move || {
            for (answer, (_, handler)) in answers.iter().zip(HANDLERS) {
                let Ok((mut stream, _)) = listener.accept() else {
                    return;
                };
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                let expected = format!("POST /handler/{handler} HTTP/1.1\r\n");
                assert!(request.starts_with(expected.as_bytes()), "{request:?}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let record = runtime.unwrap().block_on(recorder.read(Rank(3)));
        worker.join().unwrap();
        record.map(|it| {
            (
                it.groups.len(),
                fs::read_to_string(it.file.unwrap()).unwrap(),
            )
        })
    }

    #[test]
    fn the_dumps_of_the_backends_that_a_worker_uses_are_saved() {
        let missing = "HTTP/1.1 404 Not Found\r\n\r\nHandler not found";
        let used = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n\
                    {\"pg_config\": {\"\": {\"desc\": \"\"}}, \"version\": \"2.10\"}";
        let dump = used.split("\r\n\r\n").nth(1).unwrap();
        assert_eq!(
            read([used, missing]),
            Some((1, format!("{{\"gloo\": {dump}}}\n")))
        );
        assert_eq!(
            read([EMPTY, used]),
            Some((1, format!("{{\"nccl\": {dump}}}\n")))
        );
        let (groups, both) = read([used, used]).unwrap();
        assert_eq!(
            (groups, both),
            (2, format!("{{\"gloo\": {dump},\n\"nccl\": {dump}}}\n"))
        );
        for answer in [
            missing,
            EMPTY,
            "HTTP/1.1 200 OK\r\n\r\n{",
            "HTTP/1.1 200 OK\r\n\r\n3",
        ] {
            assert_eq!(read([answer, EMPTY]), None, "{answer}");
        }
    }

    #[test]
    fn a_worker_without_a_server_has_no_recorder() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let socket = directory.path().join("socket");
        let read = || runtime.block_on(Recorder::new(socket.clone(), None).read(Rank(0)));
        assert_eq!(read(), None);
        drop(UnixListener::bind(&socket).unwrap());
        assert_eq!(read(), None);
    }
}
