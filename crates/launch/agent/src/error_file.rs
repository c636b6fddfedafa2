//! Error files of the workers, and the launcher's error file for its caller.
//!
//! Workers may write any text. The agent reports a file without the known JSON; such a file never
//! stops the agent.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rdzv_core::time::Wall;
use serde_json::{Map, Value, json};
use tracing::warn;

use crate::Outcome;
use crate::clock::wall;
use crate::keeper::launcher_pid;
use rdzv_agent_proto::group::{ErrorFile, Exit, Failure};

/// Maximum size of an error file to read; tracebacks are a few kilobytes.
const MOST_BYTES: u64 = 4 << 20;

/// Reads the error file of a worker; `None` if there is no file.
pub(crate) fn read(path: &Path) -> Option<ErrorFile> {
    let path = path.to_owned();
    match read_text(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(ErrorFile {
            path,
            content: Err(format!("cannot be read: {error}")),
        }),
        Ok(text) => Some(ErrorFile::parse(path, &text)),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    // Opening a named pipe, for example, would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    File::open(path)?
        .take(MOST_BYTES + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("larger than {MOST_BYTES} bytes")));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes the launcher's own error file, for the caller of the launcher.
///
/// * After a failed run: the error file of the root cause, with `message.errorCode` added to the
///   object form. If the worker wrote no valid error file, the known facts about the failure.
/// * After a run that ended with a signal or an error: the signal or error in the object form.
/// * After a successful run: nothing.
///
/// If the file already exists, the function logs its content and replaces it.
///
/// # Errors
///
/// Returns the error of the write.
pub fn write_launcher_error_file(path: &Path, outcome: &Outcome) -> io::Result<()> {
    let content = match outcome {
        Outcome::Succeeded => return Ok(()),
        Outcome::Failed {
            failures,
            root_cause,
            ..
        } => match failures.get(*root_cause) {
            Some(failure) => of_failure(failure),
            None => return Ok(()),
        },
        Outcome::Signalled { signal, .. } | Outcome::Preempted { signal, .. } => own(
            &format!(
                "SignalException: Process {} got signal: {signal}",
                launcher_pid()
            ),
            wall(),
        )
        .to_string(),
        Outcome::Error(error) => own(&format!("{}: {error}", error.class()), wall()).to_string(),
    };
    replace(path, &content)
}

/// Writes the launcher's error file for a launch that was refused.
/// Such a launch has no outcome. `message` is the class and text of the error.
///
/// # Errors
///
/// Returns the error of the write.
pub fn write_refusal_to_error_file(path: &Path, message: &str) -> io::Result<()> {
    replace(path, &own(message, wall()).to_string())
}

fn replace(path: &Path, content: &str) -> io::Result<()> {
    if let Ok(earlier) = read_text(path) {
        warn!(
            "{} already exists and is replaced; it held:\n{earlier}",
            path.display()
        );
    }
    fs::write(path, content)
}

fn of_failure(failure: &Failure) -> String {
    let failure = &failure.evidence;
    let code = failure.exit.map_or(0, Exit::as_number);
    let Some(ErrorFile {
        content: Ok(content),
        path,
    }) = &failure.error_file
    else {
        let mut own = own(
            &format!(
                "ChildFailedError: rank {} (local_rank: {}) failed with exitcode {code} (pid: {})",
                failure.rank.unwrap_or_default(),
                failure.local_rank.unwrap_or_default(),
                failure.pid.unwrap_or_default()
            ),
            failure.time(),
        );
        add_code(&mut own, code);
        return own.to_string();
    };
    let mut content = content.clone();
    if !add_code(&mut content, code) {
        // The plain form is passed on byte for byte.
        return read_text(path).unwrap_or_else(|_| content.to_string());
    }
    content.to_string()
}

/// Adds an exit code other than 0; `false` if the error has the plain form.
fn add_code(content: &mut Value, code: i32) -> bool {
    let message = content.get_mut("message").and_then(Value::as_object_mut);
    let object = message.is_some();
    if let Some(message) = message.filter(|_| code != 0) {
        message.insert("errorCode".to_owned(), json!(code));
    }
    object
}

/// Returns the object form, as torchelastic's recorders write it.
pub(crate) fn own(message: &str, at: Wall) -> Value {
    let mut extra = Map::new();
    extra.insert("py_callstack".to_owned(), json!(message));
    extra.insert("timestamp".to_owned(), json!(at.unix_seconds().to_string()));
    json!({"message": {"message": message, "extraInfo": extra}})
}

#[cfg(test)]
mod tests {
    use rdzv_core::rank::{LocalRank, Rank};

    use super::*;
    use rdzv_agent_proto::group::{Cause, Evidence, Finality};

    fn failure(path: &Path, exit: Exit) -> Outcome {
        Outcome::Failed {
            failures: vec![Failure {
                cause: Cause::ExitCode {
                    code: 4,
                    last_line: None,
                },
                evidence: Evidence {
                    rank: Some(Rank(3)),
                    local_rank: Some(LocalRank(1)),
                    pid: Some(77),
                    exit: Some(exit),
                    seen: Some(Wall::from_unix_micros(5_000_000)),
                    error_file: read(path),
                    ..Evidence::default()
                },
            }],
            root_cause: 0,
            finality: Finality::BudgetUsed { max_restarts: 0 },
        }
    }

    fn launcher_file_for(text: Option<&str>) -> String {
        let directory = tempfile::tempdir().unwrap();
        let (worker, launcher) = (
            directory.path().join("error.json"),
            directory.path().join("launcher.json"),
        );
        if let Some(text) = text {
            fs::write(&worker, text).unwrap();
        }
        write_launcher_error_file(&launcher, &failure(&worker, Exit::Code(4))).unwrap();
        fs::read_to_string(launcher).unwrap()
    }

    #[test]
    fn anything_else_than_the_two_forms_is_noted_with_a_reason() {
        let cases = [
            ("", "is empty"),
            ("{\"mess", "is not valid JSON"),
            ("[1]", "has no \"message\""),
            ("{\"message\": 5}", "has no \"message\""),
        ];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("error.json");
        assert!(read(&path).is_none());
        for (text, reason) in cases {
            fs::write(&path, text).unwrap();
            let content = read(&path).unwrap().content.unwrap_err();
            assert!(content.starts_with(reason), "{text}: {content}");
        }
        let content = read(directory.path()).unwrap().content.unwrap_err();
        assert_eq!(content, "cannot be read: not a regular file");
    }

    #[test]
    fn the_object_form_is_handed_on_with_the_exit_code() {
        let text = r#"{"message": {"message": "V: b", "extraInfo": {"timestamp": "1"}}}"#;
        let held: Value = serde_json::from_str(&launcher_file_for(Some(text))).unwrap();
        assert_eq!(
            held,
            json!({"message": {"message": "V: b", "extraInfo": {"timestamp": "1"}, "errorCode": 4}})
        );
    }

    #[test]
    fn the_plain_form_is_handed_on_unchanged() {
        let text = r#"{ "timestamp":"1700000000","message":"m" }"#;
        assert_eq!(launcher_file_for(Some(text)), text);
    }

    #[test]
    fn a_failure_without_a_usable_file_is_written_down_too() {
        for text in [None, Some("{\"mess")] {
            let held: Value = serde_json::from_str(&launcher_file_for(text)).unwrap();
            assert_eq!(held["message"]["errorCode"], json!(4));
            assert_eq!(held["message"]["extraInfo"]["timestamp"], json!("5"));
        }
    }
}
