//! Encrypts and authenticates the drive's stored keys under a key that is derived from the master key.

use osd::security::{Algorithm, Key, KeyPair, Mac, SystemId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

/// A record that cannot be decrypted: the drive has another master key, or the record was altered or belongs to another
/// drive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotSealedHere;

/// Encrypts and decrypts the records of one drive.
pub struct RecordSeal {
    key: LessSafeKey,
    system: SystemId,
}

impl RecordSeal {
    #[must_use]
    pub fn new(master: &KeyPair, system: SystemId) -> Self {
        let code = Mac::new(Algorithm::HmacSha256, &master.generation).with(PURPOSE).finish();
        let key = Key::from(code);
        let key = UnboundKey::new(&AES_256_GCM, key.bytes()).expect("AES-256 has 32 bytes");
        Self { key: LessSafeKey::new(key), system }
    }

    /// Encrypts the record `name`. The result is a version byte, the nonce, the ciphertext and the authentication tag.
    ///
    /// # Errors
    /// The operating system has no random bytes.
    pub fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>, getrandom::Error> {
        // A drive seals a record for each SET KEY, far fewer than the 2^32 for which random nonces
        // of 96 bits are safe.
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce)?;
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&nonce);
        let mut text = Zeroizing::new(plain.to_vec());
        let tag = self
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(self.context(name)),
                &mut text,
            )
            .expect("a record is short");
        bytes.extend_from_slice(&text);
        bytes.extend_from_slice(tag.as_ref());
        Ok(bytes)
    }

    /// Decrypts the record `name`, and checks that it was not altered.
    ///
    /// # Errors
    /// [`NotSealedHere`].
    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, NotSealedHere> {
        let [VERSION, rest @ ..] = sealed else { return Err(NotSealedHere) };
        let (nonce, text) = rest.split_at_checked(NONCE_LEN).ok_or(NotSealedHere)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| NotSealedHere)?;
        let mut text = Zeroizing::new(text.to_vec());
        let plain = self.key.open_in_place(nonce, Aad::from(self.context(name)), &mut text);
        let length = plain.map_err(|_| NotSealedHere)?.len();
        text.truncate(length);
        Ok(text)
    }

    /// Returns the data that is authenticated with a record, so that a record is valid only under
    /// its name and on its drive.
    fn context(&self, name: &str) -> Vec<u8> {
        [&[VERSION], &self.system[..], name.as_bytes()].concat()
    }
}

const VERSION: u8 = 1;
const PURPOSE: &[u8] = b"Forebay object drive: key records, version 1";

#[cfg(test)]
mod tests {
    use super::*;

    fn master(first: u8) -> KeyPair {
        KeyPair {
            authentication: Key::new([first; 32]),
            generation: Key::new([first.wrapping_add(1); 32]),
        }
    }

    #[test]
    fn a_record_opens_only_with_its_master_key_name_drive_and_bytes() {
        let seal = RecordSeal::new(&master(1), [7; 20]);
        let sealed = seal.seal("keys/root", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(seal.open("keys/root", &sealed).unwrap().as_slice(), b"secret");
        assert_eq!(seal.open("keys/other", &sealed), Err(NotSealedHere));
        assert!(RecordSeal::new(&master(2), [7; 20]).open("keys/root", &sealed).is_err());
        assert!(RecordSeal::new(&master(1), [8; 20]).open("keys/root", &sealed).is_err());
        for bit in 0..sealed.len() * 8 {
            let mut altered = sealed.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.open("keys/root", &altered).is_err(), "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert!(seal.open("keys/root", &sealed[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn two_seals_of_one_record_differ() {
        let seal = RecordSeal::new(&master(1), [7; 20]);
        assert_ne!(seal.seal("a", b"secret").unwrap(), seal.seal("a", b"secret").unwrap());
    }
}
