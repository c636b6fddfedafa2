//! Counts and times in words.

use std::time::Duration;

pub use rdzv_core::quantity::count;

/// Formats a time in its one or two largest units.
/// Examples: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 03 min`, `3 d 04 h`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Formats a time as a clock does: `8:20`, `1:08:20`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0.42, "0.4 s"),
            (59.9, "59 s"),
            (185.0, "3 min 05 s"),
            (7_380.0, "2 h 03 min"),
            (273_600.0, "3 d 04 h"),
        ] {
            assert_eq!(time(Duration::from_secs_f64(seconds)), text);
        }
        assert_eq!(clock(Duration::from_secs(4_100)), "1:08:20");
        assert_eq!(
            (count(1, "node"), count(2, "node")),
            ("1 node".into(), "2 nodes".into())
        );
    }
}
