//! Counters as the stores keep them: decimal text, read leniently.
//!
//! `add` and `barrier` keep their counters as plain text, so that any client can read or write
//! them. Text is read as C's `stoll` reads it, because the other readers of the same stores do so:
//! leading white space, a sign, and the longest run of digits. The rest is ignored. A text of more
//! than [`MAX_BYTES`] is not a number, so the cost of reading does not depend on its length.

/// Maximum length of a number's text, including the bytes around its digits.
pub const MAX_BYTES: usize = 64;

/// Parses the number at the beginning of `text`.
///
/// Returns `None` if there is no number, the number does not fit into an `i64`, or the text is
/// longer than [`MAX_BYTES`].
pub fn parse(text: &[u8]) -> Option<i64> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_space(byte))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    if !digits.first()?.is_ascii_digit() {
        return None;
    }
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .try_fold(0_i64, |number, byte| {
            let digit = i64::from(byte - b'0');
            // The number is built up with its sign, because the smallest `i64` has no positive
            // counterpart.
            let shifted = number.checked_mul(10)?;
            if negative {
                shifted.checked_sub(digit)
            } else {
                shifted.checked_add(digit)
            }
        })
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, parse};

    #[test]
    fn the_longest_leading_number_counts() {
        assert_eq!(parse(b"12abc"), Some(12));
        assert_eq!(parse(b" \t\n\x0b\x0c\r+42"), Some(42));
        assert_eq!(parse(b"-0"), Some(0));
        assert_eq!(parse(b"7 8"), Some(7));
    }

    #[test]
    fn the_whole_range_fits_and_no_more() {
        assert_eq!(parse(i64::MIN.to_string().as_bytes()), Some(i64::MIN));
        assert_eq!(parse(i64::MAX.to_string().as_bytes()), Some(i64::MAX));
        assert_eq!(parse(b"9223372036854775808"), None);
        assert_eq!(parse(b"-9223372036854775809"), None);
    }

    #[test]
    fn a_longer_text_than_any_number_needs_is_none() {
        let padded = |length: usize| format!("{:>length$}", 7).into_bytes();
        assert_eq!(parse(&padded(MAX_BYTES)), Some(7));
        assert_eq!(parse(&padded(MAX_BYTES + 1)), None);
    }

    #[test]
    fn no_digits_is_no_number() {
        for text in ["", " ", "-", "+-1", "x1", "\0 1"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
