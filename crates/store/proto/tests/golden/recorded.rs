//! The exchanges recorded from PyTorch 2.15.
//!
//! Each test that plays them includes this file.

use serde_json::Value;

/// Returns a group of the recorded exchanges of the TCP store.
pub(crate) fn exchanges(group: &str) -> Vec<Value> {
    let recorded: Value = serde_json::from_str(include_str!("tcpstore.json")).unwrap();
    let groups = recorded["groups"].as_array().unwrap();
    let group = groups.iter().find(|found| found["id"] == group).unwrap();
    group["exchanges"].as_array().unwrap().clone()
}

/// Returns the bytes of a recorded frame.
pub(crate) fn bytes_of(frame: &Value) -> Vec<u8> {
    let hex = |value: &Value| value.as_str().map(|text| unhex(text).unwrap());
    if let Some(bytes) = hex(&frame["hex"]) {
        return bytes;
    }
    let segments = frame["segments"].as_array().unwrap().iter();
    segments
        .flat_map(|segment| {
            hex(&segment["hex"]).unwrap_or_else(|| {
                let count = segment["count"].as_u64().unwrap();
                hex(&segment["repeat_hex"]).unwrap().repeat(count as usize)
            })
        })
        .collect()
}

/// Decodes hexadecimal digits; `None` if the text has others.
pub(crate) fn unhex(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(byte).collect()
}
