//! Tests of destage rounds that begin while the flush of the previous round is running: the time that this saves, and
//! the cases in which it must not happen.

use std::{sync::Arc, time::Duration};

use crate::support::{
    far::Call,
    gateway::{Gateway, first_bytes, write},
};
use cache::{Cache, LogErrorPolicy};
use tokio::time::{Instant, sleep};
use volume::{Error, Extent, FaultRule, FaultVolume, Faults, Lba, Symptom, Volume};

/// A round trip over a link of 40 ms in each direction.
const ROUND_TRIP: Duration = Duration::from_millis(80);
/// The number of slots that the tests write: eight epochs.
const SLOTS: u64 = 480;

/// The longest wait for an event, in virtual time: far longer than a drain takes.
const LIMIT: Duration = Duration::from_secs(600);

/// Returns a gateway in front of a node with epochs. The gateway's log holds many epochs that have ended, and destage
/// is paused.
async fn with_backlog(keeps_order: bool) -> (Gateway, Arc<Cache>) {
    backlog_of(Gateway::new(4096), keeps_order).await
}

/// Returns a gateway like that of [`with_backlog`] whose log disk can be made to fail. Writes of hosts then bypass the
/// log.
async fn with_failing_log(change: impl FnOnce(&mut Gateway)) -> (Gateway, Arc<Cache>, Arc<Faults>) {
    let mut gateway = Gateway::new(4096);
    let fault = FaultVolume::new(Arc::clone(&gateway.log));
    let faults = Arc::clone(fault.faults());
    gateway.log = Arc::new(fault);
    gateway.settings.on_log_error = LogErrorPolicy::WriteThrough;
    change(&mut gateway);
    let (gateway, cache) = backlog_of(gateway, true).await;
    (gateway, cache, faults)
}

async fn backlog_of(mut gateway: Gateway, keeps_order: bool) -> (Gateway, Arc<Cache>) {
    gateway.settings.segment_slots = 8;
    gateway.far.set_epoch_blocks(64 * 8);
    if keeps_order {
        gateway.far.keep_order();
    }
    let cache = gateway.start().await;
    cache.pause();
    for slot in 0..SLOTS {
        write(&cache, slot * 16, version(slot), 8).await.unwrap();
    }
    gateway.far.set_delay(ROUND_TRIP);
    (gateway, cache)
}

fn version(slot: u64) -> u8 {
    (slot % 250 + 1) as u8
}

/// Drains the log. Returns the time that it took and the calls of the far volume.
async fn drained(gateway: &Gateway, cache: &Cache) -> (Duration, Vec<Call>) {
    let started = Instant::now();
    cache.resume();
    cache.drain().await.unwrap();
    let taken = started.elapsed();
    gateway.far.set_delay(Duration::ZERO);
    check_far(gateway).await;
    (taken, gateway.far.take_calls())
}

async fn check_far(gateway: &Gateway) {
    for slot in 0..SLOTS {
        let found = first_bytes(&gateway.far.peek(slot * 16, 8).await);
        assert_eq!(found, [version(slot); 8], "slot {slot}");
    }
}

/// Returns the number of flushes during which a write was sent.
fn followed(calls: &[Call]) -> usize {
    let mut is_under_way = false;
    let mut followed = Vec::new();
    for call in calls {
        match call.0 {
            "flush ahead" => {
                assert!(!is_under_way, "two flushes are under way: {calls:?}");
                is_under_way = true;
                followed.push(false);
            }
            "flushed" => is_under_way = false,
            "write" if is_under_way => *followed.last_mut().expect("a flush was sent") = true,
            _ => {}
        }
    }
    followed.into_iter().filter(|followed| *followed).count()
}

/// Waits until `check` is true for the calls of the far volume.
async fn until(gateway: &Gateway, check: impl Fn(&[Call]) -> bool) {
    let started = Instant::now();
    while !check(&gateway.far.peek_calls()) {
        assert!(started.elapsed() < LIMIT, "{:?}", gateway.far.peek_calls());
        sleep(Duration::from_millis(1)).await;
    }
}

fn count(calls: &[Call], name: &str) -> usize {
    calls.iter().filter(|call| call.0 == name).count()
}

