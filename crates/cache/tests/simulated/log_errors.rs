//! Tests of a log disk that fails while it is in use: which errors hosts get, which operations continue, and which
//! data is kept.

use std::{sync::Arc, time::Duration};

use crate::support::gateway::{Gateway, filled, first_bytes, read, write};
use cache::{Cache, LogErrorPolicy, WriteMode};
use tokio::time::sleep;
use volume::{Error, Extent, FaultCallKind, FaultRule, FaultVolume, Faults, Lba, Symptom, Volume};

/// Returns a gateway with slot 0 in its log. Its log disk fails all further writes. Destage does not run.
async fn failing(policy: LogErrorPolicy) -> (Gateway, Arc<Cache>, Arc<Faults>) {
    let mut gateway = Gateway::new(1000);
    let fault = FaultVolume::new(Arc::clone(&gateway.log));
    let faults = Arc::clone(fault.faults());
    gateway.log = Arc::new(fault);
    gateway.settings.on_log_error = policy;
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::NoSpace)));
    // Let a write meet the failure: it gets the error, and stays queued for the log.
    assert!(matches!(write(&cache, 8, 2, 8).await, Err(Error::NoSpace)));
    assert!(cache.statistics().log.error.is_some_and(|error| error.contains("no space")));
    (gateway, cache, faults)
}

async fn far(gateway: &Gateway, lba: u64) -> u8 {
    let read = gateway.far.read(Extent { lba: Lba(lba), blocks: 1 }).await;
    read.unwrap().into_bytes()[0]
}

#[tokio::test(start_paused = true)]
async fn writes_fail_as_long_as_the_log_disk_does() {
    let (gateway, cache, faults) = failing(LogErrorPolicy::StopWrites).await;
    assert!(matches!(cache.admit(4096), Err(Error::NoSpace)));
    assert!(matches!(write(&cache, 80, 3, 8).await, Err(Error::NoSpace)));
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8], "what is in the log is read");
    assert_eq!(far(&gateway, 80).await, 0);
    faults.clear();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(cache.statistics().log.error, None);
    write(&cache, 80, 4, 8).await.unwrap();
    assert_eq!(read(&cache, 80, 8).await.unwrap(), [4; 8]);
}

#[tokio::test(start_paused = true)]
async fn with_write_through_slots_that_are_not_in_the_log_are_written_to_the_far_volume() {
    let (gateway, cache, faults) = failing(LogErrorPolicy::WriteThrough).await;
    cache.admit(4096).unwrap();
    write(&cache, 80, 3, 8).await.unwrap();
    assert_eq!(far(&gateway, 80).await, 3, "stable at the far volume when it is answered");
    assert_eq!(read(&cache, 80, 8).await.unwrap(), [3; 8]);
    cache.discard(Extent { lba: Lba(88), blocks: 16 }).await.unwrap();
    // Slots 0 and 1 are in the log or queued for it. If a write bypassed the log, recovery could bring the older
    // content back.
    for lba in [0, 8] {
        assert!(matches!(write(&cache, lba, 9, 8).await, Err(Error::NoSpace)), "{lba}");
        let extent = Extent { lba: Lba(lba), blocks: 8 };
        assert!(matches!(cache.discard(extent).await, Err(Error::NoSpace)), "{lba}");
    }
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
    faults.clear();
    sleep(Duration::from_secs(6)).await;
    write(&cache, 0, 5, 8).await.unwrap();
    assert_eq!(far(&gateway, 0).await, 0, "through the log again");
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [5; 8]);
    assert_eq!(read(&cache, 80, 8).await.unwrap(), [3; 8]);
}

/// At a far volume with atomic epochs, a stable write that bypasses the log also makes stable all writes that were
/// sent before it. During a round these are a part of the round. Such a write must therefore not be sent during a
/// round.
#[tokio::test(start_paused = true)]
async fn a_bypassing_write_does_not_make_a_part_of_a_round_stable() {
    let (gateway, cache, _faults) = failing(LogErrorPolicy::WriteThrough).await;
    gateway.far.set_epoch_blocks(8000);
    gateway.far.set_delay(Duration::from_millis(10));
    gateway.far.fail_next_flush();
    tokio::spawn(cache.run());
    let mut seen = Vec::new();
    // Seven seconds: longer than `max_dirty_age_ms`, so that data is destaged though the host is never idle.
    for turn in 0..400 {
        write(&cache, 80 + turn * 8, 3, 8).await.unwrap();
        sleep(Duration::from_millis(7)).await;
        seen.extend(gateway.far.take_calls());
    }
    let mut flushes = 0;
    let mut is_open = false;
    for call in &seen {
        match call.0 {
            "write" => is_open = true,
            "roll back" => is_open = false,
            "flush" => {
                flushes += 1;
                // The test lets the first flush fail, so the writes before it are still not stable.
                is_open = flushes == 1;
            }
            "write stable" => assert!(!is_open, "{call:?} in {seen:?}"),
            _ => {}
        }
    }
    assert!(flushes > 0, "no round was sent: {seen:?}");
}

