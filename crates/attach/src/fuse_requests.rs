//! Converts the calls on a file to calls on a volume: rounds each call to whole blocks, limits the number of concurrent
//! calls, and repeats a call while the volume is busy.

use std::{sync::Arc, time::Duration};

use libc::c_int;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep},
};
use volume::{Data, Durability, Error, Extent, Geometry, Io, Lba, Stack};

use crate::lost_writes::{Losses, LostWrites};

/// Maximum number of concurrent requests: the number that a loop device has in flight (`hw_queue_depth`, 128
/// unless the module is configured otherwise).
pub(crate) const SIDE_BY_SIDE: u16 = 128;

/// Maximum length of a request in bytes: the kernel's limit, unless an administrator allows more
/// (`fs.fuse.max_pages_limit`, 256 pages), and one burst of the initiator.
pub(crate) const REQUEST_BYTES: u32 = 1 << 20;

/// Pause before a busy volume is called again. A volume is busy, for example, while its log is full; the log has room
/// again after a destage round.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Requests {
    volume: Stack,
    patience: Duration,
    /// A permit for each request in progress. Closed when no more requests are accepted.
    places: Semaphore,
    /// The kinds of calls that fail at present. Reads may succeed while writes fail.
    failing: Mutex<Failing>,
    losses: Losses,
}

/// An error number (errno) for a request.
pub(crate) type FuseErrno = c_int;

impl Requests {
    /// Makes the request handler of a file over `volume`. Calls are repeated for `patience` while the volume
    /// is busy.
    pub(crate) fn new(volume: Stack, patience: Duration) -> Arc<Self> {
        let places = Semaphore::new(SIDE_BY_SIDE.into());
        let failing = Mutex::default();
        Arc::new(Self { volume, patience, places, failing, losses: Losses::default() })
    }

    /// Returns the number of writes and discards that have failed, and the time of the first one; `None` if none has
    /// failed.
    pub(crate) fn lost(&self) -> Option<LostWrites> {
        self.losses.lost()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    /// Reads bytes from the file; fewer than `length` only at its end.
    pub(crate) async fn read(&self, offset: u64, length: u32) -> Result<Data, FuseErrno> {
        let _place = self.place().await?;
        let geometry = self.geometry();
        let length = u64::from(length).min(geometry.bytes().saturating_sub(offset));
        if length == 0 {
            return Ok(Data::new());
        }
        // The kernel normally asks for whole blocks, but need not.
        let block = u64::from(geometry.block_size);
        let (first, end) = (offset / block, (offset + length).div_ceil(block));
        let extent = Extent { lba: Lba(first), blocks: (end - first) as u32 };
        let data = self.call("read", || self.volume.read(extent)).await?;
        Ok(data.slice((offset - first * block) as usize, length as usize))
    }

    /// Writes whole blocks at byte offset `offset` of the file.
    pub(crate) async fn write(&self, offset: u64, data: Data) -> Result<(), FuseErrno> {
        self.change(async {
            let _place = self.place().await?;
            let extent = self.whole(offset, data.len() as u64)?;
            let write = || self.volume.write(extent.lba, data.clone(), Durability::Volatile);
            self.call("write", write).await
        })
        .await
    }

    pub(crate) async fn flush(&self) -> Result<(), FuseErrno> {
        let _place = self.place().await?;
        self.call("flush", || self.volume.flush()).await
    }

    /// Frees the space of whole blocks, which then read as zeros. Fails if the volume is not thin (does not allocate
    /// space on demand). On such a volume a discard would write zeros, and a tool that makes a file system would thus
    /// write zeros to the whole device.
    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), FuseErrno> {
        if !self.geometry().thin {
            return Err(libc::EOPNOTSUPP);
        }
        self.change(async {
            let _place = self.place().await?;
            for (offset, length) in self.pieces(offset, length, MOST_DISCARDED) {
                let extent = self.whole(offset, length)?;
                self.call("discard", || self.volume.discard(extent)).await?;
            }
            Ok(())
        })
        .await
    }

    /// Writes zeros to a range. Unlike a discard, this allocates the blocks.
    pub(crate) async fn zero(&self, offset: u64, length: u64) -> Result<(), FuseErrno> {
        self.change(async {
            let _place = self.place().await?;
            for (offset, length) in self.pieces(offset, length, REQUEST_BYTES.into()) {
                let extent = self.whole(offset, length)?;
                let zeros = || {
                    let data = Data::zeros(length as usize);
                    self.volume.write(extent.lba, data, Durability::Volatile)
                };
                self.call("write", zeros).await?;
            }
            Ok(())
        })
        .await
    }

    /// Performs a write, a discard or a zeroing, and records a failure.
    async fn change(
        &self,
        change: impl Future<Output = Result<(), FuseErrno>>,
    ) -> Result<(), FuseErrno> {
        let done = change.await;
        if done.is_err() {
            self.losses.note();
        }
        done
    }

