//! The ensemble control block: what the connections of one ensemble share. It lies in a map of the
//! kernel, written by the program, read here through a mapping.

use std::{
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Where things are in a block, in bytes. The window and the threshold are of the whole ensemble, in
/// segments with a fraction of [`FRACTION_BITS`] bits.
pub(crate) mod at {
    /// 8 bytes, signed: for a moment members that leave and cut at the same time can take more than
    /// there is. Who reads it takes the floor then.
    pub const WINDOW: i16 = 0;
    /// 8 bytes.
    pub const THRESHOLD: i16 = 8;
    /// 4 bytes.
    pub const MEMBERS: i16 = 16;
    /// 4 bytes; 1: grows by acknowledgment, not by what was acknowledged.
    pub const PER_ACK: i16 = 20;
    /// 4 bytes, as the kernel keeps it: eighths of a microsecond.
    pub const SRTT: i16 = 24;
    /// 4 bytes: quarters of a microsecond.
    pub const RTTVAR: i16 = 28;
    /// Counters of 8 bytes.
    pub const GROWN: i16 = 32;
    pub const CUTS: i16 = 40;
    pub const FLOORED: i16 = 48;
    pub const LATE_CUTS: i16 = 56;
    pub const UNDONE: i16 = 64;
    pub const TIMEOUTS: i16 = 72;

    // What follows is there where the members share a model of the path. Times are in microseconds, rates in
    // segments a microsecond with 24 bits of fraction. 4 bytes: members with something to send.
    pub const ACTIVE: i16 = 80;
    /// 4 bytes: STARTUP, DRAIN, PROBE_BW, PROBE_RTT.
    pub const MODE: i16 = 84;
    /// 8 bytes, as are all below: the rates of all, each as of its newest acknowledgment.
    pub const RATE: i16 = 88;
    /// Segments in flight of all, each as of its newest acknowledgment. Signed, as the window.
    pub const ALL_IN_FLIGHT: i16 = 96;
    /// How many rounds there were, and when the newest began.
    pub const ROUND: i16 = 104;
    pub const ROUND_BEGAN: i16 = 112;
    /// When a member had less to send than it might; zero: never.
    pub const LIMITED_AT: i16 = 120;
    /// Zero: not known.
    pub const LEAST_RTT: i16 = 128;
    pub const LEAST_RTT_AT: i16 = 136;
    /// The rate that the next round is to exceed by a quarter, and how many rounds did not.
    pub const FULL_RATE: i16 = 144;
    pub const FULL_ROUNDS: i16 = 152;
    /// Which of the eight of PROBE_BW.
    pub const PHASE: i16 = 160;
    /// When it began, or DRAIN did.
    pub const PHASE_BEGAN: i16 = 168;
    pub const PROBE_ENDS: i16 = 176;
    /// The least round trip time of the eight phases; zero: none yet.
    pub const CYCLE_RTT: i16 = 184;
    /// Whether that told of a queue of others.
    pub const IS_CROWDED: i16 = 192;
    /// A counter of PROBE_RTT.
    pub const PROBES: i16 = 200;
    /// How often the eight phases were gone through.
    pub const CYCLES: i16 = 208;
    /// The best rates of the newest rounds, that of a round at its number.
    pub const RATES: i16 = 216;
}

/// A power of two, and more than the rounds that count.
pub(crate) const RATES: i16 = 16;

/// So long is a block. A multiple of 8, so that blocks in a map follow each other without gaps.
pub const BLOCK_BYTES: usize = 80;
/// So long it is with a model of the path in it.
pub const MODEL_BLOCK_BYTES: usize = at::RATES as usize + 8 * RATES as usize;

/// Bits after the point. A segment per round trip is 1/cwnd per acknowledgment, which whole numbers
/// would lose.
pub(crate) const FRACTION_BITS: i32 = 16;

/// The same of rates, which are in segments a microsecond.
pub(crate) const RATE_BITS: i32 = 24;

/// What the members of an ensemble share at one moment. Each number is whole; taken together they may be
/// a few acknowledgments apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EnsembleControlBlock {
    /// Connections that are members.
    pub members: u32,
    /// The congestion window of all of them, in segments.
    pub cwnd: f64,
    /// The slow start threshold of all of them, in segments; infinite before the first loss.
    pub ssthresh: f64,
    /// Smoothed round trip time that a member has measured last.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Acknowledgments that made the window grow.
    pub grown: u64,
    /// Times that the window was cut after a loss or a congestion mark.
    pub cuts: u64,
    /// Of these, those that took less than a half of a share, since the window was near its least.
    pub floored: u64,
    /// Cuts made with the next acknowledgment, since the kernel had left a call of the program out.
    pub late_cuts: u64,
    /// Cuts taken back: what seemed lost had only been late.
    pub undone: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// With [`Growth::ByModel`](crate::Growth::ByModel), what is known of the path. Then `cwnd` is what all may have in
    /// flight, and nothing is cut.
    pub path: Option<PathModel>,
}

/// A path as its ensemble knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathModel {
    /// What it carries for the ensemble, in segments a second: the best of the last ten round trips.
    pub bandwidth: f64,
    /// The least round trip time, as long as one that is about as short comes every ten seconds.
    pub least_rtt: Duration,
    /// Whether others keep a queue on it, so that the ensemble drains no more than its own part of it.
    pub is_crowded: bool,
    /// Times that the windows were made small to measure the round trip time.
    pub probes: u64,
}

