//! Parses and encodes the `key=value` lists of login and text PDUs (RFC 7143, 6.1).

use scsi::is_plain;

use super::{KeyError, table::LENGTH_MAX};

/// The longest complete text in bytes. RFC 7143, 6.1 requires at least 8192.
pub const TEXT_MAX: usize = 16_384;

/// The most pairs in a complete text: four times the number that RFC 7143 defines. Each may need an
/// answer.
const PAIRS_MAX: usize = 128;

/// The longest key name (standard-label; RFC 7143, 6.1).
const KEY_MAX: usize = 63;

/// The longest value in bytes of a key that is neither a list nor private (RFC 7143, 6.1).
const SIMPLE_VALUE_MAX: usize = 255;

/// The longest iSCSI name in bytes (RFC 7143, 4.2.7.1).
const NAME_MAX: usize = 223;

/// Returns the pairs of a text; keys may repeat, as in the answer to SendTargets. Superfluous zero
/// bytes are skipped, because LIO sends padding as part of the data segment.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = Result<(&str, &str), KeyError>> {
    let (text, end) = match text {
        [text @ .., 0] => (text, None),
        [] => (text, None),
        _ => (text, Some(Err(KeyError::Malformed("the last pair has no terminating zero byte")))),
    };
    text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()).map(pair).chain(end)
}

/// Returns the pairs of a complete text: at most 128, without repeated keys.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, KeyError> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for pair in pairs(text) {
        let (key, value) = pair?;
        if found.iter().any(|&(earlier, _)| earlier == key) {
            return Err(KeyError::Repeated(key.to_owned()));
        }
        if found.len() == PAIRS_MAX {
            return Err(KeyError::Malformed("more than 128 pairs"));
        }
        found.push((key, value));
    }
    Ok(found)
}

/// Appends `key=value` and the zero byte that ends the pair.
///
/// # Panics
///
/// If the value contains a zero byte, after which another pair would begin.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    assert!(!value.contains('\0'), "a value ends at its first zero byte");
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

fn pair(pair: &[u8]) -> Result<(&str, &str), KeyError> {
    let pair =
        std::str::from_utf8(pair).map_err(|_| KeyError::Malformed("text that is not UTF-8"))?;
    let (key, value) = pair.split_once('=').ok_or(KeyError::Malformed("a pair without ="))?;
    if key.is_empty() || key.len() > KEY_MAX || !key.bytes().all(is_key_byte) {
        return Err(KeyError::Malformed("a key that is not a standard-label"));
    }
    if value.len() > SIMPLE_VALUE_MAX && !may_be_long(key) {
        return Err(KeyError::Malformed("a value above 255 bytes"));
    }
    Ok((key, value))
}

/// Returns true for a character of a standard-label, and for the `#` of X#NodeArchitecture. The
/// initial capital letter of a label is not required, since iSCSIProtocolLevel has none.
fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'@' | b'_' | b'#')
}

/// Returns true if the value of this key may be longer than [`SIMPLE_VALUE_MAX`]: for lists,
/// private keys and the large binary values of authentication.
fn may_be_long(key: &str) -> bool {
    const LONG: [&str; 7] =
        ["X-", "AuthMethod", "HeaderDigest", "DataDigest", "CHAP_", "SRP_", "KRB_"];
    LONG.iter().any(|prefix| key.starts_with(prefix))
}

/// Parses a numerical-value: decimal or hexadecimal, below 2^64.
fn number(value: &str) -> Option<u64> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // Check the first character, because from_str_radix would accept a sign.
    if !digits.starts_with(|digit: char| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Parses a number; returns `None` unless `low <= number <= high`.
pub(crate) fn number_within(value: &str, low: u32, high: u32) -> Option<u32> {
    let number = u32::try_from(number(value)?).ok()?;
    (low..=high).contains(&number).then_some(number)
}

/// Parses a MaxRecvDataSegmentLength. Refuses values below 512 bytes, which cannot be obeyed.
/// Reduces values above 2^24 - 1, which can be obeyed by sending less.
pub(super) fn segment_length(value: &str) -> Option<u32> {
    let length = number(value)?.min(u64::from(LENGTH_MAX)) as u32;
    (length >= 512).then_some(length)
}

pub(super) fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

pub(super) fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Returns true for an iSCSI-name-value (RFC 7143, 4.2.7.2). Checks the characters only and not the
/// structure: existing targets accept names without `iqn.`, and so does Forebay.
pub(super) fn is_name(value: &str) -> bool {
    let allowed = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '-' | '.' | ':')
            || (!c.is_ascii() && c.is_alphanumeric())
    };
    !value.is_empty() && value.len() <= NAME_MAX && value.chars().all(allowed)
}

/// Parses an iSCSI-local-name-value, which is displayed to people. Replaces characters that do not
/// display as themselves, so that an alias cannot forge a line of the log messages.
pub(super) fn local_name(value: &str) -> String {
    value.chars().map(|c| if is_plain(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Returns true for the words that only answers may use (RFC 7143, 6.2).
pub(super) fn is_answer_word(value: &str) -> bool {
    matches!(value, "Irrelevant" | "NotUnderstood" | "Reject")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        for (value, expected) in [
            ("0", Some(0)),
            ("262144", Some(262_144)),
            ("0x40000", Some(262_144)),
            ("0XfF", Some(255)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("0x", None),
            ("+5", None),
            ("-5", None),
            ("0x+5", None),
            (" 5", None),
            ("5 ", None),
            ("ff", None),
            ("1~5", None),
        ] {
            assert_eq!(number(value), expected, "{value:?}");
        }
    }

    #[test]
    fn text_that_is_no_list_of_pairs_is_refused() {
        for text in [
            &b"A=1"[..],
            b"A\0",
            b"=1\0",
            b"A b=1\0",
            b"A=\xff\xfe\0",
            b"A=1\0A=2\0",
            b"\xc3\xa4=1\0",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let long_key = [b"A".repeat(64), b"=1\0".to_vec()].concat();
        assert!(parse(&long_key).is_err());
        let long_value = [b"MaxBurstLength=".to_vec(), b"1".repeat(256), vec![0]].concat();
        assert!(parse(&long_value).is_err());
        let many: Vec<u8> = (0..129).flat_map(|n| format!("A{n}=\0").into_bytes()).collect();
        assert!(parse(&many).is_err());
    }

    #[test]
    fn lists_of_pairs_are_parsed() {
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b"A=\0B=x=y\0").unwrap(), [("A", ""), ("B", "x=y")]);
        assert_eq!(parse(b"A=1\0\0\0\0").unwrap(), [("A", "1")]);
        let long_list = [b"AuthMethod=".to_vec(), b"a".repeat(4000), vec![0]].concat();
        assert_eq!(parse(&long_list).unwrap()[0].1.len(), 4000);
    }

    #[test]
    fn names_hold_no_spaces_or_controls() {
        assert!(is_name("iqn.2001-04.com.example:storage.disk-1"));
        assert!(is_name("eui.020000023B040506"));
        assert!(is_name("iqn.2001-04.com.example:größe"));
        for name in ["", "iqn a", "iqn\n", "iqn/../x", "iqn\u{7f}", &"a".repeat(224)] {
            assert!(!is_name(name), "{name:?}");
        }
        assert_eq!(local_name("a\nb\u{202e}c"), "a\u{fffd}b\u{fffd}c");
    }
}