#[tokio::test(start_paused = true)]
async fn the_writes_of_the_next_round_are_sent_before_the_status_of_a_flush() {
    let (gateway, cache) = with_backlog(false).await;
    let (waiting, calls) = drained(&gateway, &cache).await;
    let rounds = count(&calls, "flush") as u32;
    assert!(rounds >= 8, "{rounds} rounds");
    assert!(waiting >= ROUND_TRIP * 2 * rounds, "{waiting:?} for {rounds} rounds");
    let (gateway, cache) = with_backlog(true).await;
    let (following, calls) = drained(&gateway, &cache).await;
    assert_eq!(count(&calls, "flush ahead") as u32, rounds);
    // The first round follows no flush. The last one begins with the open epoch, which ends only when nothing else is
    // left.
    assert_eq!(followed(&calls) as u32, rounds - 2, "{calls:?}");
    assert_eq!(count(&calls, "write") as u64 * 8, calls_blocks(&calls), "nothing is sent twice");
    println!("{rounds} rounds: {waiting:?} with each flush waited for, {following:?} without");
    let most = waiting - ROUND_TRIP * (rounds - 2);
    assert!(following <= most, "{following:?} instead of {most:?}, {waiting:?} before");
}

/// Returns the number of blocks in all writes.
fn calls_blocks(calls: &[Call]) -> u64 {
    let writes = calls.iter().filter(|call| call.0 == "write");
    let blocks: u64 = writes.map(|call| call.2).sum();
    assert_eq!(blocks, SLOTS * 8);
    blocks
}

#[tokio::test(start_paused = true)]
async fn a_round_that_followed_a_failed_flush_is_rolled_back_with_it() {
    let (gateway, cache) = with_backlog(true).await;
    gateway.far.fail_next_flush();
    let (_, calls) = drained(&gateway, &cache).await;
    let failed = calls.iter().position(|call| call.0 == "flushed").expect("a flush");
    let first: Vec<_> = calls[..failed].iter().filter(|call| call.0 == "write").collect();
    let rolled_back = calls.iter().rposition(|call| call.0 == "roll back").expect("a roll-back");
    assert_eq!(calls[failed + 1..rolled_back], [], "nothing is sent between failure and roll-back");
    let again = &calls[rolled_back..];
    let flush = again.iter().position(|call| call.0 == "flush ahead").expect("another flush");
    let resent: Vec<_> = again[..flush].iter().filter(|call| call.0 == "write").collect();
    let flush = calls.iter().position(|call| call.0 == "flush ahead").expect("a flush") - 1;
    assert!(first.len() > flush, "the next round had begun: {calls:?}");
    assert_eq!(resent, first[..flush], "the failed round goes once more, whole");
}

/// The writes of the next round take longer than the flush, so they are in flight when the flush fails.
#[tokio::test(start_paused = true)]
async fn no_roll_back_is_sent_before_every_write_that_followed_was_answered() {
    let (gateway, cache) = with_backlog(true).await;
    gateway.far.fail_next_flush();
    gateway.far.set_delay(ROUND_TRIP * 20);
    gateway.far.hurry_flushes(ROUND_TRIP * 19);
    cache.resume();
    until(&gateway, |calls| count(calls, "flushed") > 0).await;
    let asked = Instant::now();
    // Count two roll-backs: the cache sends one before its first round.
    until(&gateway, |calls| count(calls, "roll back") > 1).await;
    let calls = gateway.far.peek_calls();
    assert!(followed(&calls) == 1, "{calls:?}");
    // This time is far longer than the pause before the next try, so the roll-back has waited for the answers to the
    // writes.
    assert!(asked.elapsed() >= ROUND_TRIP * 18, "{:?}: {calls:?}", asked.elapsed());
    gateway.far.set_delay(ROUND_TRIP);
    cache.drain().await.unwrap();
    check_far(&gateway).await;
}

