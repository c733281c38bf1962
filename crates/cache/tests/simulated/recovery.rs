//! What is refused when a cache is opened, and what is not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{
    confirmed::Confirmed,
    gateway::{Gateway, read, write},
    memory::Memory,
};
use cache::{
    BootId, Cache, CacheOpenError, ConfirmedIn, ConfirmedStore, ConfirmedWrites, InspectError,
    InstanceId, LogKey, LogVolumeIdentity, Settings, WriteMode, format, inspect,
};
use proptest::prelude::*;
use tokio::time::sleep;
use volume::{Data, Durability, Error, Extent, Geometry, Lba, MemVolume, Stack, Volume};

const LOG: u64 = 1000;
/// Where the first segment begins.
const RING: u64 = 2;

async fn block(log: &Stack, number: u64) -> Vec<u8> {
    let read = log.read(Extent { lba: Lba(number), blocks: 1 }).await;
    read.expect("memory does not fail").into_bytes().to_vec()
}

async fn set_block(log: &Stack, number: u64, bytes: Vec<u8>) {
    let written = log.write(Lba(number), bytes.into(), Durability::Stable).await;
    written.expect("memory does not fail");
}

async fn flip(log: &Stack, number: u64, bit: usize) {
    let mut bytes = block(log, number).await;
    bytes[bit / 8] ^= 1 << (bit % 8);
    set_block(log, number, bytes).await;
}

/// A gateway that was killed with five segments of one slot each in its log: slots 0 to 3, then
/// slot 0 again.
async fn killed(gateway: Gateway) -> Gateway {
    let cache = gateway.open().await;
    for (slot, byte) in [(0, 1), (1, 2), (2, 3), (3, 4), (0, 5)] {
        write(&cache, slot * 8, byte, 8).await.unwrap();
    }
    gateway
}

async fn refusal(gateway: &Gateway) -> CacheOpenError {
    match gateway.try_open().await {
        Ok(_) => panic!("it was opened"),
        Err(error) => error,
    }
}

