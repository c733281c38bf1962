//! Compares every bottom volume with a plain array of bytes. The calls are random; some run
//! concurrently, and some are dropped.

mod support;

use std::{future::Future, ops::Range, path::Path, sync::Arc, task::Poll};

use proptest::prelude::*;
use volume::{
    CheckedVolume, Data, Durability, EngineKind, Extent, FileVolume, FileVolumeOptions, Geometry,
    Lba, MemVolume, Stack,
};

const BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Read(Range<u64>),
    Write(Range<u64>, u8, Durability),
    Discard(Range<u64>),
    Flush,
    /// A write whose future is dropped after this number of polls. After that each block must have its old or its new
    /// content.
    Abandon(Range<u64>, u8, usize),
    /// Concurrent writes of blocks that do not overlap.
    Together(Range<u64>, u8),
}

fn steps(blocks: u64) -> impl Strategy<Value = Vec<Step>> {
    let range = (0..blocks, prop_oneof![1..4_u64, 1..70_u64])
        .prop_map(move |(start, length)| start..(start + length).min(blocks));
    let durability = prop_oneof![Just(Durability::Volatile), Just(Durability::Stable)];
    let step = prop_oneof![
        4 => range.clone().prop_map(Step::Read),
        6 => (range.clone(), 1..=255_u8, durability).prop_map(|(r, b, d)| Step::Write(r, b, d)),
        2 => range.clone().prop_map(Step::Discard),
        1 => Just(Step::Flush),
        2 => (range.clone(), 1..=255_u8, 1..3_usize).prop_map(|(r, b, n)| Step::Abandon(r, b, n)),
        1 => (range, 1..=255_u8).prop_map(|(r, b)| Step::Together(r, b)),
    ];
    prop::collection::vec(step, 1..60)
}

/// Returns data for the blocks of `range`, each block different, in pieces of odd lengths.
fn data(range: &Range<u64>, byte: u8, block_size: u64) -> Data {
    let bytes: Vec<u8> = range
        .clone()
        .flat_map(|block| {
            (0..block_size).map(move |i| byte ^ (block as u8).rotate_left(3) ^ (i / 64) as u8)
        })
        .collect();
    let whole = Data::from(bytes);
    let cut = whole.len() * usize::from(byte) / 256;
    let mut pieces = whole.slice(0, cut);
    pieces.append(whole.slice(cut, whole.len() - cut));
    pieces
}

fn extent(range: &Range<u64>) -> Extent {
    Extent { lba: Lba(range.start), blocks: (range.end - range.start) as u32 }
}

async fn run(volume: Stack, steps: Vec<Step>) {
    let size = u64::from(volume.geometry().block_size);
    let mut truth = vec![0; BYTES as usize];
    let bytes = |r: &Range<u64>| (r.start * size) as usize..(r.end * size) as usize;
    for step in steps {
        match step {
            Step::Read(range) => {
                let read = volume.read(extent(&range)).await.expect("read").into_bytes();
                assert!(read == truth[bytes(&range)], "blocks {range:?} differ");
            }
            Step::Write(range, byte, durability) => {
                let data = data(&range, byte, size);
                volume.write(Lba(range.start), data.clone(), durability).await.expect("written");
                data.copy_to_slice(&mut truth[bytes(&range)]);
            }
            Step::Discard(range) => {
                volume.discard(extent(&range)).await.expect("discarded");
                truth[bytes(&range)].fill(0);
            }
            Step::Flush => volume.flush().await.expect("flushed"),
            Step::Abandon(range, byte, polls) => {
                let data = data(&range, byte, size);
                abandon(&volume, &range, data.clone(), polls).await;
                // Each block must have its old or its new content, which must not change after this read.
                let read = volume.read(extent(&range)).await.expect("read").into_bytes();
                let (old, new) = (&truth[bytes(&range)], data.into_bytes());
                for at in (0..read.len()).step_by(size as usize) {
                    let block = &read[at..at + size as usize];
                    let one_of = [&old[at..at + size as usize], &new[at..at + size as usize]];
                    assert!(one_of.contains(&block), "block {} of {range:?}", at as u64 / size);
                }
                truth[bytes(&range)].copy_from_slice(&read);
            }
            Step::Together(range, byte) => {
                let mut writes: Vec<_> = range
                    .clone()
                    .map(|block| {
                        let data = data(&(block..block + 1), byte, size);
                        data.copy_to_slice(&mut truth[bytes(&(block..block + 1))]);
                        volume.write(Lba(block), data, Durability::Volatile)
                    })
                    .collect();
                std::future::poll_fn(|context| {
                    writes.retain_mut(|write| match std::pin::Pin::new(write).poll(context) {
                        Poll::Ready(result) => {
                            result.expect("written");
                            false
                        }
                        Poll::Pending => true,
                    });
                    if writes.is_empty() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
        }
    }
    let all = Extent { lba: Lba(0), blocks: (BYTES / size) as u32 };
    assert!(volume.read(all).await.expect("read").into_bytes() == truth, "at the end");
}

async fn abandon(volume: &Stack, range: &Range<u64>, data: Data, polls: usize) {
    let mut write = volume.write(Lba(range.start), data, Durability::Stable);
    for _ in 0..polls {
        let done = std::future::poll_fn(|context| {
            Poll::Ready(std::pin::Pin::new(&mut write).poll(context))
        });
        if done.await.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn check(block_size: u32, cases: u32, open: impl Fn(&Path) -> Stack) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let directory = tempfile::tempdir().expect("a directory");
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let result = proptest::test_runner::TestRunner::new(config).run(
        &steps(BYTES / u64::from(block_size)),
        |steps| {
            let path = directory.path().join("volume");
            let _ = std::fs::remove_file(&path);
            let volume: Stack = Arc::new(CheckedVolume::new(open(&path)));
            let run: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(run(volume, steps));
            runtime.block_on(async { tokio::spawn(run).await.expect("as the model says") });
            Ok(())
        },
    );
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

fn check_file(engine: EngineKind, direct: bool, block_size: u32) {
    if !support::engines().contains(&engine) {
        return;
    }
    check(block_size, 24, |path| {
        let options = FileVolumeOptions {
            block_size,
            create: Some(BYTES),
            direct,
            engine,
            ..FileVolumeOptions::new(path)
        };
        let volume = FileVolume::open(&options).expect("opened");
        assert_eq!(volume.engine(), engine);
        Arc::new(volume)
    });
}

#[test]
fn a_volume_in_memory_is_an_array_of_blocks() {
    for block_size in [512, 4096] {
        let blocks = BYTES / u64::from(block_size);
        let geometry = Geometry { block_size, ..Geometry::with_blocks(blocks) };
        check(block_size, 64, |_| Arc::new(MemVolume::new(geometry)));
    }
}

#[test]
fn a_file_by_uring_is_an_array_of_blocks() {
    check_file(EngineKind::Uring, false, 512);
    check_file(EngineKind::Uring, false, 4096);
}

#[test]
fn a_direct_file_by_uring_is_an_array_of_blocks() {
    check_file(EngineKind::Uring, true, 512);
    check_file(EngineKind::Uring, true, 4096);
}

#[test]
fn a_file_by_threads_is_an_array_of_blocks() {
    check_file(EngineKind::Psync, false, 512);
    check_file(EngineKind::Psync, false, 4096);
}

#[test]
fn a_direct_file_by_threads_is_an_array_of_blocks() {
    check_file(EngineKind::Psync, true, 512);
    check_file(EngineKind::Psync, true, 4096);
}
