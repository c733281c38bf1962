//! Tests of a mirror that loses a leg, gets a new one, and is cut off from its legs at every write.

use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{sleep, timeout};
use volume::{
    Data, DelayVolume, Durability, Error, Extensions, Extent, FaultCallKind, FaultRule,
    FaultVolume, Faults, Geometry, Io, Latency, Lba, MemVolume, Mirror, MirrorError,
    MirrorLegStatus, RedundantCopies, Stack, Symptom, Volume,
};

/// Number of blocks of a leg: 44 whole regions and a part of one.
const BLOCKS: u64 = 45_060;
/// The block of a leg at which block 0 of the mirror is.
const DATA: u64 = 2;

fn memory() -> Stack {
    Arc::new(MemVolume::new(Geometry { block_size: 4096, ..Geometry::with_blocks(BLOCKS) }))
}

fn faulty(lower: &Stack) -> (Stack, Arc<Faults>) {
    let fault = FaultVolume::new(Arc::clone(lower));
    let faults = Arc::clone(fault.faults());
    (Arc::new(fault), faults)
}

async fn open(halves: [Option<&Stack>; 2]) -> Result<Mirror, MirrorError> {
    Mirror::open(halves.map(|half| half.cloned()), [7; 16], false).await
}

async fn both(halves: &[Stack; 2]) -> Mirror {
    open([Some(&halves[0]), Some(&halves[1])]).await.expect("they fit")
}

fn filled(byte: u8) -> Data {
    vec![byte; 4096].into()
}

async fn write(volume: &dyn Volume, block: u64, byte: u8) -> Result<(), Error> {
    volume.write(Lba(block), filled(byte), Durability::Stable).await
}

async fn byte(volume: &dyn Volume, block: u64) -> u8 {
    let read = volume.read(Extent { lba: Lba(block), blocks: 1 }).await;
    let bytes = read.expect("it can be read").into_bytes();
    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
    bytes[0]
}

