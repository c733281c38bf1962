//! Drives whose rows were replaced by hostile ones: every command ends with data or an error.

use std::{panic::AssertUnwindSafe, time::Duration};

use object::{AttributeSelection, CopyMethod, FlushScope, ListRequest, MapType, ObjectResult};

use super::*;

/// Returns the keys and rows of all tables of a closed drive.
async fn all_rows(volume: &Stack) -> Vec<(Key, Vec<u8>)> {
    on_thread(volume, |database, _, _| {
        use redb::ReadableDatabase;
        let read = database.begin_read().expect("begun");
        let rows = read.open_table(ROWS).expect("opened");
        let rows = rows.range::<&[u8]>(..).expect("read").map(|row| row.expect("read"));
        Ok(rows.map(|(key, row)| (Key::from_slice(key.value()), row.value().to_vec())).collect())
    })
    .await
    .expect("read")
}

async fn copy(volume: &Stack) -> Stack {
    let copy: Stack = Arc::new(MemVolume::new(volume.geometry()));
    let data = all_bytes(volume).await;
    copy.write(Lba(0), data.into(), Durability::Stable).await.expect("written");
    copy
}

/// Returns hostile values for a row; `None` removes it.
fn hostile(row: &[u8], seed: u64) -> Vec<Option<Vec<u8>>> {
    let mut values = vec![None, Some(Vec::new()), Some(vec![0xff; row.len()])];
    values.push(Some(vec![0; row.len()]));
    values.push(Some([row, &[0xff; 5000]].concat()));
    values.push(Some(row[..row.len() / 2].to_vec()));
    values.push(Some(row[..row.len().saturating_sub(1)].to_vec()));
    let mut state = seed | 1;
    for _ in 0..8.min(row.len()) {
        // A generator of Marsaglia: the same bits in each run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut flipped = row.to_vec();
        flipped[(state >> 8) as usize % row.len()] ^= 1 << (state % 8);
        values.push(Some(flipped));
    }
    values
}

async fn try_command(store: &DriveStore, command: Command) -> ObjectResult {
    let data = Data::from(vec![3; command.data_out_length() as usize]);
    let request = ObjectRequest::new(command).with_data(data);
    store.perform(request.getting(AttributeSelection::All)).await
}

/// Performs every kind of command. The results do not matter.
async fn use_drive(volume: &Stack, sample: &Sample) {
    let Ok(store) = DriveStore::open(Arc::clone(volume), options()).await else { return };
    let (partition, first, collection) = (sample.partition, sample.first, sample.collection);
    let second = ObjectAddress::new(partition, first.object + 1);
    let list = ListRequest { allocation_length: 4096, with_attributes: true, ..Default::default() };
    let method = CopyMethod(0);
    let commands = [
        Command::List { partition: 0, list },
        Command::List { partition, list },
        Command::ListCollection { collection, list },
        Command::ListCollection { collection: ObjectAddress::partition(partition), list },
        Command::Read { object: first, length: 1 << 20, start: 0 },
        Command::Read { object: second, length: 1 << 20, start: 0 },
        Command::ReadMap {
            object: first,
            start: 0,
            map_type: MapType::All,
            allocation_length: 4096,
        },
        Command::Write { object: first, length: 9_000, start: 50_000 },
        Command::Append { object: second, length: 9_000 },
        Command::Clear { object: first, length: 20_000, start: 10_000 },
        Command::Punch { object: first, length: 8192, start: 4096 },
        Command::Create { partition, requested: 0, count: 3 },
        Command::CreateSnapshot { source: partition, requested: 0, method },
        Command::Read { object: first, length: 1 << 20, start: 0 },
        Command::Write { object: first, length: 9_000, start: 0 },
        Command::RemoveCollection { collection, force: true },
        Command::Remove { object: first },
        Command::FlushOsd { scope: FlushScope::RangeOrEverything },
        Command::RemovePartition { partition, with_contents: true },
        Command::FormatOsd { capacity: 0 },
    ];
    for command in commands {
        // Hostile rows may fail it.
        let _ = try_command(&store, command).await;
    }
    // After FORMAT OSD nothing of the hostile rows is left, unless it was refused.
    if perform_nothing(&store).await {
        assert_eq!(store.statistics().used_bytes, 0);
    }
    let _ = store.close().await;
}

/// Returns true if the drive is empty.
async fn perform_nothing(store: &DriveStore) -> bool {
    store.statistics().objects == 0 && store.statistics().partitions == 0
}

#[test]
fn hostile_rows_end_in_errors_and_never_in_a_panic_or_a_hang() {
    let sample = run(sample());
    let rows = run(all_rows(&sample.volume));
    let mut failed = Vec::new();
    for (at, (key, row)) in rows.iter().enumerate() {
        for value in hostile(row, at as u64 + 1) {
            let text =
                format!("{key:02x?}: {:02x?}", value.as_ref().map(|v| &v[..v.len().min(140)]));
            let case = async {
                let volume = copy(&sample.volume).await;
                change_row(&volume, key.clone(), move |_| value).await;
                let _ = examine(&volume).await;
                tokio::time::timeout(Duration::from_secs(20), use_drive(&volume, &sample)).await
            };
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build();
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
                runtime().expect("a runtime").block_on(case)
            }));
            if !matches!(ended, Ok(Ok(()))) {
                failed.push(text);
            }
        }
    }
    assert!(failed.is_empty(), "{} cases: {failed:#?}", failed.len());
}

/// Flips one bit of the volume.
async fn flip_bit(volume: &Stack, at: u64) {
    let lba = Lba(at / 512);
    let sector = volume.read(Extent { lba, blocks: 1 }).await.expect("read");
    let mut sector = sector.into_bytes().to_vec();
    sector[(at % 512) as usize] ^= 4;
    volume.write(lba, sector.into(), Durability::Stable).await.expect("written");
}

#[test]
fn a_flipped_bit_in_a_page_of_the_tables_is_found_or_has_no_effect_on_rows() {
    run(async {
        let sample = sample().await;
        let rows = all_rows(&sample.volume).await;
        let all = all_bytes(&sample.volume).await;
        let tables = on_thread(&sample.volume, |_, _, layout| Ok(layout.tables())).await;
        let is_used = |page: &u64| {
            let start = *page as usize;
            all[start..start + 4096].iter().any(|byte| *byte != 0)
        };
        let mut found = 0;
        for page in tables.expect("read").step_by(4096).filter(is_used) {
            for at in [page + 2, page + 100, page + 4000] {
                let volume = copy(&sample.volume).await;
                flip_bit(&volume, at).await;
                match examine(&volume).await {
                    Ok(Some(report)) if report.is_sound() => {
                        let is_equal = all_rows(&volume).await == rows;
                        assert!(is_equal, "the bit at {at} changes rows");
                    }
                    _ => found += 1,
                }
            }
        }
        assert!(found > 5, "{found} flipped bits were found");
    });
}
