//! Encrypts a volume: only a program with the key can read the data below.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use aes::{Aes256, cipher::KeyInit};
use tokio::task::yield_now;
use xts_mode::{Xts128, get_tweak_default};
use zeroize::Zeroize;

use crate::{
    Data, Durability, ErasableKey, Error, Extensions, Extent, FlushedReads, Geometry, Io, Lba,
    RedundantCopies, Stack, Volume,
    buffer::{IoBuffer, IoBufferPool},
};

type Xts = Xts128<Aes256>;

/// The two keys of XTS-AES-256. `Debug` does not show them; they are overwritten when dropped.
#[derive(Clone)]
pub struct VolumeKey(Box<[u8; VolumeKey::BYTES]>);

impl VolumeKey {
    /// Length of the two XTS keys together, in bytes.
    pub const BYTES: usize = 64;

    /// Makes a key of bytes from a random source. Returns `None` if both halves are equal, which XTS
    /// does not allow (NIST SP 800-38E by FIPS 140, A.9).
    #[must_use]
    pub fn new(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (data, tweak) = bytes.split_at(Self::BYTES / 2);
        (data != tweak).then(|| Self(Box::new(*bytes)))
    }

    /// Returns the key in the clear. The caller must store it where no other user can read it.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    fn cipher(&self) -> Xts {
        let (data, tweak) = self.0.split_at(Self::BYTES / 2);
        let cipher = |key: &[u8]| Aes256::new_from_slice(key).expect("a half is 32 bytes");
        Xts128::new(cipher(data), cipher(tweak))
    }
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("VolumeKey(..)")
    }
}

impl Drop for VolumeKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Stores the key of a volume.
pub trait Keyring: Send + Sync + 'static {
    /// Generates a new key and stores it in place of the former one. If this fails, the former key is still stored.
    fn renew(&self) -> Io<'_, Renewed>;
}

/// The result of [`Keyring::renew`]: the new key, which is stored.
pub struct Renewed {
    pub key: VolumeKey,
    /// `Ok` if the new key is stable and no trace of the former key is left.
    pub settled: Result<(), Error>,
}

/// Encrypts `lower` with XTS-AES-256 (IEEE 1619) in units of 512 bytes, each with its address as
/// tweak.
///
/// - The data does not grow, so there is no checksum: a changed block cannot be distinguished from a
///   written one. An attacker who can write to the storage below can destroy data, and one who reads
///   it twice sees which blocks have changed.
/// - 512 zeros below read as 512 zeros here. Blocks that were never written, or were discarded,
///   therefore read as zeros, and an observer of the storage below can recognise them. Written data
///   encrypts to zeros with probability 2⁻⁴⁰⁹⁶.
pub struct EncryptVolume<K> {
    lower: Stack,
    cipher: RwLock<Arc<Xts>>,
    keyring: K,
    pool: Arc<IoBufferPool>,
}

impl<K: Keyring> EncryptVolume<K> {
    /// Encrypts the blocks of `lower` with `key`, which `keyring` has stored.
    #[must_use]
    pub fn new(lower: Stack, key: &VolumeKey, keyring: K) -> Self {
        let cipher = RwLock::new(Arc::new(key.cipher()));
        Self { lower, cipher, keyring, pool: Arc::default() }
    }

