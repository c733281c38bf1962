//! The ensemble control block: the state that the connections of one ensemble share. A BPF map holds the
//! blocks. The programs write them, and this process reads them through a memory mapping.

use std::{
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Offsets of the fields of a block, in bytes. The window and the threshold are those of the whole ensemble,
/// in segments with [`FRACTION_BITS`] fractional bits.
pub(crate) mod at {
    /// The congestion window: 8 bytes, signed. Members that leave and cut at the same time can make it
    /// negative for a moment; readers use the minimum then.
    pub const WINDOW: i16 = 0;
    /// The slow start threshold: 8 bytes.
    pub const THRESHOLD: i16 = 8;
    /// The number of members: 4 bytes.
    pub const MEMBERS: i16 = 16;
    /// 4 bytes. If 1, the window grows by the number of acknowledgments, not of acknowledged segments.
    pub const PER_ACK: i16 = 20;
    /// The smoothed round trip time in the kernel's unit, eighths of a microsecond: 4 bytes.
    pub const SRTT: i16 = 24;
    /// The variation of the round trip time in quarters of a microsecond: 4 bytes.
    pub const RTTVAR: i16 = 28;
    /// The counters: 8 bytes each.
    pub const GROWN: i16 = 32;
    pub const CUTS: i16 = 40;
    pub const FLOORED: i16 = 48;
    pub const LATE_CUTS: i16 = 56;
    pub const UNDONE: i16 = 64;
    pub const TIMEOUTS: i16 = 72;

    // The following fields exist only if the members share a path model. Times are in microseconds, rates in
    // segments per microsecond with 24 fractional bits. The number of members with data to send: 4 bytes.
    pub const ACTIVE: i16 = 80;
    /// STARTUP, DRAIN, PROBE_BW or PROBE_RTT: 4 bytes.
    pub const MODE: i16 = 84;
    /// The sum of the members' delivery rates, each as of the member's last acknowledgment. 8 bytes, as all
    /// fields below.
    pub const RATE: i16 = 88;
    /// Segments in flight of all members, each as of the member's last acknowledgment. Signed, like the
    /// window.
    pub const ALL_IN_FLIGHT: i16 = 96;
    /// The number of rounds, and the time when the last one began.
    pub const ROUND: i16 = 104;
    pub const ROUND_BEGAN: i16 = 112;
    /// The time when a member was last application-limited; zero if this never happened.
    pub const LIMITED_AT: i16 = 120;
    /// The minimum round trip time; zero if it is unknown.
    pub const LEAST_RTT: i16 = 128;
    pub const LEAST_RTT_AT: i16 = 136;
    /// The rate that the next round has to exceed by a quarter, and the number of rounds that did not.
    pub const FULL_RATE: i16 = 144;
    pub const FULL_ROUNDS: i16 = 152;
    /// The phase of PROBE_BW's cycle, 0 to 7.
    pub const PHASE: i16 = 160;
    /// The time when the phase, or DRAIN, began.
    pub const PHASE_BEGAN: i16 = 168;
    pub const PROBE_ENDS: i16 = 176;
    /// The minimum round trip time in this cycle; zero if none was measured yet.
    pub const CYCLE_RTT: i16 = 184;
    /// 1 if the last cycle showed a queue of other flows, else 0.
    pub const IS_CROWDED: i16 = 192;
    /// Number of times that the ensemble entered PROBE_RTT.
    pub const PROBES: i16 = 200;
    /// Number of completed PROBE_BW cycles.
    pub const CYCLES: i16 = 208;
    /// The best rates of the last rounds, a ring indexed by the round number.
    pub const RATES: i16 = 216;
}

/// A power of two that is larger than the number of rounds in the filter.
pub(crate) const RATES: i16 = 16;

/// Length of a block in bytes. A multiple of 8, so that the blocks in the map are adjacent.
pub const BLOCK_BYTES: usize = 80;
/// Length of a block with a path model.
pub const MODEL_BLOCK_BYTES: usize = at::RATES as usize + 8 * RATES as usize;

/// Number of fractional bits. Growth of one segment per round trip is 1/cwnd per acknowledgment, which integers could
/// not represent.
pub(crate) const FRACTION_BITS: i32 = 16;

/// Fractional bits of rates, which are in segments per microsecond.
pub(crate) const RATE_BITS: i32 = 24;

/// The shared state of an ensemble at one moment. Each number is consistent, but the numbers may be a few
/// acknowledgments apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EnsembleControlBlock {
    pub members: u32,
    /// The congestion window of the ensemble, in segments.
    pub cwnd: f64,
    /// The slow start threshold of the ensemble, in segments; infinite before the first loss.
    pub ssthresh: f64,
    /// The smoothed round trip time that a member has measured last.
    pub srtt: Duration,
    /// The variation of the round trip time.
    pub rttvar: Duration,
    /// Number of acknowledgments that made the window grow.
    pub grown: u64,
    /// Number of window reductions after a loss or a congestion mark.
    pub cuts: u64,
    /// Number of reductions (part of `cuts`) by less than half of a share, because the window was near its
    /// minimum.
    pub floored: u64,
    /// Number of reductions that were made at the next acknowledgment, because the kernel had omitted a call
    /// of the program.
    pub late_cuts: u64,
    /// Number of reductions that were undone, because the segments were only late.
    pub undone: u64,
    pub timeouts: u64,
    /// The path model, with [`Growth::ByModel`](crate::Growth::ByModel). Then `cwnd` is the limit of segments
    /// in flight of all members, and there are no reductions.
    pub path: Option<PathModel>,
}