/// A write that bypasses the log waits for the end of a round. While destage is paused, the round does not end, so
/// the round must be abandoned.
#[tokio::test(start_paused = true)]
async fn a_paused_round_is_abandoned_for_a_bypassing_write() {
    let mut gateway = Gateway::new(1000);
    let fault = FaultVolume::new(Arc::clone(&gateway.log));
    let faults = Arc::clone(fault.faults());
    gateway.log = Arc::new(fault);
    gateway.settings.on_log_error = LogErrorPolicy::WriteThrough;
    gateway.settings.destage_in_flight = 1;
    let cache = gateway.open().await;
    for slot in 0..4 {
        write(&cache, slot * 80, 1, 8).await.unwrap();
    }
    faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::NoSpace)));
    assert!(matches!(write(&cache, 8, 2, 8).await, Err(Error::NoSpace)));
    gateway.far.set_epoch_blocks(8000);
    gateway.far.set_delay(Duration::from_millis(100));
    tokio::spawn(cache.run());
    while !gateway.far.take_calls().iter().any(|call| call.0 == "write") {
        sleep(Duration::from_millis(10)).await;
    }
    cache.pause();
    write(&cache, 4000, 3, 8).await.unwrap();
    let calls = gateway.far.take_calls();
    let rolled_back = calls.iter().position(|call| call.0 == "roll back");
    let stable = calls.iter().position(|call| call.0 == "write stable");
    assert!(rolled_back.is_some() && rolled_back < stable, "{calls:?}");
    cache.resume();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(far(&gateway, 240).await, 1, "the round comes to its end later");
}

/// Destage continues although the log disk fails writes. The destaged data stays dirty, because the tail of the log
/// cannot be moved.
#[tokio::test(start_paused = true)]
async fn destage_continues_with_a_failed_log_and_sent_data_stays_dirty() {
    let (gateway, cache, _faults) = failing(LogErrorPolicy::WriteThrough).await;
    tokio::spawn(cache.run());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(far(&gateway, 0).await, 1);
    assert_eq!(cache.statistics().destage.dirty_slots, 1, "the tail cannot move");
}

/// Returns a gateway that destages only in a drain, when the log is lost, or after an idle minute.
fn lazy() -> Gateway {
    let mut gateway = Gateway::new(1000);
    gateway.settings.idle_ms = 60_000;
    gateway.settings.destage_threshold = 1.0;
    gateway.settings.max_dirty_age_ms = 3_600_000;
    gateway
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{what} does not come within a minute");
}

#[tokio::test(start_paused = true)]
async fn a_lost_log_acknowledges_nothing_and_is_destaged_at_once() {
    let gateway = lazy();
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 1, "nothing is in a hurry");
    cache.pause();
    cache.lose_log("its file was removed");
    let refused = write(&cache, 8, 2, 8).await;
    assert!(matches!(&refused, Err(Error::Device(why)) if why.contains("removed")), "{refused:?}");
    assert!(cache.admit(4096).is_err());
    assert!(cache.flush().await.is_err(), "what was acknowledged is nowhere else");
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
    cache.resume();
    until("destage", || cache.is_drained()).await;
    assert_eq!(far(&gateway, 0).await, 1);
    cache.flush().await.unwrap();
    assert!(write(&cache, 8, 2, 8).await.is_err(), "the log is still lost");
    assert!(cache.regain_log());
    write(&cache, 8, 2, 8).await.unwrap();
    cache.stop().await.unwrap();
}

