use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        // Poll in a loop, without a waker: a call of the disk yields a few times at most.
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

fn write(disk: &CrashVolume, lba: u64, byte: u8, blocks: usize, durability: Durability) {
    let data = Data::from(vec![byte; blocks * 512]);
    run(disk.write(Lba(lba), data, durability)).expect("power is on");
}

fn disk() -> CrashVolume {
    CrashVolume::new(Geometry::with_blocks(64), 1)
}

/// Crashes the disk many times. Returns all different outcomes. An outcome is the first byte of each of the first
/// `blocks` blocks.
fn outcomes(disk: &CrashVolume, blocks: u64) -> BTreeSet<Vec<u8>> {
    let mut rng = Rng::new(99);
    (0..500)
        .map(|_| {
            let image = disk.crash(&mut rng);
            (0..blocks).map(|block| image.read(block * 512..block * 512 + 1)[0]).collect()
        })
        .collect()
}

#[test]
fn a_killed_process_leaves_its_writes_on_the_disk_and_makes_none_of_them_stable() {
    let disk = CrashVolume::new(Geometry::with_blocks(8), 1);
    run(disk.write(Lba(0), vec![1; 512].into(), Durability::Volatile)).expect("written");
    let next = disk.goes_on(2);
    let block = Extent { lba: Lba(0), blocks: 1 };
    assert_eq!(run(next.read(block)).expect("read").into_bytes()[0], 1);
    let is_lost = |disk: &CrashVolume| {
        (0..64).any(|seed| disk.crash(&mut Rng::new(seed)).read(0..512)[0] == 0)
    };
    assert!(is_lost(&next));
    let next = disk.goes_on(3);
    run(next.flush()).expect("flushed");
    assert!(!is_lost(&next));
}

#[test]
fn stable_writes_survive_every_crash() {
    let disk = disk();
    write(&disk, 0, 1, 2, Durability::Volatile);
    write(&disk, 1, 2, 2, Durability::Stable);
    let all = outcomes(&disk, 3);
    assert_eq!(all, [vec![0, 2, 2], vec![1, 2, 2]].into_iter().collect());
}

#[test]
fn flushed_writes_survive_every_crash() {
    let disk = disk();
    write(&disk, 0, 1, 2, Durability::Volatile);
    run(disk.flush()).expect("power is on");
    write(&disk, 2, 2, 1, Durability::Volatile);
    assert_eq!(outcomes(&disk, 3), [vec![1, 1, 0], vec![1, 1, 2]].into_iter().collect());
}

#[test]
fn unflushed_writes_survive_in_every_combination() {
    let disk = disk();
    write(&disk, 0, 1, 2, Durability::Volatile);
    write(&disk, 1, 2, 2, Durability::Volatile);
    let all = outcomes(&disk, 3);
    // Block 0 holds its old data or the first write; block 1 the old data or either write; block 2
    // the old data or the second write.
    assert_eq!(all.len(), 2 * 3 * 2, "{all:?}");
}

#[test]
fn a_write_within_a_large_atomic_unit_is_never_torn() {
    let disk = disk().with_atoms(4096);
    write(&disk, 0, 1, 4, Durability::Volatile);
    write(&disk, 2, 2, 6, Durability::Volatile);
    let expected = [vec![0; 8], vec![1, 1, 1, 1, 0, 0, 0, 0], vec![1, 1, 2, 2, 2, 2, 2, 2]];
    assert_eq!(outcomes(&disk, 8), expected.into_iter().collect());
}

#[test]
fn the_write_during_which_the_power_fails_is_torn_and_fails() {
    let disk = disk();
    disk.crash_after(2);
    write(&disk, 0, 1, 1, Durability::Stable);
    run(disk.flush()).expect("power is on");
    let last = run(disk.write(Lba(1), vec![2; 1024].into(), Durability::Stable));
    assert!(matches!(last, Err(Error::Device(_))));
    let read = run(disk.read(Extent { lba: Lba(0), blocks: 1 }));
    assert!(matches!(read, Err(Error::Device(_))));
    assert_eq!(disk.power().operations(), 3);
    let expected = [vec![1, 0, 0], vec![1, 0, 2], vec![1, 2, 0], vec![1, 2, 2]];
    assert_eq!(outcomes(&disk, 3), expected.into_iter().collect());
}

