//! The replacement of the master key: the keys on the drive are sealed under another one.
//!
//! | step | stable before the next step |
//! |---|---|
//! | 1 | the keys of each partition, sealed under the new key, in a record beside the one under the former key |
//! | 2 | the root key, sealed under the new key: from here on the drive opens with the new key only |
//! | 3 | the record of each partition, replaced by the one beside it |
//!
//! A drive whose replacement was interrupted opens with the former key before step 2, and with the
//! new key after it: then keys of partitions are also read from the records beside. Repeating the
//! replacement completes it.

use bytes::Bytes;
use object::{Command, ListRequest, ObjectError, ObjectRequest, ReplyData};
use osd::security::{KeyPair, SystemId};

use super::{
    key_store::{KeyStoreError, ROOT_RECORD, record_beside, record_of},
    sealed::RecordSeal,
};
use crate::backing::DriveBacking;

/// Bytes of each list of partitions that is read: 8,191 identifiers.
const LIST_BYTES: u64 = 64 << 10;

/// Seals the keys of a drive under `new`, which were sealed under `former`. Returns the number of
/// records that were written. Call this while no command is at work.
///
/// # Errors
/// The records cannot be read or written, or were sealed under a third key.
pub async fn replace_master_key(
    store: &impl DriveBacking,
    former: &KeyPair,
    new: &KeyPair,
    system: SystemId,
) -> Result<u64, KeyStoreError> {
    let (from, to) = (RecordSeal::new(former, system), RecordSeal::new(new, system));
    let Some(root) = read(store, ROOT_RECORD).await? else { return Ok(0) };
    let mut written = 0;
    let mut write = async |name: &str, plain: &[u8]| -> Result<(), KeyStoreError> {
        let sealed = to.seal(name, plain).map_err(|error| {
            ObjectError::Storage(format!("no random bytes to seal a key: {error}"))
        })?;
        store.put_record(name, Bytes::from(sealed)).await?;
        written += 1;
        Ok(())
    };
    let partitions = async |next: u64| partitions_from(store, next).await;
    if to.open(ROOT_RECORD, &root).is_err() {
        let plain = from.open(ROOT_RECORD, &root).map_err(|_| KeyStoreError::Sealed)?;
        let mut next = Some(0);
        while let Some(first) = next {
            let (found, later) = partitions(first).await?;
            for partition in found {
                let name = record_of(partition);
                if let Some(sealed) = read(store, &name).await? {
                    let plain = from.open(&name, &sealed).map_err(|_| KeyStoreError::Sealed)?;
                    write(&record_beside(partition), &plain).await?;
                }
            }
            next = later;
        }
        write(ROOT_RECORD, &plain).await?;
    }
    let mut next = Some(0);
    while let Some(first) = next {
        let (found, later) = partitions(first).await?;
        for partition in found {
            let (name, beside) = (record_of(partition), record_beside(partition));
            let Some(sealed) = read(store, &beside).await? else { continue };
            // After step 2, SET KEY may have written the record under the new key: it is the later one.
            let is_later = read(store, &name).await?.is_some_and(|it| to.open(&name, &it).is_ok());
            if !is_later && let Ok(plain) = to.open(&beside, &sealed) {
                write(&name, &plain).await?;
            }
            store.put_record(&beside, Bytes::new()).await?;
        }
        next = later;
    }
    Ok(written)
}

/// Returns a record that is not empty.
async fn read(store: &impl DriveBacking, name: &str) -> Result<Option<Bytes>, ObjectError> {
    Ok(store.record(name).await?.filter(|record| !record.is_empty()))
}