/// Writes that wait for the log when it is lost fail, although the open file may still get them. Writes that were
/// acknowledged from the NVRAM are destaged.
#[tokio::test(start_paused = true)]
async fn writes_that_wait_for_a_log_fail_when_it_is_lost() {
    for report in [WriteMode::AfterComplete, WriteMode::Immediate] {
        let mut gateway = lazy().with_nvram();
        let fault = FaultVolume::new(Arc::clone(&gateway.log));
        let faults = Arc::clone(fault.faults());
        gateway.log = Arc::new(fault);
        gateway.settings.report = report;
        let cache = gateway.start().await;
        faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::NoSpace)));
        let written = write(&cache, 0, 7, 8).await;
        assert_eq!(written.is_ok(), report == WriteMode::Immediate);
        let stable = tokio::spawn({
            let cache = Arc::clone(&cache);
            async move { cache.flush().await }
        });
        cache.lose_log("its file was removed");
        faults.clear();
        let flushed = stable.await.unwrap();
        if report == WriteMode::Immediate {
            assert!(flushed.is_err());
        }
        until("destage", || cache.is_drained()).await;
        assert_eq!(far(&gateway, 0).await, 7);
    }
}

/// Regression: each flush failed before it ended the epoch, so later writes stayed in the lost log for ever.
#[tokio::test(start_paused = true)]
async fn unflushed_writes_of_a_lost_log_are_destaged_with_the_next_flush() {
    let mut gateway = lazy();
    gateway.settings.report = WriteMode::AtFlush;
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    cache.flush().await.unwrap();
    write(&cache, 0, 2, 8).await.unwrap();
    write(&cache, 8, 2, 8).await.unwrap();
    cache.lose_log("its file was removed");
    assert!(write(&cache, 16, 3, 8).await.is_err());
    sleep(Duration::from_secs(10)).await;
    let below = (far(&gateway, 0).await, far(&gateway, 8).await);
    assert_eq!(below, (1, 0), "half an epoch is no consistent prefix");
    assert!(cache.flush().await.is_err(), "it is nowhere else yet");
    until("destage", || cache.statistics().destage.dirty_slots == 0).await;
    assert_eq!((far(&gateway, 0).await, far(&gateway, 8).await), (2, 2));
    cache.flush().await.unwrap();
    cache.stop().await.unwrap();
}

/// Opens a cache with 64 slots of memory, writes `1` to 200 slots, and loses the log: only its first `blocks` blocks
/// can be read from now on.
async fn cut_short(gateway: &mut Gateway, blocks: u64) -> Arc<Cache> {
    gateway.settings.dram_bytes = 256 << 10;
    gateway.settings.nvram_bytes = 64 << 10;
    let fault = FaultVolume::new(Arc::clone(&gateway.log));
    let faults = Arc::clone(fault.faults());
    gateway.log = Arc::new(fault);
    let cache = gateway.start().await;
    for slot in 0..200 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
    }
    let missing = Extent { lba: Lba(blocks), blocks: 2000 };
    let error = Error::Device("it is cut short".into());
    faults.add(FaultRule::always(FaultCallKind::Read, Symptom::Fails(error)).at(missing));
    cache.lose_log("its file was cut short");
    cache
}

/// Returns the slots that hold `1` at the far volume, and those that hold nothing there.
async fn sent(gateway: &Gateway) -> (Vec<u64>, Vec<u64>) {
    let content = first_bytes(&gateway.far.peek(0, 1600).await);
    let of = |byte| (0..200).filter(|slot| content[*slot as usize * 8] == byte).collect();
    (of(1), of(0))
}

