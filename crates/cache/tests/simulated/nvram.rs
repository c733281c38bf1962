//! Tests of immediate report from an NVRAM: which writes are stable in it, and which NVRAMs are refused at the
//! start.

use std::{sync::atomic::Ordering, time::Duration};

use crate::support::{
    claimed::Claimed,
    confirmed::Confirmed,
    gateway::{Gateway, filled, read},
    hanging_log::{Site, boot, connect, copy_of, is_done, stable},
};
use cache::{
    BootId, Cache, CacheOpenError, MappedFile, NvramSurvival, Parts, StableMemory, WriteMode,
};
use sim::Rng;
use volume::{Durability, Extent, FaultCallKind, FaultRule, Lba, Stack, Symptom, Volume};

#[tokio::test(start_paused = true)]
async fn with_nvram_that_survives_a_power_cut_a_write_is_stable_at_once() {
    for seed in 0..10 {
        let mut site = Site::new(NvramSurvival::PowerLoss);
        let cache = site.gateway.open().await;
        assert!(!cache.geometry().volatile_cache);
        stable(&cache, 0, 1).await.unwrap();
        site.hang_log();
        assert!(is_done(stable(&cache, 8, 2)).await);
        assert!(is_done(cache.write(Lba(9), filled(3, 2), Durability::Volatile)).await);
        assert!(is_done(cache.flush()).await);
        // The NVRAM does not hold discards, so a discard is not stable before it is in the log.
        let mut discard = Box::pin(cache.discard(Extent { lba: Lba(0), blocks: 8 }));
        assert!(futures_util::poll!(&mut discard).is_pending());
        // A read of the discarded blocks waits, too: it must not return zeros before the discard is stable.
        assert!(!is_done(read(&cache, 0, 8)).await);
        assert!(is_done(read(&cache, 8, 8)).await);
        drop(discard);
        drop(cache);
        site.power_cut(seed);
        let cache = site.gateway.open().await;
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
        assert_eq!(read(&cache, 8, 8).await.unwrap(), [2, 3, 3, 2, 2, 2, 2, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn with_nvram_that_does_not_survive_a_power_cut_a_flush_waits_for_the_log_disk() {
    let site = Site::new(NvramSurvival::Restart);
    let cache = site.gateway.open().await;
    assert!(cache.geometry().volatile_cache);
    site.hang_log();
    assert!(is_done(cache.write(Lba(0), filled(1, 8), Durability::Volatile)).await);
    assert!(!is_done(cache.flush()).await);
    assert!(!is_done(stable(&cache, 8, 2)).await);
}

/// The NVRAM is put back from an older copy: the log has a newer version of the block, and the NVRAM lacks later
/// acknowledged writes. A start must refuse it.
#[tokio::test(start_paused = true)]
async fn an_nvram_that_is_older_than_the_log_is_refused() {
    for survives in [NvramSurvival::Restart, NvramSurvival::PowerLoss] {
        let mut gateway = Gateway::new(1024).with_nvram();
        gateway.settings.report = WriteMode::Immediate;
        gateway.settings.nvram_survives = survives;
        gateway.settings.boot = Some(boot(1));
        let memory = gateway.memory.clone().expect("it has one");
        let cache = gateway.start().await;
        let mut copies = Vec::new();
        for byte in 1..6 {
            copies.push(memory.0.lock().clone());
            cache.write(Lba(0), filled(byte, 8), Durability::Volatile).await.unwrap();
            cache
                .write(Lba(u64::from(byte) * 8), filled(byte, 8), Durability::Stable)
                .await
                .unwrap();
            // Drain, so that the next copy of the NVRAM has a record of this segment.
            cache.drain().await.unwrap();
        }
        drop(cache);
        let newest = memory.0.lock().clone();
        for (at, copy) in copies.into_iter().enumerate() {
            *memory.0.lock() = copy;
            let refused = gateway.try_open().await.err();
            let is_right = matches!(
                refused,
                Some(CacheOpenError::NvramBehind { segment, noted }) if noted < segment
            );
            assert!(is_right, "copy {at}: {refused:?}");
        }
        *memory.0.lock() = newest;
        let cache = gateway.open().await;
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [5; 8]);
    }
}

/// The NVRAM is put back from an older copy and the loss is accepted. The older data in it must not replace the
/// newer data at the far volume.
#[tokio::test(start_paused = true)]
async fn an_older_nvram_with_accepted_loss_replaces_no_newer_destaged_data() {
    let mut gateway = Gateway::new(1024).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.start().await;
    cache.write(Lba(0), filled(1, 8), Durability::Volatile).await.unwrap();
    let memory = gateway.memory.clone().expect("it has one");
    // The NVRAM still holds the first write: the log takes it only when something waits for the log.
    let before = memory.0.lock().clone();
    cache.write(Lba(0), filled(2, 8), Durability::Stable).await.unwrap();
    cache.drain().await.unwrap();
    drop(cache);
    *memory.0.lock() = before;
    gateway.settings.accept_loss = true;
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [2; 8]);
}

/// The log disk hangs, so no segment in it shows that the older NVRAM lacks writes. The stored numbers of
/// confirmed writes must show it.
#[tokio::test(start_paused = true)]
async fn an_older_nvram_is_refused_by_confirmed_numbers_though_no_segment_was_written_since() {
    for (survives, how) in [
        (NvramSurvival::Restart, "a second later"),
        (NvramSurvival::PowerLoss, "a second later"),
        (NvramSurvival::PowerLoss, "by a flush"),
        (NvramSurvival::PowerLoss, "by a write that is stable"),
    ] {
        let mut site = Site::new(survives);
        let confirmed = Confirmed::default();
        site.gateway.settings.confirmed_in = Some(confirmed.store());
        site.gateway.settings.boot = Some(boot(1));
        let memory = site.gateway.memory.clone().expect("it has one");
        let cache = site.gateway.start().await;
        stable(&cache, 0, 1).await.unwrap();
        site.hang_log();
        let write = |byte| cache.write(Lba(8), filled(byte, 8), Durability::Volatile);
        assert!(is_done(write(1)).await);
        let before = memory.0.lock().clone();
        match how {
            "a second later" => {
                assert!(is_done(write(2)).await);
                tokio::time::sleep(Duration::from_millis(1100)).await;
            }
            "by a flush" => {
                assert!(is_done(write(2)).await);
                assert!(is_done(cache.flush()).await);
            }
            _ => assert!(is_done(stable(&cache, 8, 2)).await),
        }
        drop(cache);
        let newest = std::mem::replace(&mut *memory.0.lock(), before);
        site.power_cut(1);
        let refused = site.gateway.try_open().await.err();
        let is_right = matches!(refused, Some(CacheOpenError::Behind { .. }));
        assert!(is_right, "{survives:?}, {how}: {refused:?}");
        *memory.0.lock() = newest;
        let cache = site.gateway.open().await;
        assert_eq!(read(&cache, 8, 8).await.unwrap(), [2; 8]);
    }
}

/// An older copy of the log seems to have been stopped cleanly and to need nothing from the NVRAM. When it is
/// refused, the NVRAM must stay unchanged: the newest log needs it.
#[tokio::test(start_paused = true)]
async fn a_refused_older_log_leaves_the_nvram_to_the_newest_one() {
    for (is_drained, is_claimed) in [(true, false), (false, false), (true, true), (false, true)] {
        let what = format!("drained {is_drained}, claimed {is_claimed}");
        let mut gateway = Gateway::new(1024).with_nvram();
        gateway.settings.report = WriteMode::Immediate;
        gateway.settings.nvram_survives = NvramSurvival::PowerLoss;
        if !is_claimed {
            gateway.settings.confirmed_in = Some(Confirmed::default().store());
        }
        let memory = gateway.memory.clone().expect("it has one");
        let cache = gateway.start().await;
        stable(&cache, 0, 1).await.unwrap();
        if is_drained {
            cache.drain().await.unwrap();
        }
        // A stop makes the NVRAM blank if the log is drained; otherwise the NVRAM still names its log.
        cache.stop().await.unwrap();
        drop(cache);
        let (newest, older) = (gateway.log.clone(), copy_of(&gateway.log).await);
        let faults = connect(&mut gateway, newest.clone());
        let cache = gateway.open().await;
        faults.add(FaultRule::always(FaultCallKind::Any, Symptom::Hangs));
        assert!(is_done(stable(&cache, 8, 2)).await, "only the NVRAM has it");
        drop(cache);
        let before = memory.0.lock().clone();
        let lower: Stack = match is_claimed {
            true => {
                let claimed = Claimed::over(gateway.far.clone());
                claimed.refuses.store(true, Ordering::SeqCst);
                claimed as Stack
            }
            false => gateway.far.clone(),
        };
        let parts = Parts { lower, log: older, nvram: Some(Box::new(memory.clone())) };
        let refused = Cache::open(gateway.settings.clone(), parts, gateway.identity()).await.err();
        let is_right = match is_claimed {
            true => matches!(refused, Some(CacheOpenError::Claim(_))),
            false => matches!(refused, Some(CacheOpenError::Behind { .. })),
        };
        assert!(is_right, "{what}: {refused:?}");
        assert!(*memory.0.lock() == before, "{what}: the NVRAM was changed");
        gateway.log = newest;
        let cache = gateway.open().await;
        assert_eq!(read(&cache, 8, 8).await.unwrap(), [2; 8], "{what}");
    }
}

/// After a power failure, an NVRAM that was not declared to survive one has pages of any age. A start must not be
/// refused for that, and must leave a consistent prefix. Regression: 38 of 50 starts were refused.
#[tokio::test(start_paused = true)]
async fn an_nvram_that_need_not_survive_a_reboot_does_not_block_a_start_and_leaves_a_prefix() {
    for seed in 0..40 {
        let mut random = Rng::new(seed);
        let mut site = Site::new(NvramSurvival::Restart);
        let confirmed = Confirmed::default();
        site.gateway.settings.confirmed_in = Some(confirmed.store());
        site.gateway.settings.boot = Some(boot(1));
        let memory = site.gateway.memory.clone().expect("it has one");
        let cache = site.gateway.start().await;
        let mut pages = memory.0.lock().clone();
        let mut flushed = 0;
        let last = 3 + random.below(9);
        for number in 1..=last {
            if number == last / 2 {
                site.hang_log();
            }
            // Write to a block of its own first, then overwrite the counter in block 0.
            for lba in [number * 8, 0] {
                let data = filled(number as u8, 8);
                assert!(is_done(cache.write(Lba(lba), data, Durability::Volatile)).await);
            }
            if number < last / 2 {
                cache.flush().await.unwrap();
                flushed = number;
            }
            // The system writes some pages of the NVRAM file back.
            let newest = memory.0.lock().clone();
            for (page, newest) in pages.chunks_mut(4096).zip(newest.chunks(4096)) {
                if random.chance(30) {
                    page.copy_from_slice(newest);
                }
            }
        }
        // With odd seeds the last write is confirmed. The confirmed number is not valid in the next boot.
        tokio::time::sleep(Duration::from_millis(1100 * (seed % 2))).await;
        drop(cache);
        *memory.0.lock() = pages;
        site.power_cut(seed);
        site.gateway.settings.boot = Some(boot(2));
        let cache = site.gateway.open().await;
        let counter = u64::from(read(&cache, 0, 8).await.unwrap()[0]);
        assert!(
            (flushed..=last).contains(&counter),
            "seed {seed}: {counter} of {flushed}..={last}"
        );
        for number in 1..=last {
            let is_there = read(&cache, number * 8, 8).await.unwrap()[0] == number as u8;
            // The write to the separate block may survive although the later write of the counter did not.
            assert_eq!(is_there || number == counter + 1, number <= counter + 1, "seed {seed}");
        }
        // From here on the NVRAM works again.
        assert!(is_done(stable(&cache, 0, 99)).await);
        drop(cache);
        let cache = site.gateway.open().await;
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [99; 8]);
    }
}

/// A log that is opened on another machine was without power in between, as after a reboot. Its NVRAM is valid
/// only if it survives a power loss.
#[tokio::test(start_paused = true)]
async fn on_another_machine_an_nvram_is_used_only_if_it_survives_a_power_loss() {
    for (survives, expected) in [(NvramSurvival::PowerLoss, 7), (NvramSurvival::Restart, 0)] {
        let mut site = Site::new(survives);
        site.gateway.settings.boot = Some(boot(1));
        let cache = site.gateway.open().await;
        site.hang_log();
        assert!(is_done(cache.write(Lba(0), filled(7, 8), Durability::Volatile)).await);
        drop(cache);
        site.power_cut(1);
        site.gateway.settings.boot = Some(BootId([9; 16]));
        let cache = site.gateway.open().await;
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [expected; 8], "{survives:?}");
    }
}

