//! CHAP secrets: bytes that are compared, hashed and overwritten, and never printed.

use std::{fmt, sync::Arc};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A CHAP secret, which is never printed, compared in constant time, and overwritten when the last
/// clone is dropped.
#[derive(Clone)]
pub struct ChapSecret(Arc<Zeroizing<Vec<u8>>>);

/// The shortest secret in bytes: 96 bits (RFC 7143, 9.2.1). Other initiators refuse shorter ones
/// too.
pub const SECRET_MIN: usize = 12;
/// Maximum length of a CHAP secret in bytes, which existing targets and initiators can store.
pub const SECRET_MAX: usize = 255;

/// The error for a secret that is too short or too long, with its length in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the secret has {0} bytes; CHAP requires {SECRET_MIN} to {SECRET_MAX}")]
pub struct SecretLength(pub usize);

impl ChapSecret {
    /// Makes a secret of these bytes.
    ///
    /// # Errors
    ///
    /// If there are fewer than 12 bytes or more than 255.
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

/// A CHAP name (CHAP_N, which is not an iSCSI name) with its secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Credential {
    pub name: String,
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