/// Regression: the newest slots were destaged from memory, and reads of them failed once memory had evicted them.
#[tokio::test(start_paused = true)]
async fn slots_sent_from_a_truncated_log_are_read_from_the_far_volume_and_only_the_rest_is_dirty() {
    for (policy, epoch_blocks) in [
        (LogErrorPolicy::StopWrites, 0),
        (LogErrorPolicy::StopWrites, 512),
        (LogErrorPolicy::WriteThrough, 0),
    ] {
        let mut gateway = lazy();
        gateway.settings.on_log_error = policy;
        gateway.far.set_epoch_blocks(epoch_blocks);
        let cache = cut_short(&mut gateway, 100).await;
        let all_sent = || {
            let told = cache.statistics().log.error;
            told.is_some_and(|told| {
                told.contains("the far volume has everything that could be read from it")
            })
        };
        until("an end", all_sent).await;
        let (there, missing) = sent(&gateway).await;
        assert!(
            there.contains(&0) && there.contains(&199),
            "from the log, and from memory: {there:?}"
        );
        assert!((20..150).contains(&missing.len()), "{missing:?}");
        assert_eq!(cache.statistics().destage.dirty_slots, missing.len() as u64);
        assert!(cache.flush().await.is_err(), "something is lost");
        // Read other blocks until memory has evicted the written slots.
        for slot in 200..400 {
            assert_eq!(read(&cache, slot * 8, 8).await.unwrap(), [0; 8]);
        }
        for slot in &there {
            assert_eq!(read(&cache, slot * 8, 8).await.unwrap(), [1; 8], "slot {slot}");
        }
        for slot in &missing {
            let refused = read(&cache, slot * 8, 8).await;
            assert!(matches!(refused, Err(Error::Medium { .. })), "slot {slot}: {refused:?}");
        }
        // The lost log still has a record of the destaged slot: a start with that log would destage it again, over
        // this write.
        assert!(write(&cache, there[0] * 8, 2, 8).await.is_err());
        assert_eq!(far(&gateway, there[0] * 8).await, 1);
        let elsewhere = write(&cache, 8 * 1000, 2, 8).await;
        assert_eq!(elsewhere.is_ok(), policy == LogErrorPolicy::WriteThrough, "{elsewhere:?}");
        assert!(!cache.regain_log(), "a part of it could not be read");
    }
}

/// A slot is not clean before it is stable at the far volume, which may lose it until then.
#[tokio::test(start_paused = true)]
async fn slots_sent_from_a_truncated_log_are_dirty_until_the_far_volume_has_flushed() {
    let mut gateway = lazy();
    gateway.far.fail_flushes(u32::MAX);
    let cache = cut_short(&mut gateway, 100).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 200);
    let told = cache.statistics().log.error.expect("it is lost");
    assert!(!told.contains("everything that could be read"), "{told}");
    gateway.far.take_calls();
    gateway.far.fail_flushes(0);
    until("an end", || cache.statistics().destage.dirty_slots < 200).await;
    let again = gateway.far.take_calls();
    assert!(again.iter().any(|(call, lba, _)| (*call, *lba) == ("write", 0)), "{again:?}");
    let (_, missing) = sent(&gateway).await;
    assert_eq!(cache.statistics().destage.dirty_slots, missing.len() as u64);
}

/// If a slot of an epoch is corrupt in the log and the next epoch writes it again, both epochs are destaged as one.
/// Regression: slots that only the first epoch writes were missing, and the log freed them.
#[tokio::test(start_paused = true)]
async fn flushed_writes_are_destaged_when_another_write_of_their_epoch_is_corrupt() {
    let mut gateway = Gateway::new(1000);
    gateway.settings.report = WriteMode::AtFlush;
    gateway.settings.destage_in_flight = 1;
    gateway.settings.destage_run_bytes = 4096;
    let cache = gateway.start().await;
    gateway.far.set_delay(Duration::from_secs(2));
    let (first, corrupt, kept) = (0, 80, 160);
    for (lba, byte) in [(first, 1), (corrupt, 2), (kept, 3)] {
        write(&cache, lba, byte, 8).await.unwrap();
    }
    cache.flush().await.unwrap();
    gateway.far.take_calls();
    until("a round", || gateway.far.take_calls().contains(&("write", first, 8))).await;
    // While the first epoch is destaged, write the next one and an open one after it.
    write(&cache, corrupt, 4, 8).await.unwrap();
    cache.flush().await.unwrap();
    write(&cache, kept, 5, 8).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let mut count = 0;
    for block in 0..1000 {
        let extent = Extent { lba: Lba(block), blocks: 1 };
        let content = gateway.log.read(extent).await.unwrap();
        if content == filled(2, 8) {
            let rot = gateway.log.write(Lba(block), filled(9, 8), volume::Durability::Stable);
            rot.await.unwrap();
            count += 1;
        }
    }
    assert_eq!(count, 1);
    gateway.far.set_delay(Duration::ZERO);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 1, "the open epoch");
    assert_eq!(far(&gateway, corrupt).await, 4);
    assert_eq!(far(&gateway, kept).await, 3);
    let beside =
        cache.extensions().read_flushed(Extent { lba: Lba(kept), blocks: 8 }).await.unwrap();
    assert_eq!(beside, filled(3, 8));
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(read(&cache, kept, 8).await.unwrap(), [3; 8], "it was flushed");
}
