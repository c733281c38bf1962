//! Tests of a pair of gateways with NVRAMs in front of both legs of the log. The power fails while the NVRAMs hold
//! writes that are not on the disks.

use std::{sync::Arc, time::Duration};

use cache::Cache;
use tokio::time::{Instant, sleep, timeout};
use volume::{Durability, Lba, Volume};

use crate::support::{
    gateway::{read, write},
    pair::{DEAD_AFTER, DISK_WRITE, Nvram, Wire, World, Wrong},
    workload::runtime,
};

/// Starts a pair whose NVRAMs do not survive a power loss. Returns the gateway that serves, and its cache.
async fn pair(wrong: Wrong) -> (Arc<World>, usize, Arc<Cache>) {
    let world = World::with_nvram(1, wrong, Nvram::SurvivesProcess).calmed();
    (0..2).for_each(|index| world.start(index));
    whole(&world).await.expect("at first");
    let active = usize::from(world.served(0).is_none());
    let (_, cache) = world.served(active).expect("it serves");
    (world, active, cache)
}

async fn whole(world: &World) -> Result<(), String> {
    let whole = async {
        while !world.is_whole() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let late = |_| format!("it does not become whole: {}", world.describe());
    timeout(Duration::from_secs(120), whole).await.map_err(late)
}

async fn write_slots(cache: &Arc<Cache>, value: u8) {
    for slot in 0..SLOTS {
        write(cache, slot * 8, value, 8).await.expect("acknowledged");
    }
}

/// Reads the first byte of each slot from the gateway that serves, and waits until one does.
async fn slots(world: &World) -> Result<Vec<u8>, String> {
    let mut found = Vec::new();
    let begun = Instant::now();
    while found.len() < SLOTS as usize {
        let served = (0..2).find_map(|index| world.served(index));
        if let Some((_, cache)) = served
            && let Ok(slot) = read(&cache, found.len() as u64 * 8, 8).await
        {
            found.push(slot[0]);
        } else if begun.elapsed() > Duration::from_secs(120) {
            return Err(format!("no gateway answers: {}", world.describe()));
        } else {
            sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(found)
}

/// Both disks lack writes that the NVRAMs hold. The standby gateway loses its power, and the process of the active one
/// ends. The standby gateway must not serve without its partner.
async fn one_loses_its_nvram(wrong: Wrong) -> Result<(), String> {
    let (world, active, cache) = pair(wrong).await;
    write_slots(&cache, 1).await;
    world.kill(1 - active);
    world.end_process(active);
    world.start(1 - active);
    sleep(DEAD_AFTER * 10).await;
    if world.served(1 - active).is_some() {
        return Err("it serves without what it had in its NVRAM".into());
    }
    let reason = world.reason(1 - active).expect("it says why");
    assert!(reason.contains("NVRAM"), "{reason}");
    world.start(active);
    whole(&world).await?;
    assert_eq!(slots(&world).await?, [1; SLOTS as usize]);
    Ok(())
}

#[test]
fn a_gateway_that_lost_its_nvram_does_not_serve_without_its_partner() {
    runtime().block_on(one_loses_its_nvram(Wrong::Nothing)).expect("nothing is lost");
    runtime().block_on(one_loses_its_nvram(Wrong::LossNotNoted)).expect_err("it is noticed");
}

/// The machine of the standby gateway loses its power and returns within `dead_after`. Its leg lacks writes and must
/// be filled again.
async fn one_reboots_quickly(wrong: Wrong) -> Result<(), String> {
    let (world, active, cache) = pair(wrong).await;
    // Pause destage, so that the log keeps every write.
    cache.pause();
    write_slots(&cache, 1).await;
    world.kill(1 - active);
    world.start(1 - active);
    sleep(DEAD_AFTER / 2).await;
    let filled = async {
        write_slots(&cache, 2).await;
        cache.flush().await.expect("flushed");
    };
    timeout(Duration::from_secs(60), filled).await.map_err(|_| "it hangs")?;
    whole(&world).await?;
    world.kill(active);
    match slots(&world).await? {
        found if found == [2; SLOTS as usize] => Ok(()),
        found => Err(format!("{found:?}")),
    }
}

#[test]
fn a_leg_whose_nvram_was_lost_is_filled_again_however_soon_it_is_back() {
    runtime().block_on(one_reboots_quickly(Wrong::Nothing)).expect("nothing is lost");
    runtime().block_on(one_reboots_quickly(Wrong::SessionGoesOn)).expect_err("it is noticed");
}

#[test]
fn a_write_is_acknowledged_from_both_nvrams_and_a_flush_or_fua_from_both_disks() {
    for flushes in [true, false] {
        runtime().block_on(async {
            let (world, active, cache) = pair(Wrong::Nothing).await;
            cache.flush().await.expect("flushed");
            let begun = Instant::now();
            write(&cache, 0, 1, 8).await.expect("acknowledged");
            assert!(begun.elapsed() < DISK_WRITE, "{:?}", begun.elapsed());
            if flushes {
                cache.flush().await.expect("flushed");
            } else {
                let data = vec![1; 4096].into();
                cache.write(Lba(8), data, Durability::Stable).await.expect("acknowledged");
            }
            assert!(begun.elapsed() >= DISK_WRITE, "{:?}", begun.elapsed());
            // The disks are slow, so the following write is on neither of them when the NVRAMs have acknowledged it.
            write(&cache, 16, 1, 8).await.expect("acknowledged");
            (0..2).for_each(|index| world.kill(index));
            (0..2).for_each(|index| world.start(index));
            whole(&world).await.expect("both are back");
            let found = slots(&world).await.expect("answered");
            assert_eq!(found[..3], [1, u8::from(!flushes), 0], "gateway {active}");
        });
    }
}

#[test]
fn a_write_costs_one_round_trip_to_the_partner_and_both_disks_are_written_concurrently() {
    runtime().block_on(async {
        let (world, _, cache) = pair(Wrong::Nothing).await;
        cache.pause();
        let one_way = Duration::from_millis(20);
        world.set_distance(one_way);
        let round_trip = one_way * 2;
        let mut immediate = Vec::new();
        let mut durable = Vec::new();
        for slot in 0..9 {
            cache.flush().await.expect("flushed");
            let begun = Instant::now();
            write(&cache, slot * 8, 1, 8).await.expect("acknowledged");
            immediate.push(begun.elapsed());
            let begun = Instant::now();
            cache.flush().await.expect("flushed");
            durable.push(begun.elapsed());
        }
        immediate.sort();
        durable.sort();
        // The simulated link adds up to a millisecond.
        let slack = Duration::from_millis(1);
        assert!(immediate[4] <= (round_trip + slack).mul_f64(1.2), "{immediate:?}");
        assert!(durable[4] <= (round_trip + DISK_WRITE + slack).mul_f64(1.2), "{durable:?}");
    });
}

/// Both NVRAMs are lost while destage has sent data that is only in them. The far volume must not hold newer writes
/// than the log disks.
#[test]
fn the_loss_of_both_nvrams_leaves_a_prefix_however_far_destage_was() {
    runtime().block_on(async {
        let (world, _, cache) = pair(Wrong::Nothing).await;
        cache.pause();
        write_slots(&cache, 1).await;
        cache.flush().await.expect("flushed");
        write_slots(&cache, 2).await;
        cache.resume();
        let sent = async {
            while world.at_node(SLOTS - 1).await != 2 {
                sleep(Duration::from_micros(100)).await;
            }
        };
        timeout(Duration::from_secs(60), sent).await.expect("destage goes on");
        (0..2).for_each(|index| world.kill(index));
        (0..2).for_each(|index| world.start(index));
        whole(&world).await.expect("both are back");
        assert_eq!(slots(&world).await.expect("answered"), [2; SLOTS as usize]);
    });
}

/// Both gateways lose their power as soon as one has opened the log and the node has recorded the opening. The opening
/// must be on the disks: otherwise the node would refuse the log's next claim.
#[test]
fn an_opening_is_stable_on_the_log_disks_before_the_node_grants_it() {
    runtime().block_on(async {
        let (world, active, cache) = pair(Wrong::Nothing).await;
        write_slots(&cache, 1).await;
        world.change_places(active).expect("both have everything");
        while world.served(1 - active).is_none() {
            sleep(Duration::from_micros(100)).await;
        }
        (0..2).for_each(|index| world.kill(index));
        (0..2).for_each(|index| world.start(index));
        whole(&world).await.expect("the node grants a claim of the log");
        assert_eq!(slots(&world).await.expect("answered"), [1; SLOTS as usize]);
    });
}

#[test]
fn a_gateway_that_has_just_continued_alone_has_recorded_that_after_a_power_failure() {
    runtime().block_on(async {
        let (world, active, cache) = pair(Wrong::Nothing).await;
        cache.pause();
        write_slots(&cache, 1).await;
        cache.flush().await.expect("flushed");
        world.kill(1 - active);
        while write(&cache, 0, 2, 8).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
        world.kill(active);
        world.start(active);
        let found = slots(&world).await.expect("it serves");
        assert_eq!(found[1..], [1; SLOTS as usize - 1]);
    });
}

#[test]
fn a_gateway_used_alone_serves_again_after_a_power_failure_that_its_nvram_does_not_survive() {
    runtime().block_on(async {
        let (world, active, cache) = pair(Wrong::Nothing).await;
        world.kill(1 - active);
        sleep(DEAD_AFTER * 4).await;
        write_slots(&cache, 1).await;
        cache.flush().await.expect("flushed");
        write(&cache, 0, 2, 8).await.expect("acknowledged");
        world.kill(active);
        world.start(active);
        let found = slots(&world).await.expect("it serves");
        assert_eq!(found, [1; SLOTS as usize], "what was on the disk is there");
        // Start the partner with a broken link. Its leg lacks the writes of the active gateway, so it must not serve.
        world.set(Wire::Gateways, false);
        world.start(1 - active);
        sleep(DEAD_AFTER * 10).await;
        assert!(world.served(1 - active).is_none(), "{}", world.describe());
    });
}

/// Number of slots that the tests write. The NVRAM has room for as many segments of one slot.
const SLOTS: u64 = 12;