/// Damage that a reboot cannot explain must be refused: either the boot is the same, or the NVRAM survives a
/// reboot.
#[tokio::test(start_paused = true)]
async fn a_damaged_nvram_is_refused_within_one_boot_and_if_it_survives_a_power_loss() {
    for (survives, number) in [(NvramSurvival::Restart, 1), (NvramSurvival::PowerLoss, 2)] {
        let mut site = Site::new(survives);
        site.gateway.settings.boot = Some(boot(1));
        let cache = site.gateway.open().await;
        site.hang_log();
        for slot in 0..4 {
            let data = filled(7, 8);
            assert!(is_done(cache.write(Lba(slot * 8), data, Durability::Volatile)).await);
        }
        drop(cache);
        let memory = site.gateway.memory.clone().expect("it has one");
        memory.0.lock()[4096..4096 + 64 * 256].iter_mut().for_each(|byte| *byte ^= 0x55);
        site.power_cut(1);
        site.gateway.settings.boot = Some(boot(number));
        let refused = site.gateway.try_open().await.err();
        assert!(
            matches!(refused, Some(CacheOpenError::NvramMissing(_))),
            "{survives:?}: {refused:?}"
        );
    }
}

/// After a clean stop, and after an opening without immediate report, the log has every acknowledged write.
/// Damaged slots in the NVRAM must not prevent a start then: the system may have written back some pages of the
/// NVRAM file and not others.
#[tokio::test(start_paused = true)]
async fn damaged_slots_refuse_no_start_when_the_log_has_every_write() {
    for ends_cleanly in [true, false] {
        let mut site = Site::new(NvramSurvival::Restart);
        site.gateway.settings.boot = Some(boot(1));
        let memory = site.gateway.memory.clone().expect("it has one");
        let cache = site.gateway.open().await;
        for slot in 0..4 {
            cache.write(Lba(slot * 8), filled(7, 8), Durability::Volatile).await.unwrap();
        }
        let mut damaged = memory.0.lock().clone();
        // The data of the slots follows 4096 bytes of header and 64 bytes for each of the 256 slots.
        damaged[4096 + 64 * 256..].iter_mut().for_each(|byte| *byte ^= 0x55);
        if ends_cleanly {
            cache.stop().await.unwrap();
        } else {
            drop(cache);
            site.gateway.settings.report = WriteMode::AfterComplete;
            drop(site.gateway.open().await);
        }
        *memory.0.lock() = damaged;
        site.power_cut(1);
        for (number, report) in [(2, WriteMode::AfterComplete), (3, WriteMode::Immediate)] {
            site.gateway.settings.boot = Some(boot(number));
            site.gateway.settings.report = report;
            let cache = site.gateway.open().await;
            assert_eq!(read(&cache, 0, 32).await.unwrap(), [7; 32]);
        }
    }
}

