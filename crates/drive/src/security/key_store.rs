//! The keys of a drive: master, root, partition and working keys.
//!
//! The drive's owner configures a file with the master key. SET KEY sets the other keys; the store keeps them encrypted
//! under the master key. The keys of a bounded number of partitions are in memory, and the others are read when they
//! are needed.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use object::{
    AttributeId, AttributeSelection, Command, KeyToSet, ObjectAddress, ObjectError, ObjectRequest,
    SetKeyRequest, TimestampControl,
};
use osd::security::{Key, KeyPair, SigningKey, SystemId};
use parking_lot::{Mutex, RwLock};

use super::{
    key_records::{NamedPair, PartitionKeys, RootKeys, WORKING_KEYS},
    nonces::KeySlot,
    sealed::RecordSeal,
};
use crate::backing::DriveBacking;

/// The attribute "frozen working key bit mask" of a partition.
pub const FROZEN_KEYS: AttributeId = AttributeId::new(0x3000_0005, 0x5);
/// The attributes page of a partition with frozen audit values, 20 bytes each, under any number. An extension of
/// Forebay.
pub const FROZEN_AUDITS: u32 = 0xf001_0001;
/// Maximum number of partitions whose keys are in memory: about 1.5 KiB each.
const PARTITIONS: usize = 1_024;
/// Maximum number of frozen audit values of one partition; further values have no effect.
const AUDITS: usize = 256;
pub(super) const ROOT_RECORD: &str = "keys/root";

/// The reason why the stored keys of a drive cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyStoreError {
    #[error(
        "the keys on the drive cannot be opened: the master key is another one, or the record is damaged"
    )]
    Sealed,
    #[error("{0}")]
    Store(#[from] ObjectError),
}

/// The reason why SET KEY failed. The former keys remain valid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SetKeyError {
    /// The key one level above the new key is not set.
    NoParent,
    Store(ObjectError),
}

impl From<ObjectError> for SetKeyError {
    fn from(error: ObjectError) -> Self {
        Self::Store(error)
    }
}

/// The keys of a partition, and the attributes that make some of them invalid.
#[derive(Debug, Default)]
pub struct PartitionGuard {
    pub keys: Option<PartitionKeys>,
    /// Bit n is set if working key n is frozen.
    pub frozen: u16,
    pub frozen_audits: Vec<[u8; 20]>,
}

/// The master, root, partition and working keys of one drive.
pub struct KeyStore {
    master: Option<Master>,
    root: RwLock<Option<RootKeys>>,
    partitions: Mutex<HashMap<u64, Arc<PartitionGuard>>>,
    /// Increases with each change of keys, and each time that cached keys are discarded.
    generation: AtomicU64,
    /// Held while SET KEY changes stored keys, so that two SET KEY do not overwrite each other's keys.
    writing: tokio::sync::Mutex<()>,
}

struct Master {
    pair: KeyPair,
    seal: RecordSeal,
}

impl KeyStore {
    /// Reads the keys of a drive. Without a master key no other key is valid.
    ///
    /// # Errors
    /// The root key cannot be read, or was encrypted under another master key.
    pub async fn open(
        store: &impl DriveBacking,
        master: Option<KeyPair>,
        system: SystemId,
    ) -> Result<Self, KeyStoreError> {
        let seal = |pair: KeyPair| Master { seal: RecordSeal::new(&pair, system), pair };
        let keys = Self {
            master: master.map(seal),
            root: RwLock::default(),
            partitions: Mutex::default(),
            generation: AtomicU64::new(0),
            writing: tokio::sync::Mutex::default(),
        };
        let root = keys.read(store, ROOT_RECORD, RootKeys::parse).await?;
        *keys.root.write() = root;
        Ok(keys)
    }

    /// Returns a number that increases with each change of keys. Read it before you read a key: if it has changed
    /// since, the key may be invalid.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the authentication key of a slot; `None` if the key was never set, or is invalid. For a working key,
    /// also returns the frozen keys and audit values of its partition.
    ///
    /// # Errors
    /// The store cannot read the keys.
    pub async fn authentication(
        &self,
        store: &impl DriveBacking,
        slot: KeySlot,
    ) -> Result<Option<(Key, Option<Arc<PartitionGuard>>)>, KeyStoreError> {
        let key = |named: &NamedPair| named.pair.authentication.clone();
        Ok(match slot.key {
            SigningKey::Master => {
                self.master.as_ref().map(|master| (master.pair.authentication.clone(), None))
            }
            SigningKey::Root => self.root.read().as_ref().map(|keys| (key(&keys.root), None)),
            SigningKey::Partition { partition } => {
                let guard = self.partition(store, partition).await?;
                guard.keys.as_ref().map(|keys| (key(&keys.partition), None))
            }
            SigningKey::Working { partition } => {
                let guard = self.partition(store, partition).await?;
                let keys = guard.keys.as_ref();
                let working =
                    keys.and_then(|keys| keys.working[usize::from(slot.version)].as_ref());
                working.map(key).map(|key| (key, Some(Arc::clone(&guard))))
            }
        })
    }

