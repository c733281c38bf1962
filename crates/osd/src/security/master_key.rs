//! The file with the master key of a drive: two lines of 64 hexadecimal digits, first the
//! authentication key, then the generation key. The drive and its owner read it.

use zeroize::Zeroizing;

use super::key::{KEY_BYTES, Key, KeyPair};

/// The reason why the content of a file is not a master key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MasterKeyError {
    #[error("has {0} lines; a master key has 2")]
    Lines(usize),
    #[error("line {line} has {digits} characters; a key has 64 hexadecimal digits")]
    Digits { line: usize, digits: usize },
    #[error("line {0} has a character that is not a hexadecimal digit")]
    NotHexadecimal(usize),
    #[error("has two equal lines; the authentication key and the generation key must differ")]
    Equal,
}

/// Parses the content of a file with a master key.
///
/// # Errors
/// The reason why the content is not a master key. The error contains no digit of the content.
pub fn parse_master_key(content: &[u8]) -> Result<KeyPair, MasterKeyError> {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let lines: Vec<&[u8]> = content.split(|&byte| byte == b'\n').collect();
    let [authentication, generation] = lines[..] else {
        return Err(MasterKeyError::Lines(lines.len()));
    };
    let (authentication, generation) = (parse_line(authentication, 1)?, parse_line(generation, 2)?);
    if *authentication == *generation {
        return Err(MasterKeyError::Equal);
    }
    Ok(KeyPair { authentication: Key::new(*authentication), generation: Key::new(*generation) })
}

fn parse_line(line: &[u8], number: usize) -> Result<Zeroizing<[u8; KEY_BYTES]>, MasterKeyError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() != 2 * KEY_BYTES {
        return Err(MasterKeyError::Digits { line: number, digits: line.len() });
    }
    let digit = |byte: u8| {
        let value = char::from(byte).to_digit(16).ok_or(MasterKeyError::NotHexadecimal(number))?;
        Ok(value as u8)
    };
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    for (byte, digits) in key.iter_mut().zip(line.chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_of_64_digits_are_a_master_key() {
        let (first, second) = ("0a".repeat(32), "Fb".repeat(32));
        for content in [
            format!("{first}\n{second}\n"),
            format!("{first}\n{second}"),
            format!("{first}\r\n{second}\r\n"),
        ] {
            let pair = parse_master_key(content.as_bytes()).unwrap();
            assert_eq!(pair.authentication.bytes(), &[0x0a; 32]);
            assert_eq!(pair.generation.bytes(), &[0xfb; 32]);
        }
    }

    #[test]
    fn a_wrong_or_short_master_key_is_refused_with_its_line() {
        let refusal = |content: &str| parse_master_key(content.as_bytes()).unwrap_err();
        let (key, other) = ("0a".repeat(32), "0b".repeat(32));
        assert_eq!(refusal(""), MasterKeyError::Lines(1));
        assert_eq!(refusal(&key), MasterKeyError::Lines(1));
        assert_eq!(refusal(&format!("{key}\n{other}\n{key}\n")), MasterKeyError::Lines(3));
        assert_eq!(
            refusal(&format!("{key}\n{}\n", &other[..62])),
            MasterKeyError::Digits { line: 2, digits: 62 }
        );
        assert_eq!(
            refusal(&format!("{}x\n{other}\n", &key[..63])),
            MasterKeyError::NotHexadecimal(1)
        );
        assert_eq!(refusal(&format!("{key}\n{key}\n")), MasterKeyError::Equal);
    }
}