/// The ensemble's model of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathModel {
    /// The bandwidth for the ensemble in segments per second: the maximum of the last ten rounds.
    pub bandwidth: f64,
    /// The minimum round trip time, valid as long as a similar one is measured every ten seconds.
    pub least_rtt: Duration,
    /// True if other flows keep a queue on the path, so that the ensemble drains only its own part of it.
    pub is_crowded: bool,
    /// Number of times that windows were reduced to measure the round trip time (PROBE_RTT).
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
        // TCP_INFINITE_SSTHRESH of the kernel, which the first member sets.
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

    /// Returns the initial value of a block for the map.
    pub(crate) fn fresh(per_ack: bool, block_bytes: usize) -> Vec<u8> {
        let mut value = vec![0; block_bytes];
        value[at::PER_ACK as usize] = per_ack.into();
        value
    }

    /// Parses the first [`BLOCK_BYTES`] of a block as in the map.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; BLOCK_BYTES]) -> Self {
        let word = |offset: i16| {
            let from = &bytes[offset as usize..];
            u64::from_le_bytes(*from.first_chunk().expect("within a block"))
        };
        Self::read(word, false)
    }
}

/// The map of all blocks, mapped for reading.
pub(crate) struct Mapped {
    start: NonNull<AtomicU64>,
    blocks: usize,
    block_bytes: usize,
}

// SAFETY: only this value unmaps the memory, and all accesses to it are atomic loads.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `blocks` blocks of `block_bytes` bytes; the array map must allow it.
    pub fn new(map: &OwnedFd, blocks: usize, block_bytes: usize) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses, of a map of this length: the kernel refuses
        // more. A map cannot be truncated.
        let start = unsafe {
            let bytes = blocks * block_bytes;
            mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, map.as_fd(), 0)?
        };
        let start = NonNull::new(start.cast()).expect("mmap never answers with address 0");
        Ok(Self { start, blocks, block_bytes })
    }

    /// Reads the current content of a block.
    ///
    /// # Panics
    /// If there is no block with this number.
    pub fn block(&self, number: u32) -> EnsembleControlBlock {
        assert!((number as usize) < self.blocks, "block {number} of {}", self.blocks);
        let read = |offset: i16| {
            let word = (number as usize * self.block_bytes + offset as usize) / 8;
            // SAFETY: within the mapping, as asserted, and aligned, because a mapping begins at a page boundary. The
            // program writes the same words, atomically or by plain stores of whole words.
            unsafe { self.start.add(word).as_ref() }.load(Ordering::Relaxed)
        };
        EnsembleControlBlock::read(read, self.block_bytes == MODEL_BLOCK_BYTES)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping with its original length; there are no references into it. The call cannot fail then.
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
            // 2,000 and 3,000 segments per second, in segments per microsecond.
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
    fn a_negative_window_reads_as_zero() {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(&(-5i64).to_le_bytes());
        assert_eq!(EnsembleControlBlock::from_bytes(&bytes).cwnd, 0.0);
    }
}