#[test]
fn a_flush_during_which_the_power_fails_promises_nothing() {
    let disk = disk();
    write(&disk, 0, 1, 1, Durability::Volatile);
    disk.crash_after(1);
    assert!(run(disk.flush()).is_err());
    assert_eq!(outcomes(&disk, 1), [vec![0], vec![1]].into_iter().collect());
}

#[test]
fn a_flush_need_not_cover_what_is_still_in_flight() {
    let mut covered = BTreeSet::new();
    for seed in 0..20 {
        let disk = CrashVolume::new(Geometry::with_blocks(64), seed).with_yields(99);
        let mut slow = disk.write(Lba(0), vec![1; 512].into(), Durability::Volatile);
        while disk.power().operations() == 0 {
            assert!(
                std::pin::Pin::new(&mut slow)
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        run(disk.flush()).expect("power is on");
        covered.insert(disk.state.lock().unstable.is_empty());
        run(slow).expect("power is on");
        run(disk.flush()).expect("power is on");
        assert!(disk.state.lock().unstable.is_empty(), "what was answered is covered always");
    }
    assert_eq!(covered.len(), 2, "sometimes it is, sometimes not");
}

#[test]
fn ignored_flushes_and_stable_writes_can_be_lost() {
    let disk = disk().with_sync(FlushGuarantee::Ignored);
    write(&disk, 0, 1, 1, Durability::Stable);
    run(disk.flush()).expect("power is on");
    assert_eq!(outcomes(&disk, 1), [vec![0], vec![1]].into_iter().collect());
}

#[test]
fn discards_are_forgotten_like_writes() {
    let disk = disk();
    write(&disk, 0, 1, 2, Durability::Stable);
    run(disk.discard(Extent { lba: Lba(1), blocks: 1 })).expect("power is on");
    let read = run(disk.read(Extent { lba: Lba(0), blocks: 2 })).expect("power is on");
    assert_eq!(read.into_bytes(), [[1; 512], [0; 512]].concat());
    assert_eq!(outcomes(&disk, 2), [vec![1, 0], vec![1, 1]].into_iter().collect());
}

#[test]
fn disks_on_one_power_supply_fail_together_and_hang_if_configured() {
    let first = disk();
    let second = disk().powered_by(first.power()).with_outage(Outage::Hangs);
    second.crash_after(1);
    write(&first, 0, 1, 1, Durability::Stable);
    let mut hung = second.flush();
    assert!(
        std::pin::Pin::new(&mut hung).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    );
    assert!(run(first.flush()).is_err());
}

#[test]
fn a_reopened_disk_holds_the_image() {
    let disk = disk();
    write(&disk, 5, 7, 1, Durability::Stable);
    let again = CrashVolume::reopen(disk.crash(&mut Rng::new(0)), 2);
    let read = run(again.read(Extent { lba: Lba(5), blocks: 1 })).expect("power is on");
    assert_eq!(read.into_bytes(), [7; 512].as_slice());
}

#[test]
fn corruption_flips_exactly_one_bit() {
    let disk = disk();
    write(&disk, 0, 0xff, 2, Durability::Volatile);
    disk.corrupt(100..900);
    let bytes = disk.contents().read(0..1024);
    assert_eq!(bytes.iter().map(|byte| byte.count_zeros()).sum::<u32>(), 1);
    assert_eq!(outcomes(&disk, 1).len(), 1, "all is stable");
}

#[test]
fn the_same_seed_gives_the_same_crash() {
    let image = |seed| {
        let disk = disk().with_yields(50);
        (0..10).for_each(|i| write(&disk, i, i as u8 + 1, 3, Durability::Volatile));
        disk.crash(&mut Rng::new(seed)).read(0..64 * 512)
    };
    assert_eq!(image(3), image(3));
    assert!((0..10).any(|seed| image(seed) != image(3)));
}
