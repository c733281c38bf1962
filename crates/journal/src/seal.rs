//! Sealed blocks: the volume's data in the log and in the NVRAM, encrypted with AES-256-GCM, each block by
//! itself. A block opens only if its bytes are unchanged and it is opened for the slot, the sectors and the
//! write that it was sealed for.
//!
//! No nonce is used twice with a key. Each opening of a log draws a random salt and derives two keys from it,
//! one for segments and one for the NVRAM, so two copies of a log that are both opened do not share a key.
//! Within one opening, no two segments have the same number, and no two writes to the NVRAM have the same
//! count. `docs/formats/log-disk.md` ("Sealed blocks") has the derivation.

use std::fmt;

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt as Extract},
    rand::{SecureRandom, SystemRandom},
};

use crate::BLOCK_BYTES;

/// The master key of a log, from which each opening derives its keys. `Debug` does not print the key.
#[derive(Clone)]
pub struct LogKey(Prk);

/// Random bytes that are drawn when a log is opened, and from which its encryption keys are derived.
pub type Salt = [u8; 12];
/// The authentication tag of a sealed block.
pub type Tag = [u8; 16];
/// A value that is derived from the key and stored in the superblock. An opening compares it to detect a
/// wrong key.
pub(crate) type KeyCheck = [u8; 16];

impl LogKey {
    /// Derives the master key from `secret`: at least 32 bytes from a random source.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(Extract::new(HKDF_SHA256, b"forebay log key 1").extract(secret))
    }

    /// Returns the key check for the superblock of the log `instance`. The check does not reveal the key.
    pub fn check(&self, instance: &[u8; 16]) -> KeyCheck {
        self.derive(&[b"check", instance])
    }

    /// Returns the sealer for the segments of the log `instance`, as written by the opening that drew `salt`.
    pub fn for_segments(&self, instance: &[u8; 16], salt: &Salt) -> Sealer {
        Sealer::new(self.derive(&[b"segments", instance, salt]))
    }

    /// Returns the sealer for the NVRAM of the log `instance`, as written by the opening that drew `salt`.
    pub fn for_nvram(&self, instance: &[u8; 16], salt: &Salt) -> Sealer {
        Sealer::new(self.derive(&[b"nvram", instance, salt]))
    }

    fn derive<const N: usize>(&self, info: &[&[u8]]) -> [u8; N] {
        let mut bytes = [0; N];
        let expanded = self.0.expand(info, Length(N)).and_then(|okm| okm.fill(&mut bytes));
        expanded.expect("HKDF gives up to 8160 bytes");
        bytes
    }
}

impl fmt::Debug for LogKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LogKey(..)")
    }
}

impl PartialEq for LogKey {
    fn eq(&self, other: &Self) -> bool {
        self.check(&[0; 16]) == other.check(&[0; 16])
    }
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Seals and opens blocks with one key: that of one opening, for segments or for the NVRAM.
pub struct Sealer(LessSafeKey);

/// The nonce of a block, which must be unique for the key: a number, and a count among the blocks with this
/// number. In the log these are the segment and its data block (counted from 1), in the NVRAM the count of
/// the write and 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Which(pub u64, pub u32);

/// The additional data of AES-GCM: a block opens only with the values that it was sealed with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SealedBlockId {
    /// The slot of the volume that the block is for.
    pub slot: u64,
    /// The sectors of the slot that the block holds, the first in bit 0.
    pub mask: u8,
    /// Serial of the write in the NVRAM; 0 in the log, whose segments are in order.
    pub serial: u64,
}

impl Sealer {
    fn new(key: [u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("AES-256 takes 32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// Returns a sealer with a random key, which is lost when the sealer is dropped.
    pub fn drawn() -> Result<Self, &'static str> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).map_err(|_| NOT_RANDOM)?;
        Ok(Self::new(key))
    }

    /// Encrypts a block in place. The caller must never use `which` again for other content: AES-GCM is not
    /// secure if a nonce comes twice with a key.
    pub fn seal(&self, which: Which, about: SealedBlockId, block: &mut [u8]) -> Tag {
        let sealed = self.0.seal_in_place_separate_tag(which.nonce(), about.aad(), block);
        let tag = sealed.expect("a block is shorter than 64 GiB");
        tag.as_ref().try_into().expect("a tag of GCM has 16 bytes")
    }

    /// Decrypts a copy of `block`. Returns `None` if the block, its tag or `about` differ from what was
    /// sealed.
    pub fn open(
        &self,
        which: Which,
        about: SealedBlockId,
        tag: &Tag,
        block: &[u8],
    ) -> Option<Box<[u8; BLOCK_BYTES]>> {
        let mut opened = Box::new([0; BLOCK_BYTES]);
        opened.copy_from_slice(block.get(..BLOCK_BYTES)?);
        let (nonce, aad) = (which.nonce(), about.aad());
        let tag = (*tag).into();
        let right = self.0.open_in_place_separate_tag(nonce, aad, tag, &mut opened[..], 0..);
        right.is_ok().then_some(opened)
    }
}

impl Which {
    fn nonce(self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.0.to_le_bytes());
        nonce[8..].copy_from_slice(&self.1.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl SealedBlockId {
    fn aad(self) -> Aad<[u8; 17]> {
        let mut aad = [0; 17];
        aad[..8].copy_from_slice(&self.slot.to_le_bytes());
        aad[8] = self.mask;
        aad[9..].copy_from_slice(&self.serial.to_le_bytes());
        Aad::from(aad)
    }
}

/// Draws a random salt. Fails if the system has no random bytes.
pub fn draw_salt() -> Result<Salt, &'static str> {
    let mut salt = [0; 12];
    SystemRandom::new().fill(&mut salt).map_err(|_| NOT_RANDOM)?;
    Ok(salt)
}

const NOT_RANDOM: &str = "the system has no random bytes";