    /// Refuses new requests, and waits until those in progress have ended.
    pub(crate) async fn close(&self) {
        // `acquire_many` fails only if the semaphore was closed before.
        let all = self.places.acquire_many(SIDE_BY_SIDE.into()).await;
        self.places.close();
        drop(all);
    }

    async fn place(&self) -> Result<SemaphorePermit<'_>, FuseErrno> {
        self.places.acquire().await.map_err(|_| libc::EIO)
    }

    /// Splits a range into parts of at most `most` bytes.
    fn pieces(&self, offset: u64, length: u64, most: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = offset.saturating_add(length).min(self.geometry().bytes());
        let starts = (offset..end).step_by(most as usize);
        starts.map(move |start| (start, most.min(end - start)))
    }

    fn whole(&self, offset: u64, length: u64) -> Result<Extent, FuseErrno> {
        let block = u64::from(self.geometry().block_size);
        let is_whole = offset.is_multiple_of(block) && length.is_multiple_of(block);
        let blocks = u32::try_from(length / block).unwrap_or(0);
        if is_whole && blocks > 0 {
            Ok(Extent { lba: Lba(offset / block), blocks })
        } else {
            Err(libc::EINVAL)
        }
    }

    async fn call<'a, T>(
        &'a self,
        what: &'static str,
        call: impl Fn() -> Io<'a, T>,
    ) -> Result<T, FuseErrno> {
        let begun = Instant::now();
        let result = loop {
            match call().await {
                Err(Error::Busy(_)) if begun.elapsed() < self.patience => sleep(PAUSE).await,
                result => break result,
            }
        };
        let is_new = self.failing.lock().turn(what, result.is_ok(), Instant::now());
        match &result {
            Ok(_) if is_new => tracing::info!(what, "succeeded again: the device works"),
            Err(error) if is_new => {
                tracing::error!(
                    %error, what,
                    remedy = "`forebay status --all` shows the volume and its link; remove the cause, \
                     and if the file system has become read-only, detach it, attach it again, and check \
                     it with fsck",
                    "failed: the device reports an I/O error"
                );
            }
            Err(error) => tracing::debug!(%error, what, "failed"),
            Ok(_) => {}
        }
        result.map_err(|error| errno(&error))
    }
}

