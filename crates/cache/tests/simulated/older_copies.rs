//! Tests of a log that was replaced by an older copy of itself: the stored numbers of confirmed writes must show
//! it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{
    confirmed::Confirmed,
    damage::{contents, killed, refusal, set_block},
    gateway::{Gateway, read, write},
};
use cache::{
    BootId, CacheOpenError, ConfirmedIn, ConfirmedStore, ConfirmedWrites, InstanceId, LogKey,
    WriteMode,
};
use tokio::time::sleep;
use volume::{Extent, Lba, Stack, Volume};

const LOG: u64 = 1000;

async fn copy_of(log: &Stack) -> Vec<u8> {
    let blocks = log.geometry().blocks as u32;
    let read = log.read(Extent { lba: Lba(0), blocks }).await;
    read.expect("memory does not fail").into_bytes().to_vec()
}

/// Writes with a cache, copies its log, writes more, kills the cache and puts the copy back. Returns the store of
/// its confirmed numbers.
async fn put_back(gateway: &mut Gateway) -> Confirmed {
    let confirmed = Confirmed::default();
    gateway.settings.confirmed_in = Some(confirmed.store());
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    cache.flush().await.unwrap();
    let copy = copy_of(&gateway.log).await;
    write(&cache, 0, 2, 8).await.unwrap();
    cache.flush().await.unwrap();
    drop(cache);
    assert_eq!(contents(gateway).await[0], 2, "the log itself is accepted");
    set_block(&gateway.log, 0, copy).await;
    confirmed
}

/// A store that counts the calls of `sync`.
struct Synced(Confirmed, AtomicUsize);

impl ConfirmedStore for Synced {
    fn recall(&self, instance: InstanceId) -> Result<Option<ConfirmedWrites>, String> {
        self.0.store().0.recall(instance)
    }

    fn note(&self, confirmed: ConfirmedWrites) {
        self.0.store().0.note(confirmed);
    }

    fn sync(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// The copy of the log was made in the same opening, so its content does not show that it is old. The confirmed
/// numbers must show it.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_log_is_refused_once_its_log_has_confirmed_newer_writes() {
    for report in [WriteMode::AfterComplete, WriteMode::AtFlush] {
        let mut gateway = Gateway::new(LOG);
        gateway.settings.report = report;
        put_back(&mut gateway).await;
        let error = refusal(&gateway).await;
        let CacheOpenError::Behind { ends, confirmed } = error else {
            panic!("{report:?}: {error}")
        };
        assert!(ends < confirmed, "{ends} {confirmed}");
        let text = error.to_string();
        assert!(text.contains(&format!("end at write {ends}, and write {confirmed}")), "{text}");
        assert!(matches!(refusal(&gateway).await, CacheOpenError::Behind { .. }), "and again");
    }
}

/// After a reboot the NVRAM is not valid and cannot show the log's age. The confirmed number alone must show it.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_log_is_refused_after_a_reboot_that_its_nvram_does_not_survive() {
    let boot = |number| BootId([[7; 8], [number; 8]].concat().try_into().unwrap());
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    gateway.settings.boot = Some(boot(1));
    put_back(&mut gateway).await;
    gateway.settings.boot = Some(boot(2));
    let error = refusal(&gateway).await;
    assert!(matches!(error, CacheOpenError::Behind { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn confirmed_numbers_are_stable_within_a_second_and_an_idle_log_writes_none() {
    let store = Arc::new(Synced(Confirmed::default(), AtomicUsize::new(0)));
    let mut gateway = Gateway::new(LOG);
    gateway.settings.confirmed_in = Some(ConfirmedIn(store.clone()));
    let cache = gateway.start().await;
    for round in 1..4 {
        write(&cache, 0, 1, 8).await.unwrap();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(store.1.load(Ordering::SeqCst), round);
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_copy_with_accepted_loss_lowers_the_confirmed_number() {
    let mut gateway = Gateway::new(LOG);
    let confirmed = put_back(&mut gateway).await;
    let newest = confirmed.last().logged;
    gateway.settings.accept_loss = true;
    assert_eq!(contents(&gateway).await[0], 1);
    assert!(confirmed.last().logged < newest);
    gateway.settings.accept_loss = false;
    assert_eq!(contents(&gateway).await[0], 1, "nothing is held against it any more");
}

#[tokio::test(start_paused = true)]
async fn a_log_in_use_never_lacks_a_write_that_it_has_confirmed() {
    for report in [WriteMode::AfterComplete, WriteMode::AtFlush, WriteMode::Immediate] {
        let confirmed = Confirmed::default();
        let mut gateway = Gateway::new(LOG).with_nvram();
        gateway.settings.report = report;
        gateway.settings.confirmed_in = Some(confirmed.store());
        let mut last = 0;
        for round in 0..4_u8 {
            // A log without data accepts another key, or none, each time it is opened.
            gateway.settings.log_key = (round % 2 == 1).then(|| LogKey::new(&[round; 64]));
            let cache = gateway.start().await;
            for slot in 0..20 {
                write(&cache, slot * 8, round + 1, 8).await.unwrap();
            }
            cache.flush().await.unwrap();
            cache.resize(LOG - 100 * u64::from(round)).await.unwrap_or_else(|error| {
                assert_eq!(report, WriteMode::AtFlush, "{error}");
            });
            cache.drain().await.unwrap();
            cache.stop().await.unwrap();
            assert!(confirmed.last().logged > last, "{report:?}");
            last = confirmed.last().logged;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_record_of_confirmed_writes_is_not_treated_as_an_empty_one() {
    struct Damaged;
    impl ConfirmedStore for Damaged {
        fn recall(&self, _: InstanceId) -> Result<Option<ConfirmedWrites>, String> {
            Err("it is damaged".into())
        }
        fn note(&self, _: ConfirmedWrites) {}
        fn sync(&self) {}
    }
    let mut gateway = killed(Gateway::new(LOG)).await;
    gateway.settings.confirmed_in = Some(ConfirmedIn(Arc::new(Damaged)));
    assert!(matches!(refusal(&gateway).await, CacheOpenError::Confirmed(_)));
}

/// One superblock is restored from an older copy. The other one is newer and must be used.
#[tokio::test(start_paused = true)]
async fn one_superblock_of_an_older_copy_loses_nothing() {
    for (block, is_drained) in [(0, false), (1, false), (0, true), (1, true)] {
        let gateway = Gateway::new(LOG);
        let cache = gateway.start().await;
        write(&cache, 0, 1, 8).await.unwrap();
        cache.drain().await.unwrap();
        let older = copy_of(&gateway.log).await[block * 4096..][..4096].to_vec();
        write(&cache, 0, 2, 8).await.unwrap();
        write(&cache, 8, 2, 8).await.unwrap();
        if is_drained {
            cache.drain().await.unwrap();
        }
        drop(cache);
        set_block(&gateway.log, block as u64, older).await;
        let cache = gateway.open().await;
        assert_eq!(read(&cache, 0, 16).await.unwrap(), [2; 16], "block {block}");
    }
}
