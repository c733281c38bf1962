//! Tests of volumes in files, beyond the behaviour of an array of blocks.
//!
//! They need a temporary directory on a file system with holes and direct I/O (`TMPDIR` selects
//! another one). If the kernel refuses io_uring, only the other engine is tested.

mod support;

use std::{
    future::poll_fn,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use support::{engines, refuse_uring, uring_is_there};
use tempfile::TempDir;
use volume::{
    Data, Durability, EngineKind, Error, Extent, FileVolume, FileVolumeOpenError,
    FileVolumeOptions, Io, Lba, Volume,
};

const MIB: u64 = 1 << 20;

struct Place {
    _directory: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("volume");
        Self { _directory: directory, path }
    }

    fn options(&self) -> FileVolumeOptions {
        FileVolumeOptions { create: Some(4 * MIB), ..FileVolumeOptions::new(&self.path) }
    }

    fn open(&self) -> FileVolume {
        FileVolume::open(&self.options()).expect("opened")
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn run<T>(io: Io<'_, T>) -> Result<T, Error> {
    runtime().block_on(io)
}

fn once<T>(io: &mut Io<'_, T>) -> Poll<Result<T, Error>> {
    Pin::new(io).poll(&mut Context::from_waker(Waker::noop()))
}

fn extent(lba: u64, blocks: u32) -> Extent {
    Extent { lba: Lba(lba), blocks }
}

fn fill(volume: &FileVolume, lba: u64, byte: u8, bytes: usize) {
    let data = Data::from(vec![byte; bytes]);
    run(volume.write(Lba(lba), data, Durability::Stable)).expect("written");
}

#[test]
fn a_new_file_is_sparse_and_keeps_written_data() {
    let place = Place::new();
    let volume = place.open();
    assert_eq!(volume.geometry().bytes(), 4 * MIB);
    assert!(volume.geometry().thin);
    assert!(volume.allocated_bytes().expect("known") < MIB);
    fill(&volume, 9, 7, 1024);
    drop(volume);
    let again = FileVolume::open(&FileVolumeOptions::new(&place.path)).expect("opened");
    assert_eq!(again.geometry().blocks, 8192);
    let read = run(again.read(extent(8, 4))).expect("read").into_bytes();
    assert_eq!(read, [[0; 512], [7; 512], [7; 512], [0; 512]].concat());
}

#[test]
fn a_discard_frees_space() {
    for engine in engines() {
        for direct in [false, true] {
            let place = Place::new();
            let options = FileVolumeOptions { engine, direct, ..place.options() };
            let volume = FileVolume::open(&options).expect("opened");
            fill(&volume, 0, 7, 2 << 20);
            let before = volume.allocated_bytes().expect("known");
            run(volume.discard(extent(1024, 2048))).expect("discarded");
            run(volume.flush()).expect("flushed");
            let after = volume.allocated_bytes().expect("known");
            assert!(before >= after + MIB, "{engine:?}: {before} {after}");
            let read = run(volume.read(extent(1023, 2))).expect("read").into_bytes();
            assert_eq!(read, [[7; 512], [0; 512]].concat());
        }
    }
}

#[test]
fn a_preallocated_file_stays_preallocated() {
    let place = Place::new();
    let options = FileVolumeOptions { preallocate: true, direct: true, ..place.options() };
    let mut reported = 0;
    let volume = FileVolume::open_with_progress(&options, &mut |done, all| {
        assert_eq!(all, 4 * MIB);
        reported = done;
    });
    let volume = volume.expect("opened");
    assert_eq!(reported, 4 * MIB);
    assert!(!volume.geometry().thin);
    fill(&volume, 0, 7, 3 << 20);
    run(volume.discard(extent(1, 5000))).expect("discarded");
    run(volume.flush()).expect("flushed");
    assert!(volume.allocated_bytes().expect("known") >= 4 * MIB);
    let read = run(volume.read(extent(0, 5002))).expect("read").into_bytes();
    assert!(read[..512].iter().chain(&read[5001 * 512..]).all(|&byte| byte == 7));
    assert!(read[512..5001 * 512].iter().all(|&byte| byte == 0));
}

#[test]
fn the_file_has_one_writer_or_several_readers() {
    let place = Place::new();
    let volume = place.open();
    let reader = FileVolumeOptions { read_only: true, ..place.options() };
    assert!(matches!(FileVolume::open(&place.options()), Err(FileVolumeOpenError::InUse(_))));
    assert!(matches!(FileVolume::open(&reader), Err(FileVolumeOpenError::InUse(_))));
    drop(volume);
    let _one = FileVolume::open(&reader).expect("opened");
    let _two = FileVolume::open(&reader).expect("opened");
    assert!(matches!(FileVolume::open(&place.options()), Err(FileVolumeOpenError::InUse(_))));
}

#[test]
fn a_file_is_unlocked_as_soon_as_its_volume_is_dropped_with_writes_in_flight() {
    for engine in engines() {
        let place = Place::new();
        let options = FileVolumeOptions { engine, direct: true, ..place.options() };
        for _ in 0..20 {
            let volume = FileVolume::open(&options).expect("free");
            runtime().block_on(poll_fn(|context| {
                for lba in 0..64 {
                    let data = Data::from(vec![1; 65536]);
                    let mut write = volume.write(Lba(lba * 100), data, Durability::Stable);
                    let _ = Pin::new(&mut write).poll(context);
                }
                Poll::Ready(())
            }));
        }
    }
}

#[test]
fn a_read_only_volume_changes_nothing() {
    let place = Place::new();
    let reader = FileVolumeOptions { read_only: true, ..place.options() };
    assert!(matches!(FileVolume::open(&reader), Err(FileVolumeOpenError::Io { .. })));
    assert!(!place.path.exists());
    fill(&place.open(), 0, 7, 512);
    let volume = FileVolume::open(&reader).expect("opened");
    let write = run(volume.write(Lba(0), Data::zeros(512), Durability::Volatile));
    assert!(matches!(write, Err(Error::ReadOnly)));
    assert!(matches!(run(volume.discard(extent(0, 1))), Err(Error::ReadOnly)));
    assert_eq!(run(volume.read(extent(0, 1))).expect("read").into_bytes(), [7; 512].as_slice());
    run(volume.flush()).expect("nothing to do");
}

#[test]
fn calls_to_a_truncated_file_are_device_failures() {
    for engine in engines() {
        for direct in [false, true] {
            let place = Place::new();
            let options = FileVolumeOptions { engine, direct, ..place.options() };
            let volume = FileVolume::open(&options).expect("opened");
            let file = std::fs::File::options().write(true).open(&place.path).expect("opened");
            file.set_len(MIB).expect("cut");
            let across = run(volume.read(extent(2047, 2)));
            assert!(matches!(across, Err(Error::Device(_))), "{across:?}");
            assert!(run(volume.read(extent(2047, 1))).is_ok());
        }
    }
}

#[test]
fn a_file_that_cannot_be_a_volume_is_refused() {
    let place = Place::new();
    let open =
        |options: FileVolumeOptions| FileVolume::open(&options).map(drop).expect_err("refused");
    assert!(matches!(open(FileVolumeOptions::new(&place.path)), FileVolumeOpenError::Io { .. }));
    assert!(matches!(
        open(FileVolumeOptions { block_size: 1024, ..place.options() }),
        FileVolumeOpenError::BlockSize(_)
    ));
    assert!(matches!(
        open(FileVolumeOptions { create: Some(1000), ..place.options() }),
        FileVolumeOpenError::BlockSize(_)
    ));
    std::fs::write(&place.path, [0; 100]).expect("written");
    assert!(matches!(open(FileVolumeOptions::new(&place.path)), FileVolumeOpenError::Empty(_)));
    let message = open(place.options()).to_string();
    assert!(message.ends_with("has 100 bytes, not 4194304"), "{message}");
    let directory = place.path.parent().expect("it has one").to_path_buf();
    let read_only = FileVolumeOptions { read_only: true, ..FileVolumeOptions::new(directory) };
    assert!(matches!(open(read_only), FileVolumeOpenError::NoStorage(_)));
}

#[test]
fn a_read_from_the_page_cache_is_ready_at_the_first_poll() {
    for engine in engines() {
        let place = Place::new();
        let volume =
            FileVolume::open(&FileVolumeOptions { engine, ..place.options() }).expect("opened");
        fill(&volume, 0, 7, 65536);
        assert!(once(&mut volume.read(extent(3, 100))).is_ready());
    }
}

#[test]
fn uring_works_outside_of_a_runtime_and_in_one_after_the_other() {
    if !uring_is_there() {
        return;
    }
    let place = Place::new();
    let options = FileVolumeOptions { engine: EngineKind::Uring, direct: true, ..place.options() };
    let volume = FileVolume::open(&options).expect("opened");
    assert_eq!(volume.engine(), EngineKind::Uring);
    let write = |byte| volume.write(Lba(0), vec![byte; 4096].into(), Durability::Stable);
    assert!(matches!(once(&mut write(1)), Poll::Ready(Ok(()))));
    for byte in 2..5 {
        // End a runtime while a write is in progress, which also ends its reaper, the task that collects the write's
        // completion.
        runtime().block_on(poll_fn(|context| {
            let _ = Pin::new(&mut write(byte)).poll(context);
            Poll::Ready(())
        }));
        let read = run(volume.read(extent(0, 8))).expect("read").into_bytes();
        assert!([byte, byte - 1].iter().any(|&b| read == vec![b; 4096]));
        run(write(byte)).expect("written");
    }
}

#[test]
fn an_idle_runtime_does_not_delay_calls_of_another() {
    for engine in engines() {
        let place = Place::new();
        let options = FileVolumeOptions { engine, direct: true, ..place.options() };
        let volume = FileVolume::open(&options).expect("opened");
        let write = || volume.write(Lba(0), vec![7; 4096].into(), Durability::Stable);
        let (still, running) = (runtime(), runtime());
        still.block_on(write()).expect("written");
        running.block_on(write()).expect("written");
        still.block_on(write()).expect("written");
    }
}

#[test]
fn an_abandoned_write_never_undoes_a_later_one() {
    for engine in engines() {
        let place = Place::new();
        let options = FileVolumeOptions { engine, direct: true, ..place.options() };
        let volume = FileVolume::open(&options).expect("opened");
        runtime().block_on(async {
            for round in 0..200_u64 {
                let lba = Lba(round % 7);
                let data = Data::from(vec![0xaa; 65536]);
                let mut abandoned = volume.write(lba, data, Durability::Stable);
                poll_fn(|context| Poll::Ready(Pin::new(&mut abandoned).poll(context).is_ready()))
                    .await;
                drop(abandoned);
                let byte = round as u8;
                let later = volume.write(lba, vec![byte; 4096].into(), Durability::Volatile);
                later.await.expect("written");
                volume.flush().await.expect("flushed");
                let read = volume.read(Extent { lba, blocks: 8 }).await.expect("read");
                assert_eq!(read.into_bytes(), vec![byte; 4096], "{engine:?}, round {round}");
            }
        });
    }
}

#[test]
fn more_calls_than_the_queue_has_entries_all_finish() {
    for engine in engines() {
        let place = Place::new();
        let options = FileVolumeOptions { engine, direct: true, ..place.options() };
        let volume = Arc::new(FileVolume::open(&options).expect("opened"));
        runtime().block_on(async {
            let drivers: Vec<_> = (0..1000_u64)
                .map(|lba| {
                    let volume = Arc::clone(&volume);
                    tokio::spawn(async move {
                        let data = Data::from(vec![lba as u8; 512]);
                        volume.write(Lba(lba), data, Durability::Volatile).await
                    })
                })
                .collect();
            for driver in drivers {
                driver.await.expect("finished").expect("written");
            }
            let read = volume.read(extent(0, 1000)).await.expect("read").into_bytes();
            let expected: Vec<u8> = (0..1000).flat_map(|lba: u32| [lba as u8; 512]).collect();
            assert!(read == expected);
        });
    }
}

#[test]
fn concurrent_flushes_all_finish() {
    let place = Place::new();
    let volume = Arc::new(place.open());
    runtime().block_on(async {
        fill_async(&volume).await;
        let drivers: Vec<_> = (0..50)
            .map(|_| {
                let volume = Arc::clone(&volume);
                tokio::spawn(async move { volume.flush().await })
            })
            .collect();
        for driver in drivers {
            driver.await.expect("finished").expect("flushed");
        }
    });
}

async fn fill_async(volume: &FileVolume) {
    let data = Data::from(vec![1; 65536]);
    volume.write(Lba(0), data, Durability::Volatile).await.expect("written");
}

#[test]
fn a_write_in_more_pieces_than_the_kernel_takes() {
    for direct in [false, true] {
        let place = Place::new();
        let volume =
            FileVolume::open(&FileVolumeOptions { direct, ..place.options() }).expect("opened");
        let bytes: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
        let whole = Bytes::from(bytes.clone());
        let pieces: Data =
            (0..bytes.len() / 256).map(|i| whole.slice(i * 256..i * 256 + 256)).collect();
        for durability in [Durability::Volatile, Durability::Stable] {
            run(volume.write(Lba(3), pieces.clone(), durability)).expect("written");
            let read = run(volume.read(extent(3, 2048))).expect("read").into_bytes();
            assert!(read == bytes);
            run(volume.discard(extent(0, 8192))).expect("discarded");
        }
    }
}

#[test]
fn a_file_in_memory_is_served_at_the_first_poll() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        panic!("this test needs a tmpfs at /dev/shm");
    };
    let options = FileVolumeOptions {
        create: Some(MIB),
        direct: true,
        engine: EngineKind::Psync,
        ..FileVolumeOptions::new(directory.path().join("volume"))
    };
    let volume = FileVolume::open(&options).expect("opened");
    assert!(!volume.is_direct(), "there is no page cache to go past");
    let data = Data::from(vec![7; 4096]);
    let write = once(&mut volume.write(Lba(1), data.clone(), Durability::Stable));
    assert!(matches!(write, Poll::Ready(Ok(()))));
    let Poll::Ready(Ok(read)) = once(&mut volume.read(extent(1, 8))) else { panic!("waits") };
    assert_eq!(read, data);
}

