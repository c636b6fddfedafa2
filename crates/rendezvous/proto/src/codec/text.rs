//! Base64 as Python decodes it, ignoring bytes that are not digits.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;

use super::CodecError;

/// Decoder of digits without padding; it ignores bits beyond the last byte.
const DIGITS: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Encodes `bytes` as base64 digits with padding.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    BASE64_STANDARD.encode(bytes).into_bytes()
}

/// Decodes a base64 value, ignoring bytes that are not digits.
///
/// Fails if the digits and their padding do not form whole groups.
pub fn decode(value: &[u8]) -> Result<Vec<u8>, CodecError> {
    // Usually, there is nothing to ignore.
    if let Ok(bytes) = BASE64_STANDARD.decode(value) {
        return Ok(bytes);
    }
    let (digits, padded) = digits(value);
    let uneven = CodecError::Base64 {
        length: value.len(),
        digits: digits.len(),
    };
    if !digits.len().is_multiple_of(4) && !padded {
        return Err(uneven);
    }
    DIGITS.decode(&digits).map_err(|_| uneven)
}

/// Returns the digits up to padding that completes a group of four.
///
/// The second value is `true` if there was such padding.
fn digits(value: &[u8]) -> (Vec<u8>, bool) {
    let mut digits = Vec::with_capacity(value.len());
    let mut padding = 0;
    for byte in value {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => {
                digits.push(*byte);
                padding = 0;
            }
            b'=' if digits.len() % 4 >= 2 => {
                padding += 1;
                if digits.len() % 4 + padding >= 4 {
                    return (digits, true);
                }
            }
            _ => {}
        }
    }
    (digits, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_digit_is_passed_over() {
        for value in [
            &b"aGVsbG8="[..],
            b"aGVs\nbG8=\n",
            b" a-G_V*s\xffbG8=",
            b"=aGVsbG8=",
            b"aGVs=bG8=",
            b"aGVsbG8==",
            b"aGVsbG8=and more",
            // Bits that do not matter.
            b"aGVsbG9=",
        ] {
            assert_eq!(decode(value).unwrap(), b"hello", "{value:?}");
        }
        assert_eq!(decode(b"").unwrap(), b"");
        assert_eq!(decode(b"***").unwrap(), b"");
        assert_eq!(decode(b"aGVsbA=\n=").unwrap(), b"hell");
        assert_eq!(decode(b"aGVsbA=x=").unwrap().len(), 5);
    }

    #[test]
    fn the_error_says_how_many_digits_there_are() {
        let error = decode(b"aGVs.bA=").unwrap_err().to_string();
        assert_eq!(
            error,
            "the 8 bytes are not base64 (the 6 base64 digits do not form whole bytes)"
        );
    }

    #[test]
    fn digits_that_do_not_come_out_even_are_an_error() {
        for value in [
            &b"a"[..],
            b"aG",
            b"aGVsbG8",
            b"aGVsb",
            b"aGVsbA=",
            b"====a",
            b"a=",
        ] {
            assert!(decode(value).is_err(), "{value:?}");
        }
    }
}