async fn contents(gateway: &Gateway) -> Vec<u8> {
    let cache = gateway.open().await;
    let mut bytes = Vec::new();
    for slot in 0..4 {
        bytes.push(read(&cache, slot * 8, 8).await.unwrap()[0]);
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_killed_cache_has_everything() {
    let gateway = killed(Gateway::new(LOG)).await;
    assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
    assert_eq!(contents(&gateway).await, [5, 2, 3, 4], "and again");
}

#[tokio::test(start_paused = true)]
async fn the_log_of_another_volume_is_refused_and_both_are_named() {
    let gateway = killed(Gateway::new(LOG)).await;
    let parts =
        cache::Parts { lower: gateway.far.clone(), log: Arc::clone(&gateway.log), nvram: None };
    let identity = LogVolumeIdentity { name: "other".into(), ..gateway.identity() };
    let opened = cache::Cache::open(Settings::default(), parts, identity).await;
    let message = opened.err().expect("it is refused").to_string();
    assert!(message.contains("\"far\"") && message.contains("\"other\""), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_shrank_is_refused_and_one_that_grew_is_not() {
    let mut gateway = killed(Gateway::new(LOG)).await;
    gateway.far = crate::support::far::Far::new(Geometry::with_blocks(32760));
    let error = refusal(&gateway).await;
    assert!(matches!(
        error,
        CacheOpenError::Geometry { recorded_blocks: 32768, blocks: 32760, .. }
    ));
    gateway.far = crate::support::far::Far::new(Geometry::with_blocks(32776));
    let cache = gateway.open().await;
    assert_eq!(cache.geometry().blocks, 32776);
    write(&cache, 32768, 7, 8).await.unwrap();
    drop(cache);
    // Killed again: what is beyond the former end is recovered, and there is no way back.
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 32768, 8).await.unwrap(), [7; 8]);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [5; 8]);
    gateway.far = crate::support::far::Far::new(Geometry::with_blocks(32768));
    assert!(matches!(refusal(&gateway).await, CacheOpenError::Geometry { blocks: 32768, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_truncated_log_disk_is_refused() {
    let mut gateway = killed(Gateway::new(LOG)).await;
    let short = Geometry { block_size: 4096, ..Geometry::with_blocks(LOG - 1) };
    let copy: Stack = Arc::new(MemVolume::new(short));
    for number in 0..LOG - 1 {
        set_block(&copy, number, block(&gateway.log, number).await).await;
    }
    gateway.log = copy;
    let error = refusal(&gateway).await;
    assert!(
        matches!(error, CacheOpenError::Truncated { recorded: LOG, found } if found == LOG - 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_log_disk_that_is_too_small_is_refused() {
    let error = refusal(&Gateway::new(700)).await;
    assert!(matches!(error, CacheOpenError::Size(_)), "{error}");
    assert!(error.to_string().contains("780"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn something_that_is_no_log_is_refused() {
    for number in [0, 1, 2] {
        let gateway = Gateway::new(LOG);
        set_block(&gateway.log, number, vec![7; 4096]).await;
        assert!(matches!(refusal(&gateway).await, CacheOpenError::NotALog), "block {number}");
        let formatted = format(&gateway.log, &gateway.identity(), false).await;
        assert!(matches!(formatted, Err(CacheOpenError::NotALog)));
        format(&gateway.log, &gateway.identity(), true).await.unwrap();
        gateway.open().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_is_refused() {
    let gateway = killed(Gateway::new(LOG)).await;
    let mut bytes = block(&gateway.log, 0).await;
    bytes[8] = 4;
    let checksum = crc32c::crc32c(&bytes[..508]);
    bytes[508..512].copy_from_slice(&checksum.to_le_bytes());
    set_block(&gateway.log, 0, bytes).await;
    let error = refusal(&gateway).await;
    assert!(matches!(error, CacheOpenError::Version { what: "log", found: 4, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_log_with_dirty_data_is_formatted_only_with_force() {
    let gateway = killed(Gateway::new(LOG)).await;
    let error = format(&gateway.log, &gateway.identity(), false).await.unwrap_err();
    assert!(matches!(error, CacheOpenError::Dirty { slots: 4, .. }), "{error}");
    format(&gateway.log, &gateway.identity(), true).await.unwrap();
    assert_eq!(contents(&gateway).await, [0; 4], "nothing of the old instance comes back");
}

#[tokio::test(start_paused = true)]
async fn a_blank_log_disk_is_told_from_a_used_one() {
    let gateway = Gateway::new(LOG);
    assert!(matches!(inspect(&gateway.log).await, Err(InspectError::Blank)));
    gateway.open().await;
    assert_eq!(inspect(&gateway.log).await.unwrap().identity, gateway.identity());
}

#[tokio::test(start_paused = true)]
async fn one_damaged_superblock_is_mended_by_the_other() {
    for number in [0, 1] {
        let gateway = killed(Gateway::new(LOG)).await;
        flip(&gateway.log, number, 500).await;
        assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn damage_in_the_middle_is_refused_unless_loss_is_accepted() {
    // The header or the data of the second segment.
    for number in [RING + 2, RING + 3] {
        let mut gateway = killed(Gateway::new(LOG)).await;
        flip(&gateway.log, number, 1000).await;
        let CacheOpenError::Missing(loss) = refusal(&gateway).await else {
            panic!("another error")
        };
        assert_eq!((loss.first_missing, loss.block, loss.intact), (2, RING + 2, 1));
        assert_eq!(inspect(&gateway.log).await.unwrap().loss, Some(loss));
        gateway.settings.accept_loss = true;
        assert_eq!(contents(&gateway).await, [1, 0, 0, 0]);
        gateway.settings.accept_loss = false;
        assert_eq!(contents(&gateway).await, [1, 0, 0, 0], "accepted is accepted");
        // The same number again: what was given up must not follow it.
        let cache = gateway.open().await;
        write(&cache, 8, 9, 8).await.unwrap();
        drop(cache);
        assert_eq!(contents(&gateway).await, [1, 9, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_last_segment_is_known_to_the_nvram_or_to_a_clean_stop() {
    let gateway = killed(Gateway::new(LOG).with_nvram()).await;
    flip(&gateway.log, RING + 9, 1000).await;
    let CacheOpenError::Missing(loss) = refusal(&gateway).await else { panic!("another error") };
    assert!(loss.first_missing == 5 && loss.evidence.contains("NVRAM"), "{loss:?}");

    let gateway = killed(Gateway::new(LOG)).await;
    gateway.open().await.stop().await.unwrap();
    flip(&gateway.log, RING + 9, 1000).await;
    let CacheOpenError::Missing(loss) = refusal(&gateway).await else { panic!("another error") };
    assert!(loss.first_missing == 5 && loss.evidence.contains("stopped"), "{loss:?}");

    // Without either it looks like the write during which the power failed.
    let gateway = killed(Gateway::new(LOG)).await;
    flip(&gateway.log, RING + 9, 1000).await;
    assert_eq!(contents(&gateway).await, [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn immediate_report_recovers_from_the_nvram_and_not_without_it() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    let data: Data = vec![6; 4096].into();
    let mut write = cache.write(Lba(8), data, Durability::Volatile);
    assert!(futures_util::poll!(&mut write).is_ready(), "it was acknowledged");
    drop(write);
    let memory = gateway.memory.clone().expect("it has one").0.lock().clone();
    drop(cache);

    let without = Gateway { memory: None, settings: Settings::default(), ..copy(&gateway).await };
    assert!(matches!(refusal(&without).await, CacheOpenError::NvramMissing(_)));
    let blank = Gateway { memory: Some(Memory::new(256)), ..copy(&gateway).await };
    assert!(matches!(refusal(&blank).await, CacheOpenError::NvramMissing(_)));
    let mut accepted = Gateway { memory: Some(Memory::new(256)), ..copy(&gateway).await };
    accepted.settings.accept_loss = true;
    assert_eq!(contents(&accepted).await, [0; 4]);

    // The memory as it was when the write was acknowledged, though the log has it by now.
    *gateway.memory.as_ref().expect("it has one").0.lock() = memory;
    assert_eq!(contents(&gateway).await, [0, 6, 0, 0]);
    assert_eq!(contents(&gateway).await, [0, 6, 0, 0]);
}

/// A memory that was given up by opening with `accept_loss` comes back after others have written:
/// what it holds is older than what they wrote, whatever its serials say.
#[tokio::test(start_paused = true)]
async fn an_nvram_that_was_given_up_is_never_believed_again() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    let immediate = async |cache: &Cache, slot: u64, byte: u8| {
        let data: Data = vec![byte; 4096].into();
        let mut write = cache.write(Lba(slot * 8), data, Durability::Volatile);
        assert!(futures_util::poll!(&mut write).is_ready(), "it was acknowledged");
    };
    // Old serials are high.
    for _ in 0..50 {
        write(&cache, 0, 1, 8).await.unwrap();
    }
    cache.flush().await.unwrap();
    immediate(&cache, 1, 6).await;
    let given_up = gateway.memory.clone().expect("it has one").0.lock().clone();
    drop(cache);

    // Without it, and with the loss accepted, the log goes on with a new memory.
    gateway.memory = Some(Memory::new(256));
    gateway.settings.accept_loss = true;
    let cache = gateway.open().await;
    gateway.settings.accept_loss = false;
    cache.flush().await.unwrap();
    let here = read(&cache, 8, 8).await.unwrap()[0];
    write(&cache, 8, 7, 8).await.unwrap();
    cache.flush().await.unwrap();
    assert!(here == 0 || here == 6);
    // Killed, with one write in the new memory alone.
    immediate(&cache, 2, 8).await;
    let newer = gateway.memory.clone().expect("it has one").0.lock().clone();
    // Copy the log before it has that write too, so that both copies are of the same moment.
    let killed = copy(&gateway).await;
    drop(cache);

    let with = async |from: &Gateway, bytes: &[u8]| {
        let mut other = copy(from).await;
        let memory = Memory::new(256);
        memory.0.lock().copy_from_slice(bytes);
        other.memory = Some(memory);
        other
    };
    let old = with(&killed, &given_up).await;
    let refused = refusal(&old).await;
    assert!(matches!(refused, CacheOpenError::NvramMissing(_)), "{refused}");
    assert!(refused.to_string().contains("given up"), "{refused}");
    let mut accepted = with(&killed, &given_up).await;
    accepted.settings.accept_loss = true;
    assert_eq!(contents(&accepted).await[1], 7, "never older than what was made stable");
    assert_eq!(contents(&with(&killed, &newer).await).await, [1, 7, 8, 0]);

    // In a log that was stopped cleanly nothing can be missing: the memory is used anew.
    let stopped = with(&killed, &newer).await;
    stopped.open().await.stop().await.unwrap();
    let old = with(&stopped, &given_up).await;
    assert_eq!(contents(&old).await, [1, 7, 8, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_nvram_of_another_log_is_refused() {
    let mut other = Gateway::new(LOG).with_nvram();
    other.settings.report = WriteMode::Immediate;
    let cache = other.open().await;
    let data: Data = vec![6; 4096].into();
    let mut write = cache.write(Lba(8), data, Durability::Volatile);
    assert!(futures_util::poll!(&mut write).is_ready());
    let bytes = other.memory.clone().expect("it has one").0.lock().clone();
    let gateway = Gateway::new(LOG).with_nvram();
    *gateway.memory.as_ref().expect("it has one").0.lock() = bytes;
    assert!(matches!(refusal(&gateway).await, CacheOpenError::LogMissing { .. }));
    // A second start is refused too: the first refusal must not have formatted the log.
    assert!(matches!(refusal(&gateway).await, CacheOpenError::LogMissing { .. }));
    // A log that is not blank, but is not the NVRAM's log, gets another error.
    let used = Gateway::new(LOG);
    used.open().await.stop().await.unwrap();
    let used = Gateway { memory: gateway.memory.clone(), ..used };
    assert!(matches!(refusal(&used).await, CacheOpenError::OtherNvram { held: 1, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_blank_log_beside_an_nvram_in_use_is_refused_unless_the_log_was_drained_and_stopped() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    cache.write(Lba(8), Data::from(vec![6; 4096]), Durability::Stable).await.unwrap();
    drop(cache);
    // The NVRAM holds no write, since the log has it, but still names its log.
    let (far, memory) = (gateway.far.clone(), gateway.memory.clone());
    let settings = gateway.settings.clone();
    let blank = Gateway { far, memory, settings, log: Gateway::new(LOG).log };
    assert!(matches!(refusal(&blank).await, CacheOpenError::LogMissing { .. }));
    let cache = gateway.start().await;
    cache.drain().await.unwrap();
    cache.stop().await.unwrap();
    drop(blank.open().await);
}

/// The same log on another disk.
async fn copy(gateway: &Gateway) -> Gateway {
    let new = Gateway::new(LOG);
    for number in 0..LOG {
        set_block(&new.log, number, block(&gateway.log, number).await).await;
    }
    Gateway {
        far: gateway.far.clone(),
        log: new.log,
        memory: gateway.memory.clone(),
        settings: gateway.settings.clone(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime without I/O");
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With an NVRAM that has seen how far the log got.
    #[test]
    fn a_flipped_bit_is_harmless_or_refused_never_wrong_data(
        number in 0..RING + 12,
        bits in prop::collection::vec(0..4096 * 8usize, 1..4),
        in_head in any::<bool>(),
    ) {
        block_on(async {
            let gateway = killed(Gateway::new(LOG).with_nvram()).await;
            for bit in bits {
                flip(&gateway.log, number, if in_head { bit % 2048 } else { bit }).await;
            }
            if let Ok(cache) = gateway.try_open().await {
                drop(cache);
                assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
            }
        });
    }

    #[test]
    fn hostile_blocks_are_refused_without_a_panic(
        blocks in prop::collection::vec((0..20u64, any::<[u8; 32]>(), 0..4064usize), 1..8),
    ) {
        block_on(async {
            let gateway = killed(Gateway::new(LOG).with_nvram()).await;
            for (number, bytes, at) in blocks {
                let mut content = block(&gateway.log, number).await;
                content[at..at + 32].copy_from_slice(&bytes);
                set_block(&gateway.log, number, content).await;
            }
            let _ = inspect(&gateway.log).await;
            if gateway.try_open().await.is_ok() {
                assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
            }
        });
    }
}

/// The first read waits for a flush, so that what it finds stays there. Flushes of others may fail
/// around it.
#[tokio::test(start_paused = true)]
async fn the_first_read_does_not_fail_for_what_others_have_lost() {
    let mut gateway = Gateway::new(LOG).relaxed();
    gateway.settings.discard_log_bytes = 0;
    gateway.far.set_delay(Duration::from_millis(10));
    let cache = gateway.open().await;
    let discard = |after, lba| {
        let cache = cache.clone();
        async move {
            sleep(Duration::from_millis(after)).await;
            cache.discard(Extent { lba: Lba(lba), blocks: 8 }).await
        }
    };
    let losses = async {
        // In the first discard's flush, and in that of the second, behind the reader's.
        gateway.far.fail_next_flush();
        sleep(Duration::from_millis(35)).await;
        gateway.far.fail_next_flush();
    };
    let reader = async {
        sleep(Duration::from_millis(12)).await;
        read(&cache, 800, 8).await
    };
    let (first, _, found, ()) = tokio::join!(discard(0, 0), discard(5, 80), reader, losses);
    assert_eq!(found.unwrap(), [0; 8]);
    // It was sent again after the first loss, and there was another one.
    assert!(matches!(first, Err(Error::Device(_))), "{first:?}");
}

/// A far volume that starts anew again and again tells of it each time.
#[tokio::test(start_paused = true)]
async fn the_first_read_does_not_fail_for_some_losses_in_a_row() {
    let gateway = Gateway::new(LOG).relaxed();
    let cache = gateway.open().await;
    gateway.far.fail_flushes(3);
    assert_eq!(read(&cache, 800, 8).await.unwrap(), [0; 8]);
    // One that fails for ever is broken.
    let gateway = Gateway::new(LOG).relaxed();
    let cache = gateway.open().await;
    gateway.far.fail_flushes(u32::MAX);
    assert!(matches!(read(&cache, 800, 8).await, Err(Error::Device(_))));
}

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
    assert_eq!(contents(gateway).await[0], 2, "the log itself is let in");
    set_block(&gateway.log, 0, copy).await;
    confirmed
}

/// The copy is of the same opening, so nothing in it shows that it is old. The confirmed numbers show it.
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

/// After a reboot the NVRAM is void and cannot show the log's age. The confirmed number of the log alone must.
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

/// Counts the calls of `sync`.
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

#[tokio::test(start_paused = true)]
async fn what_was_confirmed_is_stable_a_second_later_and_an_idle_log_needs_no_disk() {
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
async fn an_older_copy_whose_loss_is_accepted_counts_from_there() {
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
async fn a_log_that_goes_on_is_never_behind_what_it_has_confirmed() {
    for report in [WriteMode::AfterComplete, WriteMode::AtFlush, WriteMode::Immediate] {
        let confirmed = Confirmed::default();
        let mut gateway = Gateway::new(LOG).with_nvram();
        gateway.settings.report = report;
        gateway.settings.confirmed_in = Some(confirmed.store());
        let mut last = 0;
        for round in 0..4_u8 {
            // An empty log accepts another key, or none, at each opening.
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
async fn a_record_of_confirmed_writes_that_cannot_be_used_is_not_taken_for_none() {
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

/// The other superblock copy, which was not put back, is newer and is used.
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