async fn in_sync(mirror: &Mirror) {
    let wait = async {
        while mirror.standings() != [MirrorLegStatus::InSync, MirrorLegStatus::InSync] {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(600), wait).await.expect("the half is filled");
}

fn broken() -> Symptom {
    Symptom::Fails(Error::Device("broken".into()))
}

#[tokio::test(start_paused = true)]
async fn both_legs_have_every_write() {
    let halves = [memory(), memory()];
    let mirror = both(&halves).await;
    assert_eq!(mirror.geometry().blocks, BLOCKS - DATA);
    write(&mirror, 5, 1).await.unwrap();
    mirror.discard(Extent { lba: Lba(5), blocks: 1 }).await.unwrap();
    write(&mirror, BLOCKS - DATA - 1, 2).await.unwrap();
    for half in &halves {
        assert_eq!(byte(half.as_ref(), DATA + 5).await, 0);
        assert_eq!(byte(half.as_ref(), BLOCKS - 1).await, 2);
    }
    assert!(write(&mirror, BLOCKS - DATA, 2).await.is_err(), "beyond the end");
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_fails_is_dropped_and_the_mirror_continues_with_the_other() {
    for lost in [0, 1] {
        let halves = [memory(), memory()];
        let (fault, faults) = faulty(&halves[lost]);
        let mut used = halves.clone();
        used[lost] = fault;
        let mirror = both(&used).await;
        write(&mirror, 5, 1).await.unwrap();
        faults.add(FaultRule::always(FaultCallKind::Write, broken()));
        write(&mirror, 5, 2).await.unwrap();
        assert_eq!(byte(&mirror, 5).await, 2);
        let standings = mirror.standings();
        assert!(matches!(&standings[lost], MirrorLegStatus::Out(why) if why.contains("broken")));
        assert_eq!(standings[1 - lost], MirrorLegStatus::InSync);
        drop(mirror);

        // The lost leg alone must not be accepted as right.
        let mut alone = [None, None];
        alone[lost] = Some(&halves[lost]);
        let error = open(alone).await.err().expect("it does not know that it is stale");
        assert!(matches!(error, MirrorError::Absent { .. }), "{error}");
        let mut alone = [None, None];
        alone[1 - lost] = Some(&halves[1 - lost]);
        assert_eq!(byte(&open(alone).await.unwrap(), 5).await, 2);
        // When the failed leg is attached again, the mirror fills it.
        let mirror = both(&halves).await;
        assert_eq!(byte(&mirror, 5).await, 2);
        in_sync(&mirror).await;
        assert_eq!(byte(halves[lost].as_ref(), DATA + 5).await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn legs_that_were_each_used_alone_are_refused() {
    let halves = [memory(), memory()];
    write(&both(&halves).await, 5, 1).await.unwrap();
    let degraded = async |halves| Mirror::open(halves, [7; 16], true).await.unwrap();
    write(&degraded([Some(halves[0].clone()), None]).await, 5, 2).await.unwrap();
    write(&degraded([None, Some(halves[1].clone())]).await, 5, 3).await.unwrap();
    let error = open([Some(&halves[0]), Some(&halves[1])]).await.err().expect("they are split");
    assert!(matches!(error, MirrorError::Split { epochs: [3, 3] }), "{error}");
    // The administrator can continue with one of the legs and a blank device as the other.
    let mirror = open([Some(&halves[0]), Some(&memory())]).await.unwrap();
    assert_eq!(byte(&mirror, 5).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_leg_is_replaced_while_the_mirror_is_written() {
    let halves = [memory(), memory()];
    let (fault, faults) = faulty(&halves[0]);
    let mirror = both(&[fault, halves[1].clone()]).await;
    for block in 0..200 {
        write(&mirror, block * 220, 1).await.unwrap();
    }
    faults.add(FaultRule::always(FaultCallKind::Any, broken()));
    write(&mirror, 0, 2).await.unwrap();
    let small =
        Arc::new(MemVolume::new(Geometry { block_size: 4096, ..Geometry::with_blocks(99) }));
    assert!(matches!(mirror.replace(0, small).await, Err(MirrorError::TooSmall { half: 0 })));
    let new = memory();
    mirror.replace(0, Arc::clone(&new)).await.unwrap();
    for block in 0..200 {
        write(&mirror, block * 220 + block % 3, 3).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    in_sync(&mirror).await;
    for block in (0..BLOCKS - DATA).filter(|block| block % 220 < 3 || block % 997 == 0) {
        let expected = byte(halves[1].as_ref(), DATA + block).await;
        assert_eq!(byte(new.as_ref(), DATA + block).await, expected, "{block}");
    }
    // Reopen: the labels of both legs record that both are in sync.
    drop(mirror);
    in_sync(&both(&[new, halves[1].clone()]).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_block_that_one_leg_cannot_read_is_read_from_the_other_and_repaired() {
    let halves = [memory(), memory()];
    let (fault, faults) = faulty(&halves[0]);
    let mirror = both(&[fault, halves[1].clone()]).await;
    write(&mirror, 5, 1).await.unwrap();
    let bad = Extent { lba: Lba(DATA + 5), blocks: 1 };
    let medium = Error::Medium { extent: bad, reason: "scratched".into() };
    faults.add(FaultRule::always(FaultCallKind::Read, Symptom::Fails(medium)).at(bad).times(1));
    assert_eq!(byte(&mirror, 5).await, 1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (mirror.mended(), mirror.standings()),
        (1, [MirrorLegStatus::InSync, MirrorLegStatus::InSync])
    );
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_copy_is_overwritten_from_the_intact_one() {
    for corrupt in [0, 1] {
        let halves = [memory(), memory()];
        let mirror = both(&halves).await;
        write(&mirror, 5, 1).await.unwrap();
        write(halves[corrupt].as_ref(), DATA + 5, 9).await.unwrap();
        let extent = Extent { lba: Lba(5), blocks: 1 };
        let right = mirror.examine(extent, &|data| *data == filled(1)).await.unwrap();
        assert!(right.is_some_and(|data| data == filled(1)));
        assert_eq!(byte(halves[corrupt].as_ref(), DATA + 5).await, 1);
        assert!(mirror.examine(extent, &|data| *data == filled(2)).await.unwrap().is_none());
    }
}

fn extent(block: u64) -> Extent {
    Extent { lba: Lba(block), blocks: 1 }
}

/// Makes every read of a block of a leg fail, also after the block was written.
fn scratch(faults: &Faults, block: u64) {
    let bad = extent(DATA + block);
    let medium = Error::Medium { extent: bad, reason: "scratched".into() };
    faults.add(FaultRule::always(FaultCallKind::Read, Symptom::Fails(medium)).at(bad));
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_no_copy_is_overwritten_before_it_was_examined() {
    for corrupt in [0, 1] {
        let halves = [memory(), memory()];
        let mirror = both(&halves).await;
        write(&mirror, 5, 1).await.unwrap();
        write(&mirror, 6, 1).await.unwrap();
        drop(mirror);
        write(halves[corrupt].as_ref(), DATA + 5, 9).await.unwrap();
        write(halves[1].as_ref(), DATA + 6, 8).await.unwrap();
        // Open the mirror twice: blocks that differ, and of which no user of the mirror has said which copy is right,
        // must still be found after a second crash.
        drop(both(&halves).await);
        let mirror = both(&halves).await;
        assert_eq!(mirror.divergent(), [Extent { lba: Lba(5), blocks: 2 }]);
        let plain = byte(&mirror, 5).await;
        assert_eq!(plain, byte(&mirror, 5).await, "it is one of them, always the same");
        let found = mirror.examine(extent(5), &|data| *data == filled(1)).await.unwrap();
        assert!(found.is_some_and(|data| data == filled(1)));
        assert_eq!((byte(&mirror, 5).await, mirror.mended()), (1, 1));
        assert_eq!(mirror.divergent(), [extent(6)]);
        // `make_equal` also copies the blocks that no caller has examined.
        mirror.make_equal().await.unwrap();
        assert_eq!(mirror.divergent(), []);
        for half in &halves {
            assert_eq!(byte(half.as_ref(), DATA + 5).await, 1);
            assert_eq!(byte(half.as_ref(), DATA + 6).await, 1);
        }
    }
}

/// Makes two legs that differ in block 5: the second leg has a write that the first one has lost.
async fn one_lacks_a_write() -> [Stack; 2] {
    let halves = [memory(), memory()];
    write(&both(&halves).await, 5, 1).await.unwrap();
    write(halves[0].as_ref(), DATA + 5, 9).await.unwrap();
    Mirror::note_loss(&halves[0], true).await.unwrap();
    halves
}

async fn lacks_writes(half: &Stack) -> bool {
    Mirror::label_of(half).await.unwrap().unwrap().has_lost
}

#[tokio::test(start_paused = true)]
async fn a_leg_is_marked_as_lacking_writes_until_both_are_equal_or_it_is_filled() {
    let halves = one_lacks_a_write().await;
    // Opening the mirror does not clear the flag that the leg lacks writes: block 5 is still doubtful.
    drop(both(&halves).await);
    assert!(lacks_writes(&halves[0]).await);
    // While a doubtful block cannot be read, `make_equal` does not clear the flag either.
    let (fault, faults) = faulty(&halves[0]);
    let mirror = both(&[fault, halves[1].clone()]).await;
    scratch(&faults, 5);
    mirror.make_equal().await.unwrap();
    assert!(!mirror.divergent().is_empty() && lacks_writes(&halves[0]).await);
    drop(mirror);
    let mirror = both(&halves).await;
    let found = mirror.examine(extent(5), &|data| *data == filled(1)).await.unwrap();
    assert!(found.is_some());
    mirror.make_equal().await.unwrap();
    assert!(!lacks_writes(&halves[0]).await);
    assert_eq!(byte(halves[0].as_ref(), DATA + 5).await, 1);
    drop(mirror);
    Mirror::note_loss(&halves[0], true).await.unwrap();
    let mirror = both(&halves).await;
    mirror.replace(0, halves[0].clone()).await.unwrap();
    in_sync(&mirror).await;
    assert!(!lacks_writes(&halves[0]).await);
}

#[tokio::test(start_paused = true)]
async fn examine_fails_while_the_other_copy_is_unreachable() {
    let halves = one_lacks_a_write().await;
    let (fault, faults) = faulty(&halves[1]);
    let mirror = both(&[halves[0].clone(), fault]).await;
    let away = Error::Unreachable("the partner does not answer".into());
    faults.add(FaultRule::always(FaultCallKind::Read, Symptom::Fails(away)).times(1));
    let is_right = |data: &Data| *data == filled(1);
    assert!(mirror.examine(extent(5), &is_right).await.is_err(), "the right one is away");
    assert!(mirror.examine(extent(5), &is_right).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_lacks_writes_is_never_used_alone() {
    let halves = one_lacks_a_write().await;
    let (fault, faults) = faulty(&halves[1]);
    let mirror = both(&[halves[0].clone(), fault]).await;
    faults.add(FaultRule::always(FaultCallKind::Write, broken()));
    assert!(write(&mirror, 6, 2).await.is_err());
    assert_eq!(mirror.alone(), None);
    assert!(mirror.release(1).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_block_that_differs_is_always_read_from_the_same_leg() {
    let halves = [memory(), memory()];
    write(&both(&halves).await, 5, 1).await.unwrap();
    write(halves[1].as_ref(), DATA + 5, 2).await.unwrap();
    let (fault, faults) = faulty(&halves[0]);
    let mirror = both(&[fault, halves[1].clone()]).await;
    assert_eq!(byte(&mirror, 5).await, 1);
    scratch(&faults, 5);
    assert!(mirror.read(extent(5)).await.is_err(), "not another content");
    write(&mirror, 5, 3).await.unwrap();
    assert_eq!(mirror.divergent(), []);
    assert_eq!(byte(&mirror, 5).await, 3, "from the half that can");
}

#[tokio::test(start_paused = true)]
async fn a_block_that_one_leg_cannot_read_after_a_crash_is_copied_from_the_other() {
    for bad in [0, 1] {
        let halves = [memory(), memory()];
        write(&both(&halves).await, 5, 1).await.unwrap();
        let (fault, faults) = faulty(&halves[bad]);
        scratch(&faults, 5);
        write(halves[bad].as_ref(), DATA + 5, 9).await.unwrap();
        let mut used = halves.clone();
        used[bad] = fault;
        let mirror = both(&used).await;
        assert_eq!((byte(&mirror, 5).await, mirror.mended()), (1, 1));
        assert_eq!(byte(halves[bad].as_ref(), DATA + 5).await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leg_is_filled_from_one_that_has_a_bad_sector() {
    let halves = [memory(), memory()];
    let (fault, faults) = faulty(&halves[1]);
    let mirror = both(&[halves[0].clone(), fault]).await;
    for block in 4..7 {
        write(&mirror, block, 1).await.unwrap();
    }
    scratch(&faults, 5);
    let new = memory();
    mirror.replace(0, Arc::clone(&new)).await.unwrap();
    in_sync(&mirror).await;
    for (block, expected) in [(4, 1), (5, 0), (6, 1)] {
        assert_eq!(byte(new.as_ref(), DATA + block).await, expected);
    }
    assert_eq!(mirror.zeroed(), 1);
    assert!(mirror.read(extent(5)).await.is_err(), "zeros were never written there");
    write(&mirror, 5, 2).await.unwrap();
    assert_eq!(byte(&mirror, 5).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_late_error_of_the_old_device_does_not_drop_the_new_one() {
    let halves = [memory(), memory()];
    let (fault, faults) = faulty(&halves[0]);
    let latency = Latency { write: Duration::from_millis(50), ..Latency::default() };
    let slow: Stack = Arc::new(DelayVolume::new(fault, latency));
    let mirror = Arc::new(both(&[slow, halves[1].clone()]).await);
    write(mirror.as_ref(), 6, 1).await.unwrap();
    faults.add(FaultRule::always(FaultCallKind::Write, broken()));
    let late = tokio::spawn({
        let mirror = Arc::clone(&mirror);
        async move { write(mirror.as_ref(), 5, 1).await }
    });
    sleep(Duration::from_millis(10)).await;
    let new = memory();
    mirror.replace(0, Arc::clone(&new)).await.unwrap();
    late.await.unwrap().unwrap();
    in_sync(&mirror).await;
    assert_eq!(byte(new.as_ref(), DATA + 5).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_leg_is_complete_only_when_the_other_one_has_flushed_too() {
    let halves = [memory(), memory()];
    let (fault, faults) = faulty(&halves[1]);
    let mirror = both(&[halves[0].clone(), fault]).await;
    write(&mirror, 5, 1).await.unwrap();
    mirror.release(0).await.unwrap();
    mirror.write(Lba(5), filled(2), Durability::Volatile).await.unwrap();
    faults.add(FaultRule::always(FaultCallKind::Flush, broken()));
    mirror.replace(0, memory()).await.unwrap();
    let wait = async {
        while !matches!(mirror.standings()[0], MirrorLegStatus::Out(_)) {
            assert_ne!(mirror.standings()[0], MirrorLegStatus::InSync);
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(600), wait).await.expect("the filling ends");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_no_leg_of_the_mirror_is_refused() {
    let halves = [memory(), memory()];
    drop(both(&halves).await);
    let other = [memory(), memory()];
    drop(Mirror::open(other.clone().map(Some), [8; 16], false).await.unwrap());
    let error = open([Some(&halves[0]), Some(&other[1])]).await.err().expect("strangers");
    assert!(matches!(error, MirrorError::Strangers));
    write(other[1].as_ref(), 0, 3).await.unwrap();
    write(other[1].as_ref(), 1, 3).await.unwrap();
    let error = open([Some(&halves[0]), Some(&other[1])]).await.err().expect("no half");
    assert!(
        matches!(error, MirrorError::NotAHalf { half: 1, other_is_whole: true, .. }),
        "{error}"
    );
}

/// A leg whose power fails after a given number of writes to both legs together. Later calls never
/// return.
struct Cut {
    lower: Stack,
    left: Arc<AtomicU64>,
}

impl Cut {
    fn is_off(&self) -> bool {
        let took = |left: u64| Some(left.saturating_sub(1));
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, took) == Ok(0)
    }
}

impl Volume for Cut {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }
    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.lower.read(extent)
    }
    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        if self.is_off() { Io::new(pending()) } else { self.lower.write(lba, data, durability) }
    }
    fn flush(&self) -> Io<'_, ()> {
        if self.left.load(Ordering::SeqCst) == 0 { Io::new(pending()) } else { self.lower.flush() }
    }
    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.lower.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// Runs the script: writes to many blocks, with a leg that fails at step 20 and is replaced at step
/// 40. Returns the values that each block may have: the last acknowledged write, and a later one
/// that was not acknowledged.
async fn script(halves: &[Stack; 2], seed: u64, left: &Arc<AtomicU64>) -> HashMap<u64, Vec<u8>> {
    let mut values: HashMap<u64, Vec<u8>> = HashMap::new();
    let lost = (seed % 3) as usize;
    let mut used = [0, 1].map(|i: usize| -> Stack {
        Arc::new(Cut { lower: Arc::clone(&halves[i]), left: Arc::clone(left) })
    });
    let mut faults = None;
    if lost < 2 {
        let (fault, rules) = faulty(&used[lost]);
        used[lost] = fault;
        faults = Some(rules);
    }
    let open = Mirror::open(used.clone().map(Some), [7; 16], false);
    let Ok(Ok(mirror)) = timeout(Duration::from_secs(100), open).await else { return values };
    for step in 0..60u8 {
        if step == 20
            && let Some(faults) = &faults
        {
            faults.add(FaultRule::always(FaultCallKind::Write, broken()));
        }
        if step == 40
            && let Some(faults) = &faults
        {
            faults.clear();
            let replaced = mirror.replace(lost, Arc::clone(&used[lost]));
            let Ok(Ok(())) = timeout(Duration::from_secs(100), replaced).await else { break };
        }
        // Every second write changes one of five blocks. The others change blocks in regions that are not marked as
        // dirty yet.
        let block =
            if step % 2 == 0 { u64::from(step % 5) } else { u64::from(step) * 1024 % 44_000 };
        let held = values.entry(block).or_insert_with(|| vec![0]);
        held.push(step + 1);
        match timeout(Duration::from_secs(100), write(&mirror, block, step + 1)).await {
            Ok(Ok(())) => drop(held.drain(..held.len() - 1)),
            Ok(Err(error)) => panic!("a write failed: {error}"),
            Err(_) => break,
        }
        if step % 7 == 0 {
            sleep(Duration::from_millis(300)).await;
        }
    }
    values
}

#[test]
fn after_a_power_cut_at_any_write_no_acknowledged_write_is_lost_and_the_legs_agree() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().expect("a runtime without I/O")
    };
    for seed in 0..3u64 {
        for writes in (seed..220).step_by(if seed == 2 { 11 } else { 4 }) {
            let halves = [memory(), memory()];
            let left = Arc::new(AtomicU64::new(writes));
            let values = runtime().block_on(script(&halves, seed, &left));
            runtime().block_on(async {
                let mirror = open([Some(&halves[0]), Some(&halves[1])]).await;
                let mirror = mirror.unwrap_or_else(|error| panic!("{seed}, {writes}: {error}"));
                let mut seen = HashMap::new();
                // A block read before `make_equal` must have the same content afterwards: call it at
                // different points.
                let settle_after = writes as usize % 3 * values.len() / 2;
                for (at, (&block, may)) in values.iter().enumerate() {
                    if at == settle_after {
                        mirror.make_equal().await.unwrap();
                    }
                    let byte = byte(&mirror, block).await;
                    assert!(may.contains(&byte), "{seed}, {writes}: {block} is {byte} of {may:?}");
                    seen.insert(block, byte);
                }
                mirror.make_equal().await.unwrap();
                in_sync(&mirror).await;
                for (&block, &expected) in &seen {
                    for half in &halves {
                        let found = byte(half.as_ref(), DATA + block).await;
                        assert_eq!(found, expected, "{seed}, {writes}: block {block}");
                    }
                }
            });
        }
    }
}
