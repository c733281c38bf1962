//! Tests of the free blocks of a drive.

use super::*;

fn groups(blocks: u64) -> Groups {
    let mut groups = Groups::new(blocks, 0);
    (0..blocks.div_ceil(GROUP_BLOCKS)).for_each(|group| groups.load(group, None));
    groups
}

#[test]
fn a_freed_block_is_not_used_again_before_its_epoch_is_settled() {
    let mut groups = groups(100);
    let runs = groups.reserve(100).unwrap();
    groups.confirm(&runs);
    assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
    let freed = BlockRun { start: 40, count: 3 };
    groups.release(&[freed], false);
    assert_eq!((groups.used, groups.reserve(1)), (97, Err(NoBlocks::Full)));
    assert_eq!(groups.freeze(7).len(), 2);
    assert!(groups.settle(6).is_empty());
    assert_eq!(groups.settle(7).as_slice(), [freed]);
    assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
    groups.finish(&[freed]);
    assert_eq!(groups.reserve(3).unwrap().as_slice(), [freed]);
}

#[test]
fn a_long_reservation_prefers_long_runs_and_takes_short_ones_last() {
    let mut groups = groups(2 * GROUP_BLOCKS);
    let all = groups.reserve(2 * GROUP_BLOCKS).unwrap();
    groups.confirm(&all);
    let holes: Vec<_> = (0..100).map(|i| BlockRun { start: i * 10, count: 2 }).collect();
    let long = BlockRun { start: GROUP_BLOCKS + 64, count: 70 };
    groups.release(&holes, true);
    groups.release(&[long], true);
    assert_eq!(groups.reserve(64).unwrap().as_slice(), [BlockRun { count: 64, ..long }]);
    assert_eq!(groups.reserve(206).unwrap().iter().map(|run| run.count).sum::<u64>(), 206);
    assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
}

#[test]
fn groups_that_are_not_in_use_leave_memory_and_their_summary_keeps_a_search_away() {
    let count = MOST_LOADED as u64 + 500;
    let mut groups = groups(count * GROUP_BLOCKS);
    let all = groups.reserve(count * GROUP_BLOCKS - 5).unwrap();
    let at_work = BlockRun { start: 3 * GROUP_BLOCKS, count: 1 };
    groups.confirm(&all);
    groups.release(&[at_work], false);
    let rows = groups.freeze(1);
    assert_eq!(rows.len() as u64, count + 2);
    groups.touch(7);
    groups.freeze(2);
    // The group with a freed block, and the one that was used.
    assert_eq!(groups.in_memory(), 2);
    // Only the last group has free blocks: no other one is read.
    groups.cursor = 0;
    assert_eq!(groups.reserve(3), Err(NoBlocks::Load(count - 1)));
    let mut second = Groups::new(count * GROUP_BLOCKS, groups.used);
    let summaries = rows.iter().filter(|(row_key, _)| row_key[..] >= key::summary(0)[..]);
    for (row_key, row) in summaries {
        second.load_summary(key::last_number(row_key), row.as_ref().unwrap());
    }
    assert_eq!(second.reserve(1), Err(NoBlocks::Load(3)));
    let last = rows.iter().find(|(row_key, _)| *row_key == key::group(count - 1)).unwrap();
    second.load(count - 1, last.1.as_ref());
    second.cursor = (count - 1) * GROUP_BLOCKS;
    assert_eq!(second.reserve(3).unwrap()[0].count, 3);
}

#[test]
fn scattered_free_blocks_are_found_without_reading_all_groups() {
    let count = 200;
    let mut groups = groups(count * GROUP_BLOCKS);
    let all = groups.reserve(count * GROUP_BLOCKS).unwrap();
    groups.confirm(&all);
    let scattered = |group: u64| {
        (0..100).map(move |n| BlockRun { start: group * GROUP_BLOCKS + n * 3, count: 1 })
    };
    let freed: Vec<_> = (0..count).flat_map(scattered).collect();
    groups.release(&freed, true);
    (LONG_SEARCH..count).for_each(|group| drop(groups.loaded.remove(&group)));
    groups.cursor = 0;
    assert_eq!(groups.reserve(64).unwrap().len(), 64);
}

#[test]
fn rows_restore_the_bitmap_without_reservations() {
    let mut first = groups(70);
    let kept = first.reserve(5).unwrap();
    first.confirm(&kept);
    let lost = first.reserve(60).unwrap();
    let rows = first.freeze(1);
    let mut second = Groups::new(70, first.used);
    second.load(0, rows[0].1.as_ref());
    assert_eq!(second.reserve(65).unwrap().iter().map(|run| run.count).sum::<u64>(), 65);
    first.unreserve(&lost);
    assert_eq!(first.free(), 65);
}

#[test]
fn blocks_that_were_added_are_free_and_used_ones_stay_used() {
    let mut groups = groups(100);
    let runs = groups.reserve(100).unwrap();
    groups.confirm(&runs);
    assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
    groups.grow(GROUP_BLOCKS + 10);
    assert_eq!(groups.free(), GROUP_BLOCKS - 90);
    let first = groups.reserve(GROUP_BLOCKS - 100).unwrap();
    assert_eq!(first[0].start, 100);
    groups.load(1, None);
    let rest = groups.reserve(10).unwrap();
    assert_eq!(rest.as_slice(), [BlockRun { start: GROUP_BLOCKS, count: 10 }]);
    assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
}

#[test]
fn an_epoch_is_quiet_when_its_last_reader_has_left() {
    let mut epochs = ReaderEpochs::new();
    let reader = epochs.enter();
    epochs.advance();
    assert_eq!(epochs.quiet(), 0);
    drop(reader);
    assert_eq!((epochs.quiet(), epochs.epoch()), (1, 2));
}