#[test]
fn where_io_uring_is_refused_threads_do_the_work() {
    let place = Place::new();
    // Install the filter on a thread of its own: it applies to that thread and the threads that it starts, and cannot
    // be removed.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse_uring();
            let uring = FileVolumeOptions { engine: EngineKind::Uring, ..place.options() };
            let Err(FileVolumeOpenError::Io { source, .. }) = FileVolume::open(&uring) else {
                panic!("io_uring was not refused");
            };
            assert_eq!(source.raw_os_error(), Some(libc::EPERM));
            for direct in [false, true] {
                let options = FileVolumeOptions { direct, ..place.options() };
                let volume = FileVolume::open(&options).expect("opened");
                assert_eq!(volume.engine(), EngineKind::Psync);
                fill(&volume, 3, 7, 65536);
                run(volume.flush()).expect("flushed");
                run(volume.discard(extent(11, 8))).expect("discarded");
                let read = run(volume.read(extent(3, 128))).expect("read").into_bytes();
                let expected = [vec![7; 4096], vec![0; 4096], vec![7; 57344]].concat();
                assert!(read == expected);
            }
        });
    });
}

#[test]
fn a_file_grows_while_it_is_open_and_never_shrinks() {
    for preallocate in [false, true] {
        let place = Place::new();
        let options = FileVolumeOptions { preallocate, ..place.options() };
        let volume = FileVolume::open(&options).expect("opened");
        let last = extent(8192 - 1, 1);
        run(volume.write(last.lba, Data::from(vec![7; 512]), Durability::Volatile))
            .expect("written");
        assert!(run(volume.read(extent(8192, 1))).is_err());
        assert_eq!(volume.grow(Some(6 * MIB)).expect("grown"), 6 * MIB);
        assert_eq!(volume.geometry().bytes(), 6 * MIB);
        assert_eq!(run(volume.read(last)).expect("read").into_bytes(), vec![7; 512]);
        let new = extent(8192, 1);
        assert_eq!(run(volume.read(new)).expect("read").into_bytes(), vec![0; 512]);
        run(volume.write(new.lba, Data::from(vec![9; 512]), Durability::Stable)).expect("written");
        for wrong in [5 * MIB, 6 * MIB + 1] {
            let error = volume.grow(Some(wrong)).expect_err("refused");
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
        assert_eq!(volume.geometry().bytes(), 6 * MIB);
        drop(volume);
        let again = FileVolumeOptions { create: Some(6 * MIB), ..options };
        let volume = FileVolume::open(&again).expect("opened");
        assert_eq!(run(volume.read(new)).expect("read").into_bytes(), vec![9; 512]);
        if preallocate {
            assert!(volume.allocated_bytes().expect("known") >= 6 * MIB);
        }
        // Another process enlarges the file, as an administrator may enlarge a device.
        std::fs::File::options()
            .write(true)
            .open(&place.path)
            .expect("opened")
            .set_len(7 * MIB)
            .expect("sized");
        assert_eq!(volume.grow(None).expect("grown"), 7 * MIB);
        assert_eq!(volume.geometry().bytes(), 7 * MIB);
    }
}

/// The process that created the file may have been killed before it made the name stable, so every
/// later opening syncs the folder again.
#[test]
fn every_opening_for_writing_syncs_the_folder_of_the_file() {
    let place = Place::new();
    let folder = place.path.parent().expect("it lies in one");
    for times in ["made", "opened again"] {
        let (openings, volume) = sim::openings_of(folder, || place.open());
        assert_eq!(openings, 1, "{times}");
        drop(volume);
    }
    let reading = FileVolumeOptions { read_only: true, create: None, ..place.options() };
    assert_eq!(sim::openings_of(folder, || drop(FileVolume::open(&reading).expect("opened"))).0, 0);
}

/// The path is a symbolic link in another folder than the file. The folder with the file's name
/// must be synced, and not the folder with the link.
#[test]
fn the_folder_that_is_synced_is_that_of_the_file_and_not_that_of_a_link_to_it() {
    let (place, links) = (Place::new(), tempfile::tempdir().expect("a directory"));
    let link = links.path().join("link");
    std::os::unix::fs::symlink(&place.path, &link).expect("linked");
    let options = FileVolumeOptions { path: link, ..place.options() };
    let folder = place.path.parent().expect("it lies in one");
    let (openings, _volume) =
        sim::openings_of(folder, || FileVolume::open(&options).expect("opened"));
    assert_eq!(openings, 1);
}