/// Returns a part of the list of partitions, and where the next part begins.
async fn partitions_from(
    store: &impl DriveBacking,
    first: u64,
) -> Result<(Vec<u64>, Option<u64>), ObjectError> {
    let list = ListRequest { allocation_length: LIST_BYTES, first, ..ListRequest::default() };
    let reply = store.perform(ObjectRequest::new(Command::List { partition: 0, list })).await?;
    let ReplyData::List(list) = reply.data else { return Ok((Vec::new(), None)) };
    let found = list.objects.iter().map(|partition| partition.id).collect();
    Ok((found, Some(list.continuation).filter(|next| *next > first)))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use object::{KeyToSet, ObjectAddress, ObjectResult, ObjectStore, ObjectType};
    use osd::security::{Key, SigningKey};
    use volume::Reply;

    use super::*;
    use crate::{
        security::{KeySlot, KeyStore},
        store::GuardFacts,
        testing::{MemoryStore, PARTITION, SYSTEM, master, set_key},
    };

    /// A store that writes some records, and then fails.
    struct Interrupted {
        store: Arc<MemoryStore>,
        left: AtomicUsize,
    }

    impl ObjectStore for Interrupted {
        fn perform(&self, request: ObjectRequest) -> Reply<'_, ObjectResult> {
            self.store.perform(request)
        }
    }

    impl DriveBacking for Interrupted {
        fn guard_facts(&self, object: ObjectAddress) -> Reply<'_, Result<GuardFacts, ObjectError>> {
            self.store.guard_facts(object)
        }

        fn record(&self, key: &str) -> Reply<'_, Result<Option<Bytes>, ObjectError>> {
            self.store.record(key)
        }

        fn put_record(&self, key: &str, value: Bytes) -> Reply<'_, Result<(), ObjectError>> {
            let left = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            match left {
                Ok(_) => self.store.put_record(key, value),
                Err(_) => Reply::done(Err(ObjectError::Storage("interrupted".into()))),
            }
        }

        fn boot_epoch(&self) -> u16 {
            self.store.boot_epoch()
        }
    }

    const OTHER: u64 = PARTITION + 5;

    fn new_master() -> KeyPair {
        KeyPair { authentication: Key::new([1; 32]), generation: Key::new([2; 32]) }
    }

    /// Returns a store whose keys are all set: those of two partitions, of which each has a working key.
    async fn with_keys() -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::with_partition(PARTITION));
        store.add(ObjectAddress::partition(OTHER), ObjectType::Partition);
        let keys = KeyStore::open(&*store, Some(master()), SYSTEM).await.unwrap();
        keys.set_key(&*store, &set_key(KeyToSet::Root, 1)).await.unwrap();
        for partition in [PARTITION, OTHER] {
            for key in
                [KeyToSet::Partition { partition }, KeyToSet::Working { partition, version: 3 }]
            {
                keys.set_key(&*store, &set_key(key, partition as u8)).await.unwrap();
            }
        }
        store
    }

    /// Returns the bytes of the root key and of the working keys.
    async fn all_keys(keys: &KeyStore, store: &MemoryStore) -> Vec<Option<[u8; 32]>> {
        let mut all = Vec::new();
        for (key, version) in [
            (SigningKey::Root, 0),
            (SigningKey::Working { partition: PARTITION }, 3),
            (SigningKey::Working { partition: OTHER }, 3),
        ] {
            let found = keys.authentication(store, KeySlot { key, version }).await.unwrap();
            all.push(found.map(|(key, _)| *key.bytes()));
        }
        all
    }

    #[tokio::test]
    async fn an_interrupted_replacement_opens_with_one_of_the_two_keys_and_can_be_completed() {
        let store = with_keys().await;
        let before = KeyStore::open(&*store, Some(master()), SYSTEM).await.unwrap();
        let expected = all_keys(&before, &store).await;
        assert!(expected.iter().all(Option::is_some));
        let (mut interruptions, mut opened_with_former) = (0, 0);
        for written in 0.. {
            let store = with_keys().await;
            let interrupted =
                Interrupted { store: Arc::clone(&store), left: AtomicUsize::new(written) };
            let ended =
                replace_master_key(&interrupted, &master(), &new_master(), SYSTEM).await.is_ok();
            let former = KeyStore::open(&*store, Some(master()), SYSTEM).await;
            let new = KeyStore::open(&*store, Some(new_master()), SYSTEM).await;
            assert!(former.is_ok() != new.is_ok(), "after {written} records");
            opened_with_former += usize::from(former.is_ok());
            let keys = former.or(new).unwrap();
            assert_eq!(all_keys(&keys, &store).await, expected, "after {written} records");
            replace_master_key(&*store, &master(), &new_master(), SYSTEM).await.unwrap();
            let keys = KeyStore::open(&*store, Some(new_master()), SYSTEM).await.unwrap();
            assert_eq!(all_keys(&keys, &store).await, expected, "completed after {written}");
            if ended {
                break;
            }
            interruptions += 1;
        }
        // Two records beside, the root, and for each partition its record and the removal of the one beside.
        assert_eq!((interruptions, opened_with_former), (7, 3));
    }

    #[tokio::test]
    async fn a_key_that_was_set_after_an_interruption_is_not_replaced_by_the_former_one() {
        let store = with_keys().await;
        let interrupted = Interrupted { store: Arc::clone(&store), left: AtomicUsize::new(3) };
        replace_master_key(&interrupted, &master(), &new_master(), SYSTEM).await.unwrap_err();
        let keys = KeyStore::open(&*store, Some(new_master()), SYSTEM).await.unwrap();
        let working = KeyToSet::Working { partition: PARTITION, version: 3 };
        keys.set_key(&*store, &set_key(working, 99)).await.unwrap();
        let expected = all_keys(&keys, &store).await;
        replace_master_key(&*store, &master(), &new_master(), SYSTEM).await.unwrap();
        let keys = KeyStore::open(&*store, Some(new_master()), SYSTEM).await.unwrap();
        assert_eq!(all_keys(&keys, &store).await, expected);
    }

    #[tokio::test]
    async fn a_third_key_replaces_nothing() {
        let store = with_keys().await;
        let third = KeyPair { authentication: Key::new([8; 32]), generation: Key::new([9; 32]) };
        let refused = replace_master_key(&*store, &third, &new_master(), SYSTEM).await;
        assert_eq!(refused, Err(KeyStoreError::Sealed));
        assert!(KeyStore::open(&*store, Some(master()), SYSTEM).await.is_ok());
    }
}