#[test]
fn a_synced_nvram_file_has_every_written_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvram");
    let mut file = MappedFile::open(&path, 65536).unwrap().synced().unwrap();
    // Write across a page boundary, with length 0, and at the end of the file.
    file.write(4090, &[7; 5000]);
    file.write(0, &[]);
    file.write(file.len() - 1, &[8]);
    assert!(file.error().is_none());
    let found = std::fs::read(&path).unwrap();
    assert_eq!((&found[4090..9090], found[found.len() - 1]), (&[7; 5000][..], 8));
    assert_eq!(found.iter().filter(|byte| **byte != 0).count(), 5001);
}

/// The kernel marks a page as clean even if it could not write it to the disk for an earlier process. An opening
/// must therefore write every page again. The test detects this by the modification time of the file.
#[test]
fn an_opening_writes_every_page_of_a_synced_file_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("nvram");
    let mut file = MappedFile::open(&path, 65536).unwrap().synced().unwrap();
    file.write(5000, &[7; 100]);
    drop(file);
    let before = std::fs::read(&path).unwrap();
    let long_ago = std::time::UNIX_EPOCH;
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    drop(MappedFile::open(&path, 65536).unwrap().synced().unwrap());
    assert_ne!(std::fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// The process that created the file may have been killed before it made the name stable, so every later opening
/// syncs the folder again.
#[test]
fn every_opening_syncs_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvram");
    for times in ["made", "opened again"] {
        let open = || drop(MappedFile::open(&path, 65536).unwrap());
        assert_eq!(sim::openings_of(folder.path(), open).0, 1, "{times}");
    }
}

/// Without a boot id, the writes in the NVRAM may be from an earlier boot and must not be used.
#[tokio::test(start_paused = true)]
async fn an_nvram_that_need_not_survive_a_reboot_is_not_used_if_the_boot_is_unknown() {
    let mut site = Site::new(NvramSurvival::Restart);
    site.gateway.settings.boot = Some(boot(1));
    let cache = site.gateway.open().await;
    site.hang_log();
    assert!(is_done(cache.write(Lba(0), filled(7, 8), Durability::Volatile)).await);
    drop(cache);
    site.power_cut(1);
    site.gateway.settings.boot = None;
    let cache = site.gateway.open().await;
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [0; 8]);
}