/// The kinds of calls (there are four) that fail at present, each with the time of its last failure.
#[derive(Default)]
struct Failing(Vec<(&'static str, Instant)>);

impl Failing {
    /// Notes the result of a call. Returns true if this kind of call has just begun to fail, or works again. A success
    /// counts only if no call of the kind has failed for [`QUIET`]: a volume may fail for some of its blocks only.
    fn turn(&mut self, what: &'static str, is_done: bool, now: Instant) -> bool {
        let at = self.0.iter().position(|(failing, _)| *failing == what);
        match (at, is_done) {
            (None, true) => false,
            (None, false) => {
                self.0.push((what, now));
                true
            }
            (Some(at), false) => {
                self.0[at].1 = now;
                false
            }
            (Some(at), true) => {
                let is_over = now - self.0[at].1 >= QUIET;
                if is_over {
                    self.0.remove(at);
                }
                is_over
            }
        }
    }
}

/// Time after which a kind of call counts as working again: two rounds of the kernel's write-back, which
/// writes dirty pages every 5 s and repeats failed writes.
const QUIET: Duration = Duration::from_secs(10);

/// Maximum number of bytes of one discard: 2 GiB. The number is a multiple of every block size, and the number of
/// blocks is below 2^32.
const MOST_DISCARDED: u64 = 2 << 30;

fn errno(error: &Error) -> FuseErrno {
    match error {
        Error::OutOfRange(_) | Error::TooLong { .. } => libc::EINVAL,
        Error::ReadOnly => libc::EROFS,
        Error::NoSpace => libc::ENOSPC,
        Error::Fenced(_) => libc::EBADE,
        Error::Medium { .. }
        | Error::Busy(_)
        | Error::Away(_)
        | Error::Unreachable(_)
        | Error::Device(_) => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use volume::{FaultCallKind, FaultRule, FaultVolume, MemVolume, Symptom};

    use super::*;

    fn requests(geometry: Geometry) -> Arc<Requests> {
        Requests::new(Arc::new(MemVolume::new(geometry)), Duration::from_secs(1))
    }

    #[tokio::test]
    async fn a_read_may_begin_and_end_anywhere() {
        let requests = requests(Geometry::with_blocks(9));
        let bytes: Vec<u8> = (0..9 * 512).map(|n| (n % 251) as u8).collect();
        requests.write(0, Data::from(bytes.clone())).await.unwrap();
        for (offset, length) in [(0, 4608), (4096, 4096), (700, 100), (511, 2), (4608, 512)] {
            let data = requests.read(offset, length).await.unwrap().into_bytes();
            let end = (offset as usize + length as usize).min(bytes.len());
            assert_eq!(data, bytes[offset as usize..end], "{offset} {length}");
        }
    }

    #[tokio::test]
    async fn parts_of_blocks_are_not_written() {
        let requests = requests(Geometry::with_blocks(8));
        for (offset, length) in [(1, 512), (0, 511), (0, 0)] {
            let data = Data::from(vec![1; length]);
            assert_eq!(requests.write(offset, data).await, Err(libc::EINVAL));
        }
        assert!(requests.write(8 * 512, Data::from(vec![1; 512])).await.is_err());
    }

    #[tokio::test]
    async fn discarded_and_zeroed_blocks_read_as_zeros() {
        let requests = requests(Geometry::with_blocks(8192));
        requests.write(0, Data::from(vec![7; 4 << 20])).await.unwrap();
        requests.discard(512, 3 << 19).await.unwrap();
        requests.zero(2 << 20, 3 << 19).await.unwrap();
        let data = requests.read(0, 4 << 20).await.unwrap().into_bytes();
        let zero =
            |n: usize| (512..512 + (3 << 19)).contains(&n) || (2 << 20..7 << 19).contains(&n);
        assert!(data.iter().enumerate().all(|(n, byte)| *byte == if zero(n) { 0 } else { 7 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_volume_is_asked_again_for_a_while() {
        let volume = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(8))));
        let busy =
            FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::Busy("the log is full")));
        volume.faults().add(busy.times(10));
        let faults = volume.faults().clone();
        let requests = Requests::new(Arc::new(volume), Duration::from_secs(1));
        let block = Data::from(vec![1; 512]);
        requests.write(0, block.clone()).await.unwrap();
        faults.add(FaultRule::always(
            FaultCallKind::Write,
            Symptom::Fails(Error::Busy("the log is full")),
        ));
        let begun = Instant::now();
        assert_eq!(requests.write(0, block).await, Err(libc::EIO));
        assert!(begun.elapsed() >= Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_failed_write_zero_or_discard_is_remembered_as_lost() {
        let volume = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(4096))));
        let faults = volume.faults().clone();
        let requests = Requests::new(Arc::new(volume), Duration::ZERO);
        let block = Data::from(vec![1; 512]);
        requests.write(0, block.clone()).await.unwrap();
        assert_eq!(requests.lost(), None);
        let away = || Symptom::Fails(Error::Unreachable("away".into()));
        let before = std::time::SystemTime::now();
        faults.add(FaultRule::always(FaultCallKind::Read, away()).times(1));
        requests.read(0, 512).await.unwrap_err();
        assert_eq!(requests.lost(), None, "a read loses nothing");
        faults.add(FaultRule::always(FaultCallKind::Write, away()).times(2));
        faults.add(FaultRule::always(FaultCallKind::Discard, away()).times(1));
        requests.write(0, block.clone()).await.unwrap_err();
        requests.zero(0, 512).await.unwrap_err();
        requests.discard(0, 512).await.unwrap_err();
        // After the volume works again, the lost writes must still be on record.
        requests.write(0, block.clone()).await.unwrap();
        requests.flush().await.unwrap();
        let lost = requests.lost().unwrap();
        assert_eq!(lost.writes, 3);
        assert!(before <= lost.since && lost.since <= std::time::SystemTime::now());
        requests.close().await;
        requests.write(0, block).await.unwrap_err();
        assert_eq!(requests.lost(), Some(crate::LostWrites { writes: 4, ..lost }));
    }

    #[test]
    fn repeated_failures_of_one_kind_of_call_are_reported_once_and_their_end_once() {
        let (mut failing, begun) = (Failing::default(), Instant::now());
        let mut turn = |what, is_done, seconds| {
            failing.turn(what, is_done, begun + Duration::from_secs(seconds))
        };
        assert!(turn("write", false, 0));
        for second in 1..60 {
            let told = [turn("read", true, second), turn("write", second % 2 == 0, second)];
            assert_eq!(told, [false, false], "{second}");
        }
        assert!(turn("flush", false, 60), "another kind of call");
        assert!(!turn("write", true, 68));
        assert!(turn("write", true, 69) && !turn("write", true, 70));
        assert!(turn("flush", true, 71) && turn("write", false, 72));
    }

    #[tokio::test]
    async fn refused_discards_lose_nothing() {
        let requests = requests(Geometry { thin: false, ..Geometry::with_blocks(8) });
        assert_eq!(requests.discard(0, 512).await, Err(libc::EOPNOTSUPP));
        assert_eq!(requests.lost(), None);
    }

    #[tokio::test]
    async fn requests_fail_after_the_end() {
        let requests = requests(Geometry::with_blocks(8));
        requests.close().await;
        assert_eq!(requests.write(0, Data::from(vec![1; 512])).await, Err(libc::EIO));
        assert_eq!(requests.flush().await, Err(libc::EIO));
    }
}