    fn cipher(&self) -> Arc<Xts> {
        Arc::clone(&self.cipher.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a copy of `data` in a buffer, and the number of its first unit.
    fn copied(&self, lba: Lba, data: &Data) -> (IoBuffer, u128) {
        let mut buffer = self.pool.take(data.len());
        data.copy_to_slice(&mut buffer);
        let units_per_block = u128::from(self.lower.geometry().block_size) / UNIT as u128;
        (buffer, u128::from(lba.0) * units_per_block)
    }

    /// Returns a copy of `data`, which begins at `lba`, with `change` applied to each unit. Yields
    /// after every [`UNITS_AT_ONCE`] units.
    async fn copy(&self, lba: Lba, data: &Data, change: fn(&Xts, &mut [u8], u128)) -> Data {
        let cipher = self.cipher();
        let (mut buffer, first) = self.copied(lba, data);
        for (at, unit) in buffer.chunks_exact_mut(UNIT).enumerate() {
            if at > 0 && at % UNITS_AT_ONCE == 0 {
                yield_now().await;
            }
            change(&cipher, unit, first + at as u128);
        }
        Data::from(buffer.freeze())
    }

    /// Returns a decrypted copy of `data`. Does not yield to other tasks in between, so call it for short data.
    fn decrypted(&self, lba: Lba, data: &Data) -> Data {
        let cipher = self.cipher();
        let (mut buffer, first) = self.copied(lba, data);
        for (at, unit) in buffer.chunks_exact_mut(UNIT).enumerate() {
            decrypt(&cipher, unit, first + at as u128);
        }
        Data::from(buffer.freeze())
    }
}

fn encrypt(cipher: &Xts, unit: &mut [u8], place: u128) {
    cipher.encrypt_sector(unit, get_tweak_default(place));
}

fn decrypt(cipher: &Xts, unit: &mut [u8], place: u128) {
    if unit.iter().any(|byte| *byte != 0) {
        cipher.decrypt_sector(unit, get_tweak_default(place));
    }
}

impl<K: Keyring> Volume for EncryptVolume<K> {
    fn geometry(&self) -> Geometry {
        Geometry { key_erasable: true, ..self.lower.geometry() }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let data = self.lower.read(extent).await?;
            Ok(self.copy(extent.lba, &data, decrypt).await)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        // Only whole units can be encrypted.
        if let Err(error) = self.geometry().check_write(lba, data.len()) {
            return Io::done(Err(error));
        }
        Io::new(async move {
            let data = self.copy(lba, &data, encrypt).await;
            self.lower.write(lba, data, durability).await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.lower.discard(extent)
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            flushed_reads: below.flushed_reads.and(Some(self)),
            ordered_flush: None,
            key: Some(self),
            copies: below.copies.and(Some(self)),
            ..below
        }
    }
}

impl<K: Keyring> FlushedReads for EncryptVolume<K> {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let data = self.lower.extensions().read_flushed(extent).await?;
            Ok(self.copy(extent.lba, &data, decrypt).await)
        })
    }
}

impl<K: Keyring> ErasableKey for EncryptVolume<K> {
    fn erase_key(&self) -> Io<'_, ()> {
        Io::new(async move {
            let Renewed { key, settled } = self.keyring.renew().await?;
            // Use the new key even if the old one may not be erased completely: the next start reads
            // the new key from the keyring.
            *self.cipher.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key.cipher());
            settled
        })
    }
}

impl<K: Keyring> RedundantCopies for EncryptVolume<K> {
    fn examine<'a>(
        &'a self,
        extent: Extent,
        is_right: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>> {
        Io::new(async move {
            let judge = |data: &Data| is_right(&self.decrypted(extent.lba, data));
            let found = crate::examine(&*self.lower, extent, &judge).await?;
            Ok(found.map(|data| self.decrypted(extent.lba, &data)))
        })
    }

    fn divergent(&self) -> Vec<Extent> {
        self.lower.extensions().divergent()
    }

    fn make_equal(&self) -> Io<'_, ()> {
        self.lower.extensions().make_equal()
    }
}

