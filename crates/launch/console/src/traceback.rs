//! The relevant lines of a traceback.

/// Maximum number of frames that are shown.
const FRAMES: usize = 2;

/// Parts of paths of library code, as opposed to the user's own code.
const LIBRARIES: [&str; 5] = [
    "/site-packages/",
    "/dist-packages/",
    "<frozen ",
    "/lib/python3",
    "/torch/distributed/",
];

/// One frame of a traceback: its source location and code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracebackFrame {
    /// Location `train.py, line 41, in main`, with the path as Python wrote it.
    pub location: String,
    /// Code at that line.
    pub code: Option<String>,
}

/// Returns the last frames of a Python traceback in the user's code.
/// The oldest is first. If no frame is in the user's code, these are frames of libraries. Empty if
/// the text is not a traceback.
pub fn frames(traceback: &str) -> Vec<TracebackFrame> {
    let lines: Vec<&str> = traceback.lines().map(unmarked).collect();
    // A second traceback ("During handling of the above exception") is the one that ended the
    // program.
    let start = lines
        .iter()
        .rposition(|line| line.trim().ends_with("Traceback (most recent call last):"));
    let Some(start) = start else {
        return Vec::new();
    };
    let lines = &lines[start + 1..];
    let mut frames = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(location) = line.trim_start().strip_prefix("File \"") else {
            continue;
        };
        let code = lines.get(index + 1).map(|code| code.trim());
        let code = code.filter(|code| line.starts_with(' ') && is_code(code));
        frames.push(TracebackFrame {
            location: location.replacen('"', "", 1),
            code: code.map(str::to_owned),
        });
    }
    let own = |frame: &TracebackFrame| !LIBRARIES.iter().any(|part| frame.location.contains(part));
    if frames.iter().any(own) {
        frames.retain(own);
    }
    frames.split_off(frames.len().saturating_sub(FRAMES))
}

/// `true` if the line after a location is the code at that location.
fn is_code(line: &str) -> bool {
    !line.is_empty()
        && !line.starts_with("File \"")
        && !line.chars().all(|letter| "^~ ".contains(letter))
}

/// Returns a line without PyTorch's mark (`[rank0]: `).
fn unmarked(line: &str) -> &str {
    without_mark(line, "[rank", "]: ")
}

/// Returns a text without its mark, a number between `before` and `after`.
pub(crate) fn without_mark<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.strip_prefix(before);
    match rest.and_then(|rest| rest.split_once(after)) {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"[rank5]: Traceback (most recent call last):
[rank5]:   File "/home/me/train.py", line 60, in <module>
[rank5]:     main()
[rank5]:     ~~~~^^
[rank5]:   File "/home/me/train.py", line 41, in main
[rank5]:     config = load(path)
[rank5]:   File "/home/me/config.py", line 7, in load
[rank5]:     return yaml.load(text)
[rank5]:            ^^^^^^^^^^^^^^^
[rank5]:   File "/venv/lib/python3.11/site-packages/yaml/__init__.py", line 81, in load
[rank5]:     return loader.get_single_data()
[rank5]: ValueError: boom"#;

    #[test]
    fn the_last_frames_of_the_users_own_code_are_kept() {
        let frames = frames(TEXT);
        let text: Vec<String> = frames
            .iter()
            .map(|frame| format!("{}: {:?}", frame.location, frame.code))
            .collect();
        assert_eq!(
            text,
            [
                "/home/me/train.py, line 41, in main: Some(\"config = load(path)\")",
                "/home/me/config.py, line 7, in load: Some(\"return yaml.load(text)\")",
            ]
        );
    }

    #[test]
    fn a_text_that_is_no_traceback_has_no_frames() {
        assert!(frames("boom").is_empty());
        assert!(frames("Traceback (most recent call last):\nValueError: x").is_empty());
    }
}