impl PathModel {
    fn read(word: impl Fn(i16) -> u64) -> Self {
        let best = (0..RATES).map(|it| word(at::RATES + 8 * it)).max();
        Self {
            bandwidth: best.unwrap_or_default() as f64 * 1e6 / f64::from(1u32 << RATE_BITS),
            least_rtt: Duration::from_micros(word(at::LEAST_RTT)),
            is_crowded: word(at::IS_CROWDED) != 0,
            probes: word(at::PROBES),
        }
    }
}

impl EnsembleControlBlock {
    /// Reads a block word by word.
    fn read(word: impl Fn(i16) -> u64, has_model: bool) -> Self {
        // TCP_INFINITE_SSTHRESH of the first member.
        const INFINITE: u64 = 0x7fff_ffff << FRACTION_BITS;
        let scale = f64::from(1u32 << FRACTION_BITS);
        let threshold = word(at::THRESHOLD);
        let times = word(at::SRTT);
        Self {
            members: word(at::MEMBERS) as u32,
            cwnd: (word(at::WINDOW) as i64).max(0) as f64 / scale,
            ssthresh: if threshold >= INFINITE { f64::INFINITY } else { threshold as f64 / scale },
            srtt: Duration::from_nanos((times & 0xffff_ffff) * 1000 / 8),
            rttvar: Duration::from_nanos((times >> 32) * 1000 / 4),
            grown: word(at::GROWN),
            cuts: word(at::CUTS),
            floored: word(at::FLOORED),
            late_cuts: word(at::LATE_CUTS),
            undone: word(at::UNDONE),
            timeouts: word(at::TIMEOUTS),
            path: has_model.then(|| PathModel::read(&word)),
        }
    }

    /// The value of a block that nobody has joined, as the map takes it.
    pub(crate) fn fresh(per_ack: bool, block_bytes: usize) -> Vec<u8> {
        let mut value = vec![0; block_bytes];
        value[at::PER_ACK as usize] = per_ack.into();
        value
    }

    /// From the first [`BLOCK_BYTES`] of one as it is in the map.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; BLOCK_BYTES]) -> Self {
        let word = |offset: i16| {
            let from = &bytes[offset as usize..];
            u64::from_le_bytes(*from.first_chunk().expect("within a block"))
        };
        Self::read(word, false)
    }
}

/// The map of all blocks, mapped to be read.
pub(crate) struct Mapped {
    start: NonNull<AtomicU64>,
    blocks: usize,
    block_bytes: usize,
}

// SAFETY: it is memory that this value alone unmaps, and all that is done to it is an atomic load.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `blocks` blocks of so many bytes, of an array map that allows it.
    pub fn new(map: &OwnedFd, blocks: usize, block_bytes: usize) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice, of a map that is as long: the
        // kernel refuses more. Nobody truncates a map.
        let start = unsafe {
            let bytes = blocks * block_bytes;
            mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, map.as_fd(), 0)?
        };
        let start = NonNull::new(start.cast()).expect("mmap never answers with address 0");
        Ok(Self { start, blocks, block_bytes })
    }

    /// What a block says now.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, number: u32) -> EnsembleControlBlock {
        assert!((number as usize) < self.blocks, "block {number} of {}", self.blocks);
        let read = |offset: i16| {
            let word = (number as usize * self.block_bytes + offset as usize) / 8;
            // SAFETY: within the mapping, as asserted, and aligned, since a mapping begins at a page.
            // The program writes the same words, atomically or by plain stores of whole words.
            unsafe { self.start.add(word).as_ref() }.load(Ordering::Relaxed)
        };
        EnsembleControlBlock::read(read, self.block_bytes == MODEL_BLOCK_BYTES)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this mapping, as long as it was made; no reference into it is left. It cannot fail then.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.blocks * self.block_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_in_segments_and_time() {
        let mut bytes = [0; BLOCK_BYTES];
        bytes.copy_from_slice(&EnsembleControlBlock::fresh(true, BLOCK_BYTES));
        let mut write = |offset: i16, value: u64| {
            bytes[offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
        };
        write(at::WINDOW, 21 << 15);
        write(at::THRESHOLD, 0x7fff_ffff << 16);
        write(at::MEMBERS, 4 | 1 << 32);
        write(at::SRTT, (8 * 2000) | ((4 * 300) << 32));
        write(at::CUTS, 7);
        let block = EnsembleControlBlock::from_bytes(&bytes);
        assert_eq!((block.members, block.cwnd, block.ssthresh), (4, 10.5, f64::INFINITY));
        assert_eq!(block.srtt, Duration::from_micros(2000));
        assert_eq!(block.rttvar, Duration::from_micros(300));
        assert_eq!((block.cuts, block.grown), (7, 0));
    }

    #[test]
    fn a_model_is_read_in_segments_a_second_and_time() {
        let word = |offset: i16| match offset {
            at::LEAST_RTT => 4_000,
            at::IS_CROWDED => 1,
            at::PROBES => 2,
            // 2,000 and 3,000 segments a second, in segments a microsecond.
            at::RATES => (2 << RATE_BITS) / 1000,
            _ if offset == at::RATES + 8 * (RATES - 1) => (3 << RATE_BITS) / 1000,
            _ => 0,
        };
        let path = EnsembleControlBlock::read(word, true).path.expect("a model");
        assert!((path.bandwidth - 3000.0).abs() < 0.1, "{path:?}");
        assert_eq!((path.least_rtt, path.is_crowded), (Duration::from_millis(4), true));
        assert_eq!(path.probes, 2);
        assert_eq!(EnsembleControlBlock::read(word, false).path, None);
    }

    #[test]
    fn a_window_that_was_overdrawn_reads_as_none() {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(&(-5i64).to_le_bytes());
        assert_eq!(EnsembleControlBlock::from_bytes(&bytes).cwnd, 0.0);
    }
}
