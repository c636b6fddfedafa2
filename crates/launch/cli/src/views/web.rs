//! The page, and `rdzv top --web`, which serves it to this user's browser.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::client::{Target, ViewError};
use super::job::Job;

use crate::terminal::show;

const PAGE: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");
const PLOTS: &str = include_str!("page/uplot.js");
const STYLE_OF_PLOTS: &str = include_str!("page/uplot.css");

/// Maximum length of the head of a request.
const MOST_HEAD: u64 = 16 << 10;

/// Time limit for the head of a request.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Returns the page of a running job, or of a job that has ended.
///
/// The page permits only scripts with its random number, and only requests to the same server.
pub(crate) fn page(ended: Option<&Job>) -> String {
    let replay = ended.map_or_else(String::new, |job| {
        let messages: Vec<_> = job.messages().collect();
        let json = serde_json::to_string(&messages).unwrap_or_default();
        // No text may contain the end of the script element.
        json.replace('<', "\\u003c")
    });
    // The texts of workers come last, so nothing in them is replaced.
    PAGE.replace("{{nonce}}", &format!("{:032x}", fastrand::u128(..)))
        .replace("{{style}}", STYLE)
        .replace("{{uplot.css}}", STYLE_OF_PLOTS)
        .replace("{{uplot.js}}", PLOTS)
        .replace("{{script}}", SCRIPT)
        .replace("{{replay}}", &replay)
}

/// Serves the page and the requests that it makes, on loopback.
///
/// A signal ends the process.
pub(super) fn serve(target: &Target) -> Result<(), ViewError> {
    let failed = |error: io::Error| ViewError::Answer(format!("cannot serve the page: {error}"));
    drop(target.request("/status")?);
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut key = String::new();
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| failed(error.into()))?;
    for byte in random {
        let _ = write!(key, "{byte:02x}");
    }
    show(&format!("http://{address}/{key}/\n"));
    for stream in listener.incoming().flatten() {
        let (target, key) = (target.clone(), key.clone());
        // If the system starts no thread, the connection is closed, and later ones may succeed.
        let _ = thread::Builder::new().spawn(move || answer(stream, &target, &key));
    }
    Ok(())
}

fn answer(stream: TcpStream, target: &Target, key: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(HEAD_WITHIN))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(MOST_HEAD));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let mut stream = stream;
    let path = line
        .strip_prefix("GET /")
        .and_then(|rest| rest.split(' ').next());
    let path = path.and_then(|path| path.strip_prefix(key)?.strip_prefix('/'));
    let kind = match path {
        Some("") => "text/html; charset=utf-8",
        Some("events") => "text/event-stream",
        Some(path) if path.starts_with("stacks") || path.starts_with("output") => {
            "application/json"
        }
        _ => return stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n"),
    };
    let path = path.unwrap_or_default();
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\n\
         Referrer-Policy: no-referrer\r\n\r\n"
    );
    if path.is_empty() {
        stream.write_all(head.as_bytes())?;
        return stream.write_all(page(None).as_bytes());
    }
    match target.request(&format!("/{path}")) {
        Ok(mut body) => {
            stream.write_all(head.as_bytes())?;
            io::copy(&mut body, &mut stream).map(drop)
        }
        Err(error) => write!(stream, "HTTP/1.0 502 Bad Gateway\r\n\r\n{error}\n"),
    }
}
