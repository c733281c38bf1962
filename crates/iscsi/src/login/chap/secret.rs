//! Secrets: bytes that are compared, hashed and forgotten, and never shown.

use std::{fmt, sync::Arc};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A CHAP secret. It is not printed, compared in constant time, and overwritten when the last
/// clone is gone.
#[derive(Clone)]
pub struct ChapSecret(Arc<Zeroizing<Vec<u8>>>);

/// 96 bits, RFC 7143, 9.2.1; other initiators refuse shorter ones too.
pub const SECRET_MIN: usize = 12;
/// What the targets and initiators of the field can store.
pub const SECRET_MAX: usize = 255;

/// A secret that is too short or too long, by its number of bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the secret has {0} bytes; CHAP wants {SECRET_MIN} to {SECRET_MAX}")]
pub struct SecretLength(pub usize);

impl ChapSecret {
    /// Takes the bytes as they are.
    ///
    /// # Errors
    ///
    /// Fewer than 12 bytes or more than 255.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretLength> {
        if !(SECRET_MIN..=SECRET_MAX).contains(&bytes.len()) {
            return Err(SecretLength(bytes.len()));
        }
        Ok(Self(Arc::new(Zeroizing::new(bytes.to_vec()))))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for ChapSecret {
    fn eq(&self, other: &Self) -> bool {
        self.bytes().ct_eq(other.bytes()).into()
    }
}

impl Eq for ChapSecret {}

impl fmt::Debug for ChapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Who proves: a name (CHAP_N, not an iSCSI name) and the secret that goes with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Credential {
    /// CHAP_N.
    pub name: String,
    /// What only the two ends know.
    pub secret: ChapSecret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_96_bits_and_is_not_shown() {
        assert_eq!(ChapSecret::new(b"eleven byte").unwrap_err(), SecretLength(11));
        assert_eq!(ChapSecret::new(&[b'x'; 256]).unwrap_err(), SecretLength(256));
        let secret = ChapSecret::new(b"twelve bytes").unwrap();
        assert_eq!(secret, ChapSecret::new(b"twelve bytes").unwrap());
        assert_ne!(secret, ChapSecret::new(b"twelve Bytes").unwrap());
        let shown = format!("{:?}", Credential { name: "alice".into(), secret });
        assert_eq!(shown, r#"Credential { name: "alice", secret: Secret(..) }"#);
    }
}
