//! Compares the simulated disk with a plain record of the values that each block may have: random scripts, yields,
//! and crashes at every point.

use std::{
    collections::BTreeSet,
    pin::pin,
    task::{Context, Poll, Waker},
};

use sim::{CrashVolume, FlushGuarantee, Rng, StableDiskImage};
use volume::{Data, Durability, Error, Extent, Geometry, Lba, Volume};

/// The values that a block may have after a crash: the last stable value and all later ones. The value of a block is
/// its first byte.
struct Block {
    now: u8,
    possible: BTreeSet<u8>,
}

struct Truth(Vec<Block>);

impl Truth {
    fn of(image: Option<&StableDiskImage>) -> Self {
        let byte = |block: u64| image.map_or(0, |i| i.read(block * 512..block * 512 + 1)[0]);
        let block = |n| Block { now: byte(n), possible: BTreeSet::from([byte(n)]) };
        Self((0..BLOCKS).map(block).collect())
    }

    fn write(&mut self, extent: Extent, byte: u8) {
        for block in &mut self.0[extent.lba.0 as usize..extent.end().0 as usize] {
            block.now = byte;
            block.possible.insert(byte);
        }
    }

    fn settle(&mut self, extent: Extent) {
        for block in &mut self.0[extent.lba.0 as usize..extent.end().0 as usize] {
            block.possible = BTreeSet::from([block.now]);
        }
    }

    /// Returns the number of the first block whose content is not allowed after the crash.
    fn broken(&self, image: &StableDiskImage) -> Option<usize> {
        self.0.iter().enumerate().position(|(n, block)| {
            let bytes = image.read(n as u64 * 512..(n as u64 + 1) * 512);
            !block.possible.contains(&bytes[0]) || bytes.iter().any(|byte| *byte != bytes[0])
        })
    }
}

async fn script(disk: &CrashVolume, truth: &mut Truth, rng: &mut Rng) -> Result<(), Error> {
    for step in 1..=40 {
        let lba = rng.below(BLOCKS);
        let blocks = rng.within(1..9).min(BLOCKS - lba) as u32;
        let extent = Extent { lba: Lba(lba), blocks };
        match rng.below(8) {
            0..=3 => {
                let data = Data::from(vec![step; blocks as usize * 512]);
                let stable = rng.chance(30);
                let durability = if stable { Durability::Stable } else { Durability::Volatile };
                truth.write(extent, step);
                disk.write(extent.lba, data, durability).await?;
                if stable {
                    truth.settle(extent);
                }
            }
            4 => {
                truth.write(extent, 0);
                disk.discard(extent).await?;
            }
            5 => {
                disk.flush().await?;
                truth.settle(Extent { lba: Lba(0), blocks: BLOCKS as u32 });
            }
            _ => {
                let read = disk.read(extent).await?.into_bytes();
                for (n, bytes) in read.chunks(512).enumerate() {
                    assert_eq!(bytes, [truth.0[lba as usize + n].now; 512]);
                }
            }
        }
    }
    Ok(())
}

/// Runs a script on a disk up to the crash. Returns the number of operations of the script, and true if an outcome of
/// the crash violates a guarantee.
fn crash(seed: u64, after: u64, sync: FlushGuarantee) -> (u64, bool) {
    let mut rng = Rng::new(seed);
    let mut image = None;
    let mut operations = 0;
    // The second run starts from the content that the crash of the first one has left.
    for life in 0..2 {
        let mut truth = Truth::of(image.as_ref());
        let disk = match image.take() {
            None => CrashVolume::new(Geometry::with_blocks(BLOCKS), seed),
            Some(image) => CrashVolume::reopen(image, seed + life),
        };
        let disk = disk.with_sync(sync).with_yields(30);
        disk.crash_after(after);
        let done = run(script(&disk, &mut truth, &mut rng));
        assert_eq!(done.is_err(), disk.power().is_off());
        operations = disk.power().operations();
        for _ in 0..4 {
            let left = disk.crash(&mut rng);
            if truth.broken(&left).is_some() {
                return (operations, true);
            }
            image = Some(left);
        }
    }
    (operations, false)
}

#[test]
fn no_crash_loses_stable_or_flushed_writes() {
    for seed in 0..SEEDS {
        let (operations, broken) = crash(seed, u64::MAX, FlushGuarantee::Honoured);
        assert!(!broken, "seed {seed}");
        for after in 0..operations {
            assert!(
                !crash(seed, after, FlushGuarantee::Honoured).1,
                "seed {seed}, crash after {after}"
            );
        }
    }
}

#[test]
fn a_disk_that_ignores_flushes_is_detected() {
    let found =
        (0..SEEDS).filter(|&seed| (0..40).any(|n| crash(seed, n, FlushGuarantee::Ignored).1));
    assert_eq!(found.count() as u64, SEEDS);
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        // Poll in a loop, without a waker: a call of the disk yields a few times at most.
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

const BLOCKS: u64 = 32;
const SEEDS: u64 = 30;