#[tokio::test(start_paused = true)]
async fn no_round_follows_a_flush_while_destage_is_paused() {
    let (gateway, cache) = with_backlog(true).await;
    cache.resume();
    until(&gateway, |calls| count(calls, "write") > 0).await;
    cache.pause();
    sleep(Duration::from_secs(10)).await;
    let calls = gateway.far.take_calls();
    assert_eq!(followed(&calls), 0, "{calls:?}");
    let (_, calls) = drained(&gateway, &cache).await;
    assert!(followed(&calls) > 4, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_flush_and_sends_no_more() {
    let (gateway, cache) = with_backlog(true).await;
    gateway.far.set_delay(ROUND_TRIP * 10);
    cache.resume();
    until(&gateway, |calls| count(calls, "flush ahead") > 0).await;
    sleep(ROUND_TRIP).await;
    cache.stop().await.unwrap();
    let calls = gateway.far.take_calls();
    assert_eq!((followed(&calls), count(&calls, "flush ahead")), (1, 1), "{calls:?}");
    assert_eq!(count(&calls, "flushed"), 1, "{calls:?}");
    drop(cache);
    sleep(Duration::from_secs(60)).await;
    gateway.far.set_delay(Duration::ZERO);
    let cache = gateway.start().await;
    cache.drain().await.unwrap();
    check_far(&gateway).await;
}

/// Checks that no stable write is sent while a round is running: it would make a part of the round stable.
fn check_bypassed(calls: &[Call]) {
    let (mut is_open, mut is_flushed, mut bypassed) = (false, true, 0);
    for call in calls {
        match call.0 {
            "write" => is_open = true,
            "flush ahead" => (is_open, is_flushed) = (false, !is_open && is_flushed),
            "flushed" => is_flushed = true,
            "roll back" => (is_open, is_flushed) = (false, true),
            "write stable" => {
                bypassed += 1;
                assert!(!is_open && is_flushed, "{calls:?}");
            }
            _ => {}
        }
    }
    assert!(bypassed > 0, "no write bypassed the log: {calls:?}");
}

/// The log disk fails while a round runs that follows a flush, so the end of the previous round cannot be recorded in
/// the log and the new round is abandoned. The far volume must roll it back before any write bypasses the log;
/// otherwise the stable write would make a part of the round stable.
#[tokio::test(start_paused = true)]
async fn a_bypassing_write_makes_no_part_of_an_abandoned_round_stable() {
    let (gateway, cache, faults) = with_failing_log(|_| ()).await;
    cache.resume();
    until(&gateway, |calls| followed(calls) >= 2).await;
    faults.add(FaultRule::always(volume::FaultCallKind::Write, Symptom::Fails(Error::NoSpace)));
    assert!(write(&cache, SLOTS * 16, 1, 8).await.is_err());
    write(&cache, SLOTS * 16 + 8, 7, 8).await.unwrap();
    check_bypassed(&gateway.far.take_calls());
    faults.clear();
    sleep(Duration::from_secs(6)).await;
    cache.drain().await.unwrap();
    gateway.far.set_delay(Duration::ZERO);
    check_far(&gateway).await;
}

/// If a flush fails, the round that was begun during it stops in the middle.
#[tokio::test(start_paused = true)]
async fn after_a_failed_flush_the_round_begun_during_it_sends_nothing_more() {
    let (gateway, cache) = with_backlog(true).await;
    gateway.far.fail_next_flush();
    gateway.far.set_delay(ROUND_TRIP * 20);
    gateway.far.hurry_flushes(ROUND_TRIP * 19);
    // At a few slots a second, most of the round is not sent when the flush fails.
    cache.set_destage_rate(Some(40 * 4096));
    cache.resume();
    until(&gateway, |calls| count(calls, "flushed") > 0).await;
    let sent = gateway.far.peek_calls().len();
    until(&gateway, |calls| count(calls, "roll back") > 1).await;
    let calls = gateway.far.peek_calls();
    let names: Vec<_> = calls[sent..].iter().map(|call| call.0).collect();
    assert_eq!(names, ["roll back"], "{calls:?}");
    assert_eq!(followed(&calls[..sent]), 1, "{calls:?}");
    cache.set_destage_rate(None);
    gateway.far.set_delay(ROUND_TRIP);
    cache.drain().await.unwrap();
    check_far(&gateway).await;
}

/// A piece of a round must not be flushed after the flush of the previous round has failed: it would be stable without
/// that round.
#[tokio::test(start_paused = true)]
async fn a_piece_of_a_round_is_not_flushed_after_the_previous_flush_has_failed() {
    let (gateway, cache) = with_backlog(true).await;
    gateway.far.set_epoch_blocks(16 * 8);
    // The writes of the piece are answered before the flush is.
    gateway.far.hurry_writes(ROUND_TRIP / 2);
    cache.resume();
    until(&gateway, |calls| count(calls, "flush ahead") > 0).await;
    gateway.far.fail_next_flush();
    until(&gateway, |calls| count(calls, "flushed") > 0).await;
    let calls = gateway.far.peek_calls();
    let at = calls.iter().position(|call| call.0 == "flushed").expect("it has failed");
    assert_eq!(followed(&calls), 1, "{calls:?}");
    until(&gateway, |calls| count(calls, "roll back") > 1).await;
    let calls = gateway.far.peek_calls();
    assert_eq!(calls[at + 1].0, "roll back", "{calls:?}");
    cache.drain().await.unwrap();
    check_far(&gateway).await;
}

/// A write that bypasses the log must not make a part of a round stable, and it must not wait until destage has sent
/// everything.
#[tokio::test(start_paused = true)]
async fn a_bypassing_write_is_sent_between_two_rounds() {
    let (gateway, cache, faults) = with_failing_log(|gateway| {
        // With short runs, a round takes several round trips.
        gateway.settings.destage_in_flight = 16;
        gateway.settings.destage_run_bytes = 4096;
    })
    .await;
    cache.resume();
    until(&gateway, |calls| followed(calls) >= 2).await;
    // Only segment writes fail. The superblock can be written, so destage rounds succeed.
    let segments = Extent { lba: Lba(2), blocks: 4094 };
    let fails = Symptom::Fails(Error::NoSpace);
    faults.add(FaultRule::always(volume::FaultCallKind::Write, fails).at(segments));
    assert!(write(&cache, SLOTS * 16, 1, 8).await.is_err());
    let asked = Instant::now();
    write(&cache, SLOTS * 16 + 8, 7, 8).await.unwrap();
    assert!(asked.elapsed() < ROUND_TRIP * 12, "{:?}", asked.elapsed());
    let calls = gateway.far.take_calls();
    check_bypassed(&calls);
    faults.clear();
    sleep(Duration::from_secs(6)).await;
    cache.drain().await.unwrap();
    gateway.far.set_delay(Duration::ZERO);
    check_far(&gateway).await;
}

/// A round that is larger than an epoch of the far volume is sent in pieces with a flush after each. None of these
/// flushes may be sent while the flush of the previous round is running.
#[tokio::test(start_paused = true)]
async fn a_round_in_pieces_waits_for_the_flush_that_it_follows() {
    let (gateway, cache) = with_backlog(true).await;
    gateway.far.set_epoch_blocks(16 * 8);
    let (_, calls) = drained(&gateway, &cache).await;
    assert!(cache.statistics().order.split_rounds > 4);
    assert!(followed(&calls) > 4, "{calls:?}");
    let mut is_under_way = false;
    for call in &calls {
        match call.0 {
            "flush ahead" => is_under_way = true,
            "flushed" => is_under_way = false,
            "flush" => assert!(!is_under_way, "{calls:?}"),
            _ => {}
        }
    }
    assert!(count(&calls, "flush") > 4, "{calls:?}");
}

/// The log keeps the versions that a round needs until its flush is answered, also while the next round is being sent.
#[tokio::test(start_paused = true)]
async fn a_failed_round_is_sent_again_with_versions_that_are_overwritten_since() {
    let (gateway, cache) = with_backlog(true).await;
    // Overwrite all slots. The new content belongs to later epochs, so no round may send it yet.
    for slot in 0..SLOTS {
        write(&cache, slot * 16, 251, 8).await.unwrap();
    }
    cache.discard(Extent { lba: Lba(0), blocks: 16 * 40 }).await.unwrap();
    gateway.far.fail_next_flush();
    cache.resume();
    for rounds in 1..=6 {
        until(&gateway, |_| cache.statistics().destage.rounds >= rounds).await;
        // The far volume may hold writes of the next round, but of none after that.
        let mut slots = Vec::new();
        for slot in 0..SLOTS {
            slots.push(first_bytes(&gateway.far.peek(slot * 16, 8).await)[0]);
        }
        let sent = slots.iter().take_while(|byte| **byte != 0).count();
        assert!(sent as u64 >= rounds * 40, "{rounds}: {sent}");
        for (slot, byte) in slots[..sent].iter().enumerate() {
            assert_eq!(*byte, version(slot as u64), "slot {slot} after {rounds} rounds");
        }
    }
    cache.drain().await.unwrap();
    let last = first_bytes(&gateway.far.peek((SLOTS - 1) * 16, 8).await);
    assert_eq!(last, [251; 8]);
    assert_eq!(first_bytes(&gateway.far.peek(0, 16 * 40).await), [0; 16 * 40]);
}
