//! A host with a program like PostMark: it creates, reads, appends to and deletes small files.

use std::{sync::Arc, time::Duration};

use sim::Rng;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use volume::{Durability, Extent, Lba, Stack};

/// Size of the working set in bytes.
pub const SET_BYTES: u64 = 500 << 20;
pub const SET_BLOCKS: u64 = SET_BYTES / 512;

/// Number of blocks of a file of 8 KiB.
const FILE_BLOCKS: u64 = 16;
/// Number of files that stand for inodes and directories: the first two per cent.
const HOT_FILES: u64 = FILES / 50;
const FILES: u64 = SET_BLOCKS / FILE_BLOCKS;

/// Time that the program itself needs for a transaction.
const THOUGHT: Duration = Duration::from_millis(1);

/// The number of transactions before the measurement, which bring the caches into their usual state. As many
/// transactions ([`COUNTED`]) are then measured.
const BEFORE: u32 = 2000;
const COUNTED: u32 = 2000;

/// The behaviour of a host's file system buffers.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Percentage of reads that the buffers do not hold.
    misses: u32,
    /// Maximum number of writes in flight before the program has to wait.
    writes: u32,
}

impl Host {
    /// Returns a host like FreeBSD with Soft Updates: recent data is in memory and is written later, with several
    /// writes in flight.
    pub fn with_large_buffers() -> Self {
        Self { misses: 5, writes: 4 }
    }

    /// Returns a host like Windows NT, which keeps hardly any data in memory.
    pub fn with_small_buffers() -> Self {
        Self { misses: 100, writes: 4 }
    }

    pub async fn transactions_per_second(self, stack: &Stack) -> f64 {
        let mut program = Program {
            host: self,
            stack: Arc::clone(stack),
            rng: Rng::new(7),
            room: Arc::new(Semaphore::new(self.writes as usize)),
            writes: JoinSet::new(),
        };
        // Read the whole working set once, so that each cache holds as much of it as it can.
        for start in (0..SET_BLOCKS).step_by(2048) {
            let blocks = (SET_BLOCKS - start).min(2048) as u32;
            stack.read(Extent { lba: Lba(start), blocks }).await.expect("it reads");
        }
        for _ in 0..BEFORE {
            program.transaction().await;
        }
        let begun = Instant::now();
        for _ in 0..COUNTED {
            program.transaction().await;
        }
        f64::from(COUNTED) / begun.elapsed().as_secs_f64()
    }
}

struct Program {
    host: Host,
    stack: Stack,
    rng: Rng,
    room: Arc<Semaphore>,
    writes: JoinSet<()>,
}

impl Program {
    /// Reads a file or appends to one, and creates or deletes one in every second transaction.
    async fn transaction(&mut self) {
        sleep(THOUGHT).await;
        let file = self.rng.within(HOT_FILES..FILES);
        if self.rng.chance(50) {
            self.read(file).await;
        } else {
            self.write(file).await;
        }
        if self.rng.chance(50) {
            let made = self.rng.within(HOT_FILES..FILES);
            self.write(made).await;
        }
        let inode = self.rng.below(HOT_FILES);
        self.write(inode).await;
    }

    async fn read(&mut self, file: u64) {
        if self.rng.chance(self.host.misses) {
            let extent = Extent { lba: Lba(file * FILE_BLOCKS), blocks: FILE_BLOCKS as u32 };
            self.stack.read(extent).await.expect("it reads");
        }
    }

    /// Starts a write as soon as there is room in the buffers, and returns without waiting for its
    /// end.
    async fn write(&mut self, file: u64) {
        let room = Arc::clone(&self.room).acquire_owned().await.expect("never closed");
        let stack = Arc::clone(&self.stack);
        while self.writes.try_join_next().is_some() {}
        self.writes.spawn(async move {
            let data = vec![file as u8; FILE_BLOCKS as usize * 512].into();
            let lba = Lba(file * FILE_BLOCKS);
            stack.write(lba, data, Durability::Volatile).await.expect("it writes");
            drop(room);
        });
    }
}
