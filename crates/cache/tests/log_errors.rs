//! A log disk that fails while it is used: what the host is told, what goes on, what is kept.

mod support;

use std::{sync::Arc, time::Duration};

use cache::{Cache, OnLogError};
use support::gateway::{Gateway, read, write};
use tokio::time::sleep;
use volume::{Call, Error, Extent, Fault, Faults, Lba, Rule, Symptom, Volume};

/// A gateway with slot 0 in its log, whose log disk takes no more writes. Nothing is destaged.
async fn failing(policy: OnLogError) -> (Gateway, Arc<Cache>, Arc<Faults>) {
    let mut gateway = Gateway::new(1000);
    let fault = Fault::new(Arc::clone(&gateway.log));
    let faults = Arc::clone(fault.faults());
    gateway.log = Arc::new(fault);
    gateway.settings.on_log_error = policy;
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    faults.add(Rule::always(Call::Write, Symptom::Fails(Error::NoSpace)));
    // The first one that meets it is told, and stays on its way to the log.
    assert!(matches!(write(&cache, 8, 2, 8).await, Err(Error::NoSpace)));
    assert!(cache.statistics().log_error.is_some_and(|error| error.contains("no space")));
    (gateway, cache, faults)
}

async fn far(gateway: &Gateway, lba: u64) -> u8 {
    let read = gateway.far.read(Extent { lba: Lba(lba), blocks: 1 }).await;
    read.unwrap().into_bytes()[0]
}

#[tokio::test(start_paused = true)]
async fn writes_fail_as_long_as_the_log_disk_does() {
    let (gateway, cache, faults) = failing(OnLogError::StopWrites).await;
    assert!(matches!(cache.admit(4096), Err(Error::NoSpace)));
    assert!(matches!(write(&cache, 80, 3, 8).await, Err(Error::NoSpace)));
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8], "what is in the log is read");
    assert_eq!(far(&gateway, 80).await, 0);
    faults.clear();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(cache.statistics().log_error, None);
    write(&cache, 80, 4, 8).await.unwrap();
    assert_eq!(read(&cache, 80, 8).await.unwrap(), [4; 8]);
}

#[tokio::test(start_paused = true)]
async fn written_through_what_the_log_knows_nothing_of_is_at_the_far_side() {
    let (gateway, cache, faults) = failing(OnLogError::WriteThrough).await;
    cache.admit(4096).unwrap();
    write(&cache, 80, 3, 8).await.unwrap();
    assert_eq!(far(&gateway, 80).await, 3, "stable at the far side when it is answered");
    assert_eq!(read(&cache, 80, 8).await.unwrap(), [3; 8]);
    cache.discard(Extent { lba: Lba(88), blocks: 16 }).await.unwrap();
    // In the log, or on the way there: a crash could bring the older content back.
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

/// Where what is between two flushes counts as a whole, a write that goes past the log is stable
/// with what was sent before it: half a round would count.
#[tokio::test(start_paused = true)]
async fn a_write_past_the_log_is_not_made_stable_together_with_half_a_round() {
    let (gateway, cache, _faults) = failing(OnLogError::WriteThrough).await;
    gateway.far.set_epoch_blocks(8000);
    gateway.far.set_delay(Duration::from_millis(10));
    gateway.far.fail_next_flush();
    tokio::spawn(cache.run());
    let mut seen = Vec::new();
    // Seven seconds: beyond the age at which dirty data goes down though the host is never idle.
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
                // The first one failed.
                is_open = flushes == 1;
            }
            "write stable" => assert!(!is_open, "{call:?} in {seen:?}"),
            _ => {}
        }
    }
    assert!(flushes > 0, "no round was sent: {seen:?}");
}

/// A round that is held in the middle would keep such writes out for ever.
#[tokio::test(start_paused = true)]
async fn a_round_that_is_held_makes_room_for_writes_past_the_log() {
    let mut gateway = Gateway::new(1000);
    let fault = Fault::new(Arc::clone(&gateway.log));
    let faults = Arc::clone(fault.faults());
    gateway.log = Arc::new(fault);
    gateway.settings.on_log_error = OnLogError::WriteThrough;
    gateway.settings.destage_in_flight = 1;
    let cache = gateway.open().await;
    for slot in 0..4 {
        write(&cache, slot * 80, 1, 8).await.unwrap();
    }
    faults.add(Rule::always(Call::Write, Symptom::Fails(Error::NoSpace)));
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

/// What the log holds goes down though nothing can be noted in it.
#[tokio::test(start_paused = true)]
async fn destage_goes_on_and_what_it_sent_stays_dirty() {
    let (gateway, cache, _faults) = failing(OnLogError::WriteThrough).await;
    tokio::spawn(cache.run());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(far(&gateway, 0).await, 1);
    assert_eq!(cache.statistics().dirty_slots, 1, "the tail cannot move");
}
