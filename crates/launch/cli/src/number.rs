//! Parser of numbers with Python's rules.
//!
//! Python allows blanks around a number, and single underscores between digits.

use crate::exit::Raised;

/// Start of torchrun's error about a number, and rdzv's name for a valid one.
pub(crate) const PARSED: [(&str, &str); 2] = [
    ("invalid int value: ", "a whole number"),
    ("invalid float value: ", "a number"),
];

/// Parses an integer option; the error is the text of the usage error.
pub(crate) fn int(text: &str) -> Result<i64, String> {
    parse_int(text).ok_or_else(|| format!("invalid int value: '{text}'"))
}

/// Parses an integer that `torchrun` converts outside its parser.
///
/// The error is the exception that Python raises.
pub(crate) fn int_or_raise(text: &str) -> Result<i64, Raised> {
    parse_int(text).ok_or_else(|| {
        Raised::value_error(format!("invalid literal for int() with base 10: '{text}'"))
    })
}

/// Parses a floating-point option; the error is the text of the usage error.
pub(crate) fn float(text: &str) -> Result<f64, String> {
    without_underscores(text.trim())
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("invalid float value: '{text}'"))
}

/// Returns the result of Python's `int(text)`; `None` if that raises an error.
///
/// A number that needs more than 64 bits becomes `i64::MAX` or `-i64::MAX`. All callers use the
/// number as a limit or a count, or check its range, so such a value makes no difference.
pub(crate) fn parse_int(text: &str) -> Option<i64> {
    let trimmed = text.trim();
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let digits = without_underscores(digits)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let magnitude = digits.parse().unwrap_or(i64::MAX);
    Some(if negative { -magnitude } else { magnitude })
}

fn without_underscores(text: &str) -> Option<String> {
    let letters = text.as_bytes();
    let between_digits = |index: usize| {
        let digit = |index: usize| letters.get(index).is_some_and(u8::is_ascii_digit);
        index > 0 && digit(index - 1) && digit(index + 1)
    };
    let fine = (0..letters.len()).all(|index| letters[index] != b'_' || between_digits(index));
    fine.then(|| text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_what_python_takes() {
        for (text, number) in [
            (" 2 ", 2),
            ("-1", -1),
            ("+3", 3),
            ("007", 7),
            ("1_000", 1000),
            ("99999999999999999999", i64::MAX),
        ] {
            assert_eq!(parse_int(text), Some(number), "{text}");
        }
        for text in ["", " ", "a", "1.0", "1__0", "_1", "1_", "- 1", "--1", "0x1"] {
            assert_eq!(parse_int(text), None, "{text}");
        }
    }

    #[test]
    fn floats_are_what_python_takes() {
        assert_eq!(float(" 1e-3 "), Ok(0.001));
        assert_eq!(float("1_0.5"), Ok(10.5));
        assert!(float("inf").unwrap().is_infinite());
        assert_eq!(float("x"), Err("invalid float value: 'x'".to_owned()));
    }
}
