//! Steps that write an error file.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Executes a step of this family; `None` if the name belongs to another one.
pub(crate) fn step(name: &str, value: &str, _rest: &[String]) -> Option<io::Result<()>> {
    Some(match name {
        "error-file" => path().and_then(|path| fs::write(path, value)),
        "error-folder" => path().and_then(fs::create_dir),
        "error" => path().and_then(|path| fs::write(path, recorded(value))),
        _ => return None,
    })
}

fn path() -> io::Result<OsString> {
    env::var_os("TORCHELASTIC_ERROR_FILE")
        .filter(|path| !path.is_empty())
        .ok_or_else(|| io::Error::other("TORCHELASTIC_ERROR_FILE names no file"))
}

/// Returns the document that torchelastic's recorder writes for an exception.
fn recorded(message: &str) -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let quoted = message.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "{{\"message\": {{\"message\": \"{quoted}\", \"extraInfo\": {{\"py_callstack\": \
         \"Traceback (most recent call last):\\n  {quoted}\\n\", \
         \"timestamp\": \"{seconds}\"}}}}}}"
    )
}