    /// Performs SET KEY. When the call returns, the new key is stable and valid.
    ///
    /// # Errors
    /// See [`SetKeyError`].
    pub async fn set_key(
        &self,
        store: &impl DriveBacking,
        request: &SetKeyRequest,
    ) -> Result<(), SetKeyError> {
        let _writing = self.writing.lock().await;
        let identifier = request.key_identifier;
        let derive =
            |parent: &KeyPair| NamedPair { pair: parent.derive(&request.seed), identifier };
        match request.key {
            KeyToSet::Root => {
                let master = self.master.as_ref().ok_or(SetKeyError::NoParent)?;
                let number = self.root.read().as_ref().map_or(1, |root| root.number + 1);
                let keys = RootKeys { root: derive(&master.pair), number };
                self.write(store, ROOT_RECORD, &keys.to_bytes()).await?;
                *self.root.write() = Some(keys);
                self.forget_all();
            }
            KeyToSet::Partition { partition } => {
                let root = self.root.read().clone().ok_or(SetKeyError::NoParent)?;
                let address = ObjectAddress::partition(partition);
                if partition == 0 {
                    return Err(ObjectError::NoSuchObject { object: address }.into());
                }
                let keys = PartitionKeys {
                    created: store.guard_facts(address).await?.created,
                    root_number: root.number,
                    partition: derive(&root.root.pair),
                    working: [const { None }; WORKING_KEYS],
                };
                self.write(store, &record_of(partition), &keys.to_bytes()).await?;
                self.forget(partition);
            }
            KeyToSet::Working { partition, version } => {
                let guard = match self.partition(store, partition).await {
                    Ok(guard) => guard,
                    Err(KeyStoreError::Store(error)) => return Err(error.into()),
                    Err(KeyStoreError::Sealed) => return Err(SetKeyError::NoParent),
                };
                let mut keys = guard.keys.clone().ok_or(SetKeyError::NoParent)?;
                let working = derive(&keys.partition.pair);
                keys.working[usize::from(version & 0x0f)] = Some(working);
                self.write(store, &record_of(partition), &keys.to_bytes()).await?;
                self.forget(partition);
            }
        }
        Ok(())
    }

    /// Deletes the stored keys of a partition that was removed. A failure does no harm: the keys are invalid without
    /// the partition, and only use space.
    pub async fn remove(&self, store: &impl DriveBacking, partition: u64) {
        self.forget(partition);
        if self.master.is_some() {
            let _ = store.put_record(&record_of(partition), Bytes::new()).await;
        }
    }

    /// Discards the cached keys and attributes of a partition. Their next use reads them from the store again.
    pub fn forget(&self, partition: u64) {
        let mut partitions = self.partitions.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        partitions.remove(&partition);
    }

    /// Discards the cached keys and attributes of every partition. Their next use reads them from the store again.
    pub fn forget_all(&self) {
        let mut partitions = self.partitions.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        partitions.clear();
    }

    /// Returns the identifier that SET KEY gave the root key; `None` if no root key is set.
    #[must_use]
    pub fn root_identifier(&self) -> Option<[u8; 7]> {
        self.root.read().as_ref().map(|keys| keys.root.identifier)
    }

    /// Returns the keys of a partition, and its frozen keys and audit values. A partition that does not exist has no
    /// keys.
    ///
    /// # Errors
    /// The store cannot read the keys or the attributes.
    pub async fn partition(
        &self,
        store: &impl DriveBacking,
        partition: u64,
    ) -> Result<Arc<PartitionGuard>, KeyStoreError> {
        if let Some(guard) = self.partitions.lock().get(&partition) {
            return Ok(Arc::clone(guard));
        }
        let generation = self.generation();
        let guard = Arc::new(self.load(store, partition).await?);
        let mut partitions = self.partitions.lock();
        // Do not cache the keys if keys have changed while they were read.
        if generation == self.generation() {
            if partitions.len() >= PARTITIONS
                && let Some(&other) = partitions.keys().next()
            {
                partitions.remove(&other);
            }
            partitions.insert(partition, Arc::clone(&guard));
        }
        Ok(guard)
    }

