//! Numbers as Python reads them: blanks around them and single underscores between digits are fine.

use crate::exit::Raised;

/// Words of torchrun's parser about a number that is none, and the form that it has to have.
pub(crate) const PARSED: [(&str, &str); 2] = [
    ("invalid int value: ", "a whole number"),
    ("invalid float value: ", "a number"),
];

/// An integer option; the error is the text of the usage error.
pub(crate) fn int(text: &str) -> Result<i64, String> {
    parse_int(text).ok_or_else(|| format!("invalid int value: '{text}'"))
}

/// An integer that is read later than the options; the error is the exception that Python raises.
pub(crate) fn int_or_raise(text: &str) -> Result<i64, Raised> {
    parse_int(text).ok_or_else(|| {
        Raised::value_error(format!("invalid literal for int() with base 10: '{text}'"))
    })
}

/// A floating-point option; the error is the text of the usage error.
pub(crate) fn float(text: &str) -> Result<f64, String> {
    without_underscores(text.trim())
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("invalid float value: '{text}'"))
}

/// The result of `int(text)`, or nothing where it raises. Numbers beyond 64 bits become the nearest
/// one that fits: every use of them is a bound or a count, and both are as absurd.
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
