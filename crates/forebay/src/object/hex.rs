//! Converts bytes to hexadecimal digits and back.

/// The remedy for a value on the command line that is not valid.
pub const HEX_REMEDY: &str =
    "write two digits for each byte, such as hex:00ff, or text without hex:";

pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Converts hexadecimal digits to bytes. Returns `None` for an odd number of characters, or for other characters.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

/// Returns the bytes of a value on the command line: text, or digits after `hex:`.
pub fn value(text: &str) -> Option<Vec<u8>> {
    match text.strip_prefix("hex:") {
        Some(digits) => decode(digits),
        None => Some(text.as_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_decode_to_what_was_encoded() {
        assert_eq!(decode(&encode(&[0, 0xab, 7])), Some(vec![0, 0xab, 7]));
        assert_eq!((decode("0"), decode("0g"), decode("ä")), (None, None, None));
        assert_eq!(value("hex:0a"), Some(vec![10]));
        assert_eq!(value("0a"), Some(b"0a".to_vec()));
    }
}