    async fn load(
        &self,
        store: &impl DriveBacking,
        partition: u64,
    ) -> Result<PartitionGuard, KeyStoreError> {
        let address = ObjectAddress::partition(partition);
        let facts = match store.guard_facts(address).await {
            Ok(facts) => facts,
            Err(ObjectError::NoSuchObject { .. }) => return Ok(PartitionGuard::default()),
            Err(error) => return Err(error.into()),
        };
        let root_number = self.root.read().as_ref().map(|root| root.number);
        let keys = match self.read(store, &record_of(partition), PartitionKeys::parse).await {
            // The replacement of the master key was interrupted.
            Err(KeyStoreError::Sealed) => {
                let beside = record_beside(partition);
                let found = self.read(store, &beside, PartitionKeys::parse).await?;
                Some(found.ok_or(KeyStoreError::Sealed)?)
            }
            found => found?,
        };
        let keys = keys
            .filter(|keys| keys.created == facts.created && Some(keys.root_number) == root_number);
        let mut request = ObjectRequest::new(Command::GetAttributes { object: address })
            .getting(AttributeSelection::One(FROZEN_KEYS))
            .getting(AttributeSelection::Page(FROZEN_AUDITS));
        request.options.timestamps = TimestampControl::Bypass;
        let mut guard = PartitionGuard { keys, ..PartitionGuard::default() };
        for attribute in store.perform(request).await?.attributes {
            let value = attribute.value.as_ref();
            if attribute.id == FROZEN_KEYS {
                guard.frozen = value.try_into().map_or(0, u16::from_be_bytes);
            } else if attribute.id.page == FROZEN_AUDITS && guard.frozen_audits.len() < AUDITS {
                guard.frozen_audits.extend(<[u8; 20]>::try_from(value));
            }
        }
        Ok(guard)
    }