/// Bytes that are encrypted as one unit: the smaller of the two block sizes, so that a volume reads
/// the same with either.
const UNIT: usize = 512;
/// Number of units after which other tasks get their turn: 128 KiB, about 100 µs.
const UNITS_AT_ONCE: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{MemVolume, testing::now};

    /// A keyring that numbers its keys.
    struct Counting(Mutex<u8>);

    impl Keyring for Counting {
        fn renew(&self) -> Io<'_, Renewed> {
            let mut last = self.0.lock().unwrap();
            *last += 1;
            let settled = if *last < 100 { Ok(()) } else { Err(Error::NoSpace) };
            Io::done(Ok(Renewed { key: key(*last), settled }))
        }
    }

    fn key(seed: u8) -> VolumeKey {
        VolumeKey::new(&std::array::from_fn(|at| (at as u8).wrapping_mul(7) ^ seed)).unwrap()
    }

    fn encrypted(block_size: u32) -> (Stack, EncryptVolume<Counting>) {
        let geometry = Geometry { block_size, ..Geometry::with_blocks(64) };
        let lower: Stack = Arc::new(MemVolume::new(geometry));
        (Arc::clone(&lower), EncryptVolume::new(lower, &key(0), Counting(Mutex::new(0))))
    }

    fn extent(lba: u64, blocks: u32) -> Extent {
        Extent { lba: Lba(lba), blocks }
    }

    /// IEEE 1619-2007, vector 10: XTS-AES-256 on 512 bytes, data unit FFh.
    #[test]
    fn encryption_matches_the_test_vector_of_the_standard() {
        let hex = |text: &str| -> Vec<u8> {
            let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let digit = |d: u8| (d as char).to_digit(16).unwrap() as u8;
            digits.chunks_exact(2).map(|two| digit(two[0]) << 4 | digit(two[1])).collect()
        };
        let bytes = hex("27182818284590452353602874713526624977572470936999595749669676 27
             3141592653589793238462643383279502884197169399375105820974944592");
        let key = VolumeKey::new(&bytes.try_into().unwrap()).unwrap();
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(256)));
        let volume = EncryptVolume::new(Arc::clone(&lower), &key, Counting(Mutex::new(0)));
        let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
        now(volume.write(Lba(255), Data::from(plain.clone()), Durability::Volatile)).unwrap();
        let below = now(lower.read(extent(255, 1))).unwrap().into_bytes();
        assert_eq!(
            below[..32],
            hex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b")
        );
        assert_eq!(now(volume.read(extent(255, 1))).unwrap().into_bytes(), plain);
    }

    #[test]
    fn written_data_reads_back_and_is_encrypted_in_the_lower_volume() {
        for block_size in [512, 4096] {
            let (lower, volume) = encrypted(block_size);
            let data = Data::from(vec![0x5a; 3 * block_size as usize]);
            now(volume.write(Lba(2), data.clone(), Durability::Stable)).unwrap();
            assert_eq!(now(volume.read(extent(2, 3))).unwrap(), data);
            let below = now(lower.read(extent(2, 3))).unwrap().into_bytes();
            let units: std::collections::HashSet<_> = below.chunks(16).collect();
            assert_eq!(units.len(), below.len() / 16, "no sixteen bytes are like others");
            let part = data.slice(0, block_size as usize);
            assert_eq!(now(volume.read(extent(4, 1))).unwrap(), part);
        }
    }

    #[test]
    fn blocks_of_either_size_are_encrypted_alike() {
        let below = [512, 4096].map(|block_size| {
            let (lower, volume) = encrypted(block_size);
            let data: Vec<u8> = (0..8192u32).map(|at| (at % 251) as u8).collect();
            let lba = Lba(u64::from(4096 / block_size));
            now(volume.write(lba, Data::from(data), Durability::Volatile)).unwrap();
            now(lower.read(Extent { lba, blocks: 8192 / block_size })).unwrap().into_bytes()
        });
        assert_eq!(below[0], below[1]);
    }

    #[test]
    fn unwritten_and_discarded_blocks_read_as_zeros() {
        let (_, volume) = encrypted(512);
        let zeros = Data::zeros(1024);
        assert_eq!(now(volume.read(extent(0, 2))).unwrap(), zeros);
        now(volume.write(Lba(0), Data::from(vec![1; 1024]), Durability::Volatile)).unwrap();
        now(volume.discard(extent(0, 2))).unwrap();
        assert_eq!(now(volume.read(extent(0, 2))).unwrap(), zeros);
        now(volume.write(Lba(0), zeros.clone(), Durability::Volatile)).unwrap();
        assert_eq!(now(volume.read(extent(0, 2))).unwrap(), zeros);
    }

    #[test]
    fn nothing_can_be_read_once_its_key_is_erased() {
        let (_, volume) = encrypted(512);
        assert!(volume.geometry().key_erasable);
        let data = Data::from(vec![0x5a; 512]);
        now(volume.write(Lba(0), data.clone(), Durability::Volatile)).unwrap();
        now(volume.erase_key()).unwrap();
        let found = now(volume.read(extent(0, 1))).unwrap().into_bytes();
        assert!(found.chunks(16).all(|chunk| chunk != [0x5a; 16]));
        now(volume.write(Lba(0), data.clone(), Durability::Volatile)).unwrap();
        assert_eq!(now(volume.read(extent(0, 1))).unwrap(), data);
    }

    /// The keyring stores the new key but reports that the old one may still be found. The volume
    /// must use the new key all the same, because a restart reads the stored key: otherwise it could
    /// not read what was written since.
    #[test]
    fn a_stored_key_is_used_though_the_old_key_may_not_be_erased() {
        let (lower, volume) = encrypted(512);
        *volume.keyring.0.lock().unwrap() = 99;
        assert!(matches!(now(volume.erase_key()), Err(Error::NoSpace)));
        let data = Data::from(vec![0x5a; 512]);
        now(volume.write(Lba(0), data.clone(), Durability::Volatile)).unwrap();
        let restarted = EncryptVolume::new(lower, &key(100), Counting(Mutex::new(0)));
        assert_eq!(now(restarted.read(extent(0, 1))).unwrap(), data);
    }

    #[test]
    fn examine_checks_decrypted_data() {
        let (_, volume) = encrypted(512);
        let data = Data::from(vec![0x5a; 512]);
        now(volume.write(Lba(3), data.clone(), Durability::Volatile)).unwrap();
        let is_right = |found: &Data| *found == data;
        assert_eq!(now(volume.examine(extent(3, 1), &is_right)).unwrap(), Some(data.clone()));
        assert_eq!(now(volume.examine(extent(4, 1), &is_right)).unwrap(), None);
    }

    #[test]
    fn keys_are_not_printed_and_the_two_parts_of_a_key_must_differ() {
        assert_eq!(format!("{:?}", key(0)), "VolumeKey(..)");
        assert!(VolumeKey::new(&[7; 64]).is_none());
    }
}
