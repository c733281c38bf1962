//! Superblocks that are damaged, of another drive, of a newer version, or of a longer volume; and the boot epoch.

use std::sync::Arc;

use drive::{DriveStore, OpenError};
use volume::{Data, Durability, Extent, Lba, Stack};

use crate::support::*;

const MIB: u64 = 1 << 20;

async fn bytes(volume: &Stack) -> Vec<u8> {
    let blocks = volume.geometry().blocks as u32;
    volume.read(Extent { lba: Lba(0), blocks }).await.expect("read").into_bytes().to_vec()
}

async fn put(volume: &Stack, bytes: &[u8]) {
    volume.write(Lba(0), Data::from(bytes.to_vec()), Durability::Stable).await.expect("written");
}

/// Changes the superblocks of `copies` with `change`, and makes their checksums right.
async fn change(volume: &Stack, copies: &[usize], change: impl Fn(&mut [u8])) {
    let mut all = bytes(volume).await;
    for copy in copies {
        let superblock = &mut all[copy * 4096..][..80];
        change(superblock);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &superblock[..76]) as u32;
        superblock[76..].copy_from_slice(&crc.to_le_bytes());
    }
    put(volume, &all).await;
}

/// A closed drive with an object of 5,000 bytes.
async fn sample() -> (Stack, object::ObjectAddress) {
    let volume = memory(16 * MIB);
    let store = open(&volume).await;
    let partition = create_partition(&store).await;
    let object = create(&store, partition).await;
    write(&store, object, 0, vec![7; 5_000]).await.expect("written");
    store.close().await.expect("closed");
    (volume, object)
}

/// Expects that the drive is refused with an error that `is_right` accepts, and that its volume stays as it is.
async fn refused(volume: &Stack, is_right: impl Fn(&OpenError) -> bool) {
    let before = bytes(volume).await;
    let error = DriveStore::open(Arc::clone(volume), options()).await.err().expect("refused");
    assert!(is_right(&error), "{error}");
    assert!(bytes(volume).await == before, "the volume was changed");
}

#[test]
fn the_volume_of_another_drive_is_refused_by_its_identity() {
    run(async {
        let (volume, _) = sample().await;
        let before = bytes(&volume).await;
        let mut other = options();
        other.identity.system_id[19] ^= 1;
        let error = DriveStore::open(Arc::clone(&volume), other.clone()).await.err();
        let error = error.expect("refused").to_string();
        assert!(error.ends_with("ends in 30303065343634663532343534323431"), "{error}");
        let examined = drive::examine_drive(Arc::clone(&volume), other, Box::new(|_, _| {})).await;
        assert!(matches!(examined, Err(OpenError::OtherDrive { .. })));
        assert!(bytes(&volume).await == before, "the volume was changed");
    });
}

#[test]
fn superblocks_that_contradict_each_other_are_refused() {
    run(async {
        for at in [24, 48, 64] {
            let (volume, _) = sample().await;
            let mut all = bytes(&volume).await;
            // The older copy: the drive was opened and closed once, so the copies have the numbers 2 and 3.
            assert_eq!((all[16], all[4096 + 16]), (2, 3));
            all[at] ^= 1;
            if at == 48 {
                // The begin of the data follows from the length of the tables.
                all[48] ^= 1;
                let shift = |all: &mut [u8], at: usize| {
                    let number = u64::from_le_bytes(all[at..at + 8].try_into().unwrap()) - 4096;
                    all[at..at + 8].copy_from_slice(&number.to_le_bytes());
                };
                shift(&mut all, 48);
                shift(&mut all, 56);
            }
            if at == 64 {
                // The older copy has the same number as the newer one.
                all[64] ^= 1;
                all[16] = 3;
            }
            put(&volume, &all).await;
            change(&volume, &[0], |_| {}).await;
            refused(&volume, |error| matches!(error, OpenError::Contradiction)).await;
        }
    });
}

#[test]
fn a_volume_that_was_cut_short_or_has_a_newer_version_is_refused() {
    run(async {
        let (volume, _) = sample().await;
        let all = bytes(&volume).await;
        let short = memory(15 * MIB);
        put(&short, &all[..15 << 20]).await;
        refused(&short, |error| {
            matches!(error, OpenError::Truncated { bytes: 0xf0_0000, formatted: 0x100_0000 })
        })
        .await;
        change(&volume, &[0, 1], |superblock| superblock[8] = 99).await;
        refused(&volume, |error| matches!(error, OpenError::NewerVersion { version: 99, .. }))
            .await;
    });
}

#[test]
fn a_flipped_bit_in_one_superblock_does_no_harm_and_in_both_is_refused() {
    run(async {
        let (volume, object) = sample().await;
        for byte in [0, 12, 20, 70, 79] {
            let before = bytes(&volume).await;
            let newer = usize::from(before[16] < before[4096 + 16]);
            let epoch = u16::from_le_bytes([before[newer * 4096 + 12], before[newer * 4096 + 13]]);
            for copy in [newer, 1 - newer] {
                let mut damaged = before.clone();
                damaged[copy * 4096 + byte] ^= 4;
                put(&volume, &damaged).await;
                let store = open(&volume).await;
                assert_eq!(read(&store, object, 0, 5_000).await.expect("read"), [7; 5_000]);
                assert!(store.boot_epoch() > epoch, "a boot epoch came twice");
                store.close().await.expect("closed");
            }
        }
        let mut damaged = bytes(&volume).await;
        damaged[20] ^= 1;
        damaged[4096 + 33] ^= 1;
        put(&volume, &damaged).await;
        refused(&volume, |error| matches!(error, OpenError::Superblocks)).await;
    });
}

#[test]
fn boot_epochs_that_come_again_are_valid_in_no_capability() {
    run(async {
        let (volume, _) = sample().await;
        let store = open(&volume).await;
        assert!(store.accepts_boot_epoch(store.boot_epoch()) && !store.accepts_boot_epoch(9));
        store.close().await.expect("closed");
        change(&volume, &[0, 1], |superblock| superblock[12..14].fill(0xff)).await;
        for epoch in [1, 2] {
            let store = open(&volume).await;
            assert_eq!(store.boot_epoch(), epoch);
            assert!((0..=u16::MAX).all(|epoch| !store.accepts_boot_epoch(epoch)));
            store.close().await.expect("closed");
        }
    });
}