    async fn read<T>(
        &self,
        store: &impl DriveBacking,
        name: &str,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, KeyStoreError> {
        let Some(Master { seal, .. }) = &self.master else { return Ok(None) };
        match store.record(name).await? {
            Some(sealed) if !sealed.is_empty() => {
                let plain = seal.open(name, &sealed).map_err(|_| KeyStoreError::Sealed)?;
                parse(&plain).ok_or(KeyStoreError::Sealed).map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn write(
        &self,
        store: &impl DriveBacking,
        name: &str,
        plain: &[u8],
    ) -> Result<(), SetKeyError> {
        let master = self.master.as_ref().ok_or(SetKeyError::NoParent)?;
        let sealed = master.seal.seal(name, plain).map_err(|error| {
            ObjectError::Storage(format!("no random bytes to seal a key: {error}"))
        })?;
        Ok(store.put_record(name, Bytes::from(sealed)).await?)
    }
}

/// Returns the name of the record with the keys of a partition.
pub(super) fn record_of(partition: u64) -> String {
    format!("keys/{partition:016x}")
}

/// Returns the name of the record with the keys of a partition under a new master key, while that
/// replaces the former one.
pub(super) fn record_beside(partition: u64) -> String {
    format!("keys/{partition:016x}/new")
}

#[cfg(test)]
mod tests {
    use object::{Attribute, ObjectStore};
    use osd::security::SEED_BYTES;

    use super::*;
    use crate::testing::{MemoryStore, PARTITION, SYSTEM, master, set_key};

    async fn key(
        keys: &KeyStore,
        store: &MemoryStore,
        key: SigningKey,
        version: u8,
    ) -> Option<Key> {
        let slot = KeySlot { key, version };
        keys.authentication(store, slot).await.unwrap().map(|(key, _)| key)
    }

    const WORKING: SigningKey = SigningKey::Working { partition: PARTITION };

    async fn with_keys(store: &MemoryStore) -> KeyStore {
        let keys = KeyStore::open(store, Some(master()), SYSTEM).await.unwrap();
        for key in [
            KeyToSet::Root,
            KeyToSet::Partition { partition: PARTITION },
            KeyToSet::Working { partition: PARTITION, version: 5 },
        ] {
            keys.set_key(store, &set_key(key, 0xa0)).await.unwrap();
        }
        keys
    }

    #[tokio::test]
    async fn keys_are_derived_level_by_level_and_read_again_after_a_restart() {
        let store = MemoryStore::with_partition(PARTITION);
        let keys = with_keys(&store).await;
        let seed: [u8; SEED_BYTES] = std::array::from_fn(|at| 0xa0 + at as u8);
        let expected = master().derive(&seed).derive(&seed).derive(&seed).authentication;
        assert_eq!(key(&keys, &store, WORKING, 5).await.unwrap().bytes(), expected.bytes());
        assert!(key(&keys, &store, WORKING, 4).await.is_none(), "a version that was not set");
        let again = KeyStore::open(&store, Some(master()), SYSTEM).await.unwrap();
        assert_eq!(key(&again, &store, WORKING, 5).await.unwrap().bytes(), expected.bytes());
        assert_eq!(again.root_identifier(), Some([7; 7]));
        for record in store.records() {
            let secret = expected.bytes();
            assert!(!record.windows(secret.len()).any(|window| window == secret), "in the clear");
        }
    }

    #[tokio::test]
    async fn keys_under_another_master_key_are_refused() {
        let store = MemoryStore::with_partition(PARTITION);
        drop(with_keys(&store).await);
        let other = KeyPair { authentication: Key::new([1; 32]), generation: Key::new([2; 32]) };
        let refused = KeyStore::open(&store, Some(other), SYSTEM).await.err();
        assert_eq!(refused, Some(KeyStoreError::Sealed));
    }

    #[tokio::test]
    async fn a_new_key_makes_the_keys_below_it_invalid() {
        let store = MemoryStore::with_partition(PARTITION);
        let partition = PARTITION;
        let keys = with_keys(&store).await;
        let before = keys.generation();
        keys.set_key(&store, &set_key(KeyToSet::Partition { partition }, 1)).await.unwrap();
        assert!(keys.generation() > before);
        assert!(key(&keys, &store, WORKING, 5).await.is_none());
        let keys = with_keys(&store).await;
        keys.set_key(&store, &set_key(KeyToSet::Root, 1)).await.unwrap();
        assert!(key(&keys, &store, WORKING, 5).await.is_none());
        assert!(key(&keys, &store, SigningKey::Partition { partition }, 0).await.is_none());
        let working = KeyToSet::Working { partition, version: 1 };
        let orphan = keys.set_key(&store, &set_key(working, 1)).await;
        assert_eq!(orphan, Err(SetKeyError::NoParent));
    }

    #[tokio::test]
    async fn a_key_that_could_not_be_stored_is_not_in_force() {
        let store = MemoryStore::with_partition(PARTITION);
        let keys = with_keys(&store).await;
        let before = key(&keys, &store, WORKING, 5).await.unwrap();
        store.fail_records(true);
        let working = KeyToSet::Working { partition: PARTITION, version: 5 };
        assert!(keys.set_key(&store, &set_key(working, 1)).await.is_err());
        assert!(keys.set_key(&store, &set_key(KeyToSet::Root, 1)).await.is_err());
        store.fail_records(false);
        assert_eq!(key(&keys, &store, WORKING, 5).await.unwrap().bytes(), before.bytes());
    }

    #[tokio::test]
    async fn a_partition_that_was_removed_leaves_no_keys_to_its_successor() {
        let store = MemoryStore::with_partition(PARTITION);
        let keys = with_keys(&store).await;
        store.replace_partition(PARTITION);
        keys.forget(PARTITION);
        assert!(key(&keys, &store, WORKING, 5).await.is_none());
    }

    #[tokio::test]
    async fn frozen_keys_and_audits_are_read_with_the_keys() {
        let store = MemoryStore::with_partition(PARTITION);
        let keys = with_keys(&store).await;
        let object = ObjectAddress::partition(PARTITION);
        let request = ObjectRequest::new(Command::SetAttributes { object })
            .setting(Attribute::new(FROZEN_KEYS.page, FROZEN_KEYS.number, vec![0x80, 0x01]))
            .setting(Attribute::new(FROZEN_AUDITS, 9, vec![3; 20]));
        store.perform(request).await.unwrap();
        keys.forget(PARTITION);
        let guard = keys.partition(&store, PARTITION).await.unwrap();
        assert_eq!(guard.frozen, 0x8001);
        assert_eq!(guard.frozen_audits, [[3; 20]]);
    }
}
