//! A drive on a volume that grows.

use std::sync::Arc;

use drive::{DriveMutation, DriveStore};
use object::{Command, ObjectAddress, ObjectError};
use sim::{CrashVolume, Rng};
use volume::{Lba, SliceVolume, Stack};

use crate::support::*;

const SMALL: u64 = 12 << 20;
const LARGE: u64 = 18 << 20;
/// Fits once into the small volume, and twice into the large one.
const DATA: usize = 4 << 20;

fn slice(volume: &Stack, bytes: u64) -> Arc<SliceVolume> {
    Arc::new(SliceVolume::new(Arc::clone(volume), Lba(0), bytes / 512).expect("it fits"))
}

async fn create_filled(store: &DriveStore, byte: u8) -> Result<ObjectAddress, ObjectError> {
    let partition = match list(store, 0, 10).await?.first() {
        Some(partition) => *partition,
        None => {
            let create = Command::CreatePartition { requested: 0 };
            perform(store, create).await?.current.object.partition
        }
    };
    let create = Command::Create { partition, requested: 0, count: 1 };
    let object = perform(store, create).await?.current.object;
    write(store, object, 0, vec![byte; DATA]).await?;
    Ok(object)
}

#[test]
fn a_full_drive_takes_more_data_when_its_volume_has_grown() {
    run(async {
        let whole = memory(LARGE);
        let part = slice(&whole, SMALL);
        let store = open(&(Arc::clone(&part) as Stack)).await;
        let first = create_filled(&store, 1).await.expect("it fits");
        let full = create_filled(&store, 2).await;
        assert!(matches!(full, Err(ObjectError::Quota { .. })), "{full:?}");
        let before = store.statistics().capacity_bytes;
        assert_eq!(store.grow().await.expect("nothing to do"), before);
        part.grow(None).expect("grown");
        assert_eq!(store.grow().await.expect("grown"), before + LARGE - SMALL);
        let second = create_filled(&store, 2).await.expect("it fits now");
        store.close().await.expect("closed");
        let store = open(&whole).await;
        for (object, byte) in [(first, 1), (second, 2)] {
            assert!(read(&store, object, 0, 1 << 30).await.expect("read") == vec![byte; DATA]);
        }
        perform(&store, Command::FormatOsd { capacity: 0 }).await.expect("formatted");
        assert_eq!(store.statistics().capacity_bytes, before + LARGE - SMALL);
    });
}

#[test]
fn a_drive_takes_the_larger_volume_that_it_finds_at_its_start() {
    run(async {
        let whole = memory(LARGE);
        let store = open(&(slice(&whole, SMALL) as Stack)).await;
        create_filled(&store, 1).await.expect("it fits");
        store.close().await.expect("closed");
        let store = open(&whole).await;
        create_filled(&store, 2).await.expect("it fits now");
        store.close().await.expect("closed");
        let cut = slice(&whole, SMALL) as Stack;
        let refused = DriveStore::open(cut, options()).await.err().expect("refused").to_string();
        assert!(refused.contains("was made for"), "{refused}");
    });
}

/// Fills a drive, grows it, and fills the added space. Notes each object that was flushed.
async fn fill_and_grow(
    part: &Arc<SliceVolume>,
    flushed: &mut Vec<(ObjectAddress, u8)>,
) -> Result<(), ObjectError> {
    let stack: Stack = Arc::clone(part) as _;
    let Ok(store) = open_with(&stack, DriveMutation::default()).await else { return Ok(()) };
    let first = create_filled(&store, 1).await?;
    flush(&store).await?;
    flushed.push((first, 1));
    part.grow(None).expect("the volume below has grown");
    store.grow().await?;
    let second = create_filled(&store, 2).await?;
    flush(&store).await?;
    flushed.push((second, 2));
    store.close().await
}

#[test]
fn a_crash_while_a_drive_grows_loses_nothing_that_was_flushed() {
    let whole = || Arc::new(CrashVolume::new(geometry(LARGE), 1));
    let volume = whole();
    let part = slice(&(volume.clone() as Stack), SMALL);
    let mut flushed = Vec::new();
    run(fill_and_grow(&part, &mut flushed)).expect("without a crash");
    assert_eq!(flushed.len(), 2);
    let mut rng = Rng::new(7);
    for point in 0..volume.power().operations() {
        let volume = whole();
        volume.crash_after(point);
        let part = slice(&(volume.clone() as Stack), SMALL);
        let mut flushed = Vec::new();
        // The crash ends the commands.
        let _ = run(fill_and_grow(&part, &mut flushed));
        drop(part);
        let image = volume.crash(&mut rng);
        let stack: Stack = Arc::new(CrashVolume::reopen(image, 1));
        run(async {
            let report = drive::examine_drive(stack.clone(), options(), Box::new(|_, _| {})).await;
            let report = report.expect("examined");
            assert!(report.is_none_or(|report| report.is_sound()), "point {point}");
            let store = open(&stack).await;
            for (object, byte) in flushed {
                let data = read(&store, object, 0, 1 << 30).await.expect("read");
                assert!(data == vec![byte; DATA], "point {point}: {object}");
            }
        });
    }
}
