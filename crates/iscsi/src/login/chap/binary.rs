//! Binary values in text: hexadecimal or base64 (RFC 7143, 6.1).

use std::fmt::Write;

/// The longest decoded value in bytes: "Their binary length MUST NOT exceed 1024 bytes" (RFC 7143,
/// 12.1.3).
const MAX: usize = 1024;

/// Decodes a binary-value of 1 to 1024 bytes.
pub(super) fn decode(value: &str) -> Option<Vec<u8>> {
    let (kind, digits) = value.split_at_checked(2)?;
    let bytes = match kind {
        "0x" | "0X" => from_hex(digits.as_bytes())?,
        "0b" | "0B" => from_base64(digits.as_bytes())?,
        _ => return None,
    };
    (1..=MAX).contains(&bytes.len()).then_some(bytes)
}

/// Encodes bytes in hexadecimal, which every peer can read.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Decodes n digits to (n + 1) / 2 bytes. With an odd number of digits, the first byte lacks its
/// leading zero.
fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |&digit: &u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let (first, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    for digit in first.iter().map(digit) {
        bytes.push(digit?);
    }
    for [high, low] in pairs.as_chunks().0 {
        bytes.push(digit(high)? << 4 | digit(low)?);
    }
    Some(bytes)
}

/// Decodes base64 text, which must be padded (RFC 4648, 4).
fn from_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let (groups, []) = digits.as_chunks::<4>() else { return None };
    let (last, groups) = groups.split_last()?;
    let mut bytes = Vec::with_capacity(3 * digits.len() / 4);
    for group in groups {
        bytes.extend_from_slice(&from_sextets(group)?);
    }
    let padding = last.iter().rev().take_while(|&&digit| digit == b'=').count();
    let mut unpadded = *last;
    unpadded[4 - padding.min(2)..].fill(b'A');
    let tail = from_sextets(&unpadded)?;
    // Require that the unused bits of the last digit are 0: otherwise two texts would stand for one value.
    let (kept, rest) = tail.split_at(3 - padding.min(2));
    bytes.extend_from_slice(kept);
    rest.iter().all(|&byte| byte == 0).then_some(bytes)
}

fn from_sextets(group: &[u8; 4]) -> Option<[u8; 3]> {
    let mut bits = 0;
    for &digit in group {
        let sextet = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(sextet);
    }
    let [_, a, b, c] = bits.to_be_bytes();
    Some([a, b, c])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_and_base64_are_read() {
        for (value, bytes) in [
            ("0x00ff", &[0, 255][..]),
            ("0XAbC", &[0x0a, 0xbc]),
            ("0x7", &[7]),
            ("0bZg==", b"f"),
            ("0BZm8=", b"fo"),
            ("0bZm9v", b"foo"),
            ("0bZm9vYmE=", b"fooba"),
            ("0b+/+/", &[0xfb, 0xff, 0xbf]),
        ] {
            assert_eq!(decode(value).as_deref(), Some(bytes), "{value}");
        }
        assert_eq!(encode(&[0, 0xab]), "0x00ab");
    }

    #[test]
    fn invalid_binary_values_are_refused() {
        for value in [
            "",
            "0",
            "0x",
            "0b",
            "12",
            "ff",
            "0xg0",
            "0x+1",
            "0bZg",
            "0bZg=",
            "0bZh==",
            "0bZ===",
            "0b====",
            "0bZg==Zg==",
            "0b Zg=",
            "ä",
            "0xä",
        ] {
            assert_eq!(decode(value), None, "{value:?}");
        }
        let long = |bytes| format!("0x{}", "ab".repeat(bytes));
        assert_eq!(decode(&long(1024)).map(|bytes| bytes.len()), Some(1024));
        assert_eq!(decode(&long(1025)), None);
    }
}
