//! Sealed blocks: what the log and the NVRAM hold of the volume's data, encrypted with AES-256-GCM,
//! each block by itself. What is opened is what was sealed, in the same place, or nothing.
//!
//! No nonce is used twice with a key: every opening of a log draws a salt, and has keys of its own
//! by it, one for segments and one for the NVRAM. So two copies of a log that are both opened do not
//! share a key either. Within an opening no segment has the number of another, and no two writes to
//! the NVRAM have the same count.

use std::fmt;

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt as Extract},
    rand::{SecureRandom, SystemRandom},
};

use crate::BLOCK_BYTES;

/// What the key of every opening is derived from. Never shown.
#[derive(Clone)]
pub struct LogKey(Prk);

/// What is random in the keys of an opening.
pub type Salt = [u8; 12];
/// The authentication tag of a block.
pub type Tag = [u8; 16];
/// By which a log knows its key again.
pub(crate) type KeyCheck = [u8; 16];

impl LogKey {
    /// The key that these bytes make: at least 32, from a source of random ones.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(Extract::new(HKDF_SHA256, b"forebay log key 1").extract(secret))
    }

    /// What the superblock of the log `instance` says of this key. Tells nothing of the key.
    pub fn check(&self, instance: &[u8; 16]) -> KeyCheck {
        self.derive(&[b"check", instance])
    }

    /// What seals the segments of the log `instance` in the opening that drew `salt`.
    pub fn for_segments(&self, instance: &[u8; 16], salt: &Salt) -> Sealer {
        Sealer::new(self.derive(&[b"segments", instance, salt]))
    }

    /// What seals its NVRAM.
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

/// Seals and opens blocks with the key of one opening.
pub struct Sealer(LessSafeKey);

/// Which of all blocks that a key seals: a number, and which of those with this number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Which(pub u64, pub u32);

/// What must be the same when a block is opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SealedBlockId {
    /// The slot of the volume whose data the block holds.
    pub slot: u64,
    /// Its sectors that the block holds.
    pub mask: u8,
    /// Of the write; 0 in the log, whose segments are in order.
    pub serial: u64,
}

impl Sealer {
    fn new(key: [u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("AES-256 takes 32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// With a key that is drawn now, and forgotten with this object.
    pub fn drawn() -> Result<Self, &'static str> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).map_err(|_| NOT_RANDOM)?;
        Ok(Self::new(key))
    }

    /// Encrypts a block in its place. `which` must never come again with other content.
    pub fn seal(&self, which: Which, about: SealedBlockId, block: &mut [u8]) -> Tag {
        let sealed = self.0.seal_in_place_separate_tag(which.nonce(), about.aad(), block);
        let tag = sealed.expect("a block is shorter than 64 GiB");
        tag.as_ref().try_into().expect("a tag of GCM has 16 bytes")
    }

    /// Decrypts a block into `to`, if it is what was sealed.
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

/// A salt that nobody else draws.
pub fn draw_salt() -> Result<Salt, &'static str> {
    let mut salt = [0; 12];
    SystemRandom::new().fill(&mut salt).map_err(|_| NOT_RANDOM)?;
    Ok(salt)
}

const NOT_RANDOM: &str = "the system has no random bytes";
