//! The ensemble control block: the state that the connections of one ensemble share. The blocks are in a BPF map. The
//! BPF programs write them, and this process reads them through a memory mapping.

use std::{
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The offsets of the fields of a block, in bytes. The window and the slow start threshold belong to the whole ensemble
/// (the connections of a session, which are its members). Both are in segments with [`FRACTION_BITS`] fractional bits.
pub(crate) mod at {
    /// The congestion window: 8 bytes, signed. The window can be negative for a moment if members leave and reduce it
    /// at the same time; readers then use the minimum window.
    pub const WINDOW: i16 = 0;
    /// The slow start threshold: 8 bytes.
    pub const THRESHOLD: i16 = 8;
    /// The number of members: 4 bytes.
    pub const MEMBERS: i16 = 16;
    /// The rule for growth: 4 bytes. If 1, the window grows by the number of acknowledgments; if 0, by the number of
    /// acknowledged segments.
    pub const PER_ACK: i16 = 20;
    /// The smoothed round trip time in the kernel's unit, eighths of a microsecond: 4 bytes.
    pub const SRTT: i16 = 24;
    /// The variation of the round trip time in quarters of a microsecond: 4 bytes.
    pub const RTTVAR: i16 = 28;
    /// Offsets of counters of 8 bytes each: see the fields of [`EnsembleControlBlock`] with these names.
    pub const GROWN: i16 = 32;
    pub const CUTS: i16 = 40;
    pub const FLOORED: i16 = 48;
    pub const LATE_CUTS: i16 = 56;
    pub const UNDONE: i16 = 64;
    pub const TIMEOUTS: i16 = 72;

    // The following fields exist only if the members share a path model. Times are in microseconds, rates in
    // segments per microsecond with 24 fractional bits.
    /// The number of members with data to send: 4 bytes.
    pub const ACTIVE: i16 = 80;
    /// The mode of the model: STARTUP, DRAIN, PROBE_BW or PROBE_RTT, 4 bytes.
    pub const MODE: i16 = 84;
    /// The sum of the delivery rates of all members (connections). Each rate is that of the member's last
    /// acknowledgment. This field and all below have 8 bytes.
    pub const RATE: i16 = 88;
    /// The number of segments in flight of all members together. Each member's part is that of its last acknowledgment.
    /// Signed, like the window.
    pub const ALL_IN_FLIGHT: i16 = 96;
    /// The number of the current round.
    pub const ROUND: i16 = 104;
    /// The time when the current round began.
    pub const ROUND_BEGAN: i16 = 112;
    /// Offset of the last time at which a member had too little data to fill its window; 0 if that never happened.
    pub const LIMITED_AT: i16 = 120;
    /// Offset of the minimum round trip time, which is 0 if it is unknown.
    pub const LEAST_RTT: i16 = 128;
    pub const LEAST_RTT_AT: i16 = 136;
    /// The rate with which the rate of each round is compared. If a round exceeds this rate by less than a quarter,
    /// [`FULL_ROUNDS`] is increased.
    pub const FULL_RATE: i16 = 144;
    /// The number of rounds whose rate did not exceed [`FULL_RATE`] by a quarter.
    pub const FULL_ROUNDS: i16 = 152;
    /// The phase of PROBE_BW's cycle, 0 to 7.
    pub const PHASE: i16 = 160;
    /// The time when the current phase, or the mode DRAIN, began.
    pub const PHASE_BEGAN: i16 = 168;
    pub const PROBE_ENDS: i16 = 176;
    /// Offset of the minimum round trip time in this cycle, which is 0 if none was measured yet.
    pub const CYCLE_RTT: i16 = 184;
    /// 1 if the last cycle has shown that other flows keep a queue on the path, else 0.
    pub const IS_CROWDED: i16 = 192;
    /// Offset of the number of times that the ensemble has entered the phase PROBE_RTT.
    pub const PROBES: i16 = 200;
    /// The number of completed cycles of PROBE_BW.
    pub const CYCLES: i16 = 208;
    /// The highest delivery rate of each of the last rounds. The array is a ring: a round number modulo
    /// [`RATES`](super::RATES) is the index.
    pub const RATES: i16 = 216;
}

/// The number of entries of the ring at [`at::RATES`]: a power of two that is larger than the number of rounds from
/// which the highest rate is taken as the bandwidth.
pub(crate) const RATES: i16 = 16;

/// The length of a block in bytes. It is a multiple of 8, so that the blocks in the map are adjacent.
pub const BLOCK_BYTES: usize = 80;
/// The length in bytes of a block with a path model.
pub const MODEL_BLOCK_BYTES: usize = at::RATES as usize + 8 * RATES as usize;

/// The number of fractional bits of windows. If the window grows by one segment per round trip, it grows by 1/cwnd per
/// acknowledgment, which an integer could not represent.
pub(crate) const FRACTION_BITS: i32 = 16;

/// The number of fractional bits of rates, which are in segments per microsecond.
pub(crate) const RATE_BITS: i32 = 24;

/// The state of an ensemble at one moment. Each number is valid, but two numbers may be from moments that are a few
/// acknowledgments apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EnsembleControlBlock {
    pub members: u32,
    /// Congestion window that all members of the ensemble share, in segments.
    pub cwnd: f64,
    /// Slow start threshold of the ensemble, in segments; infinite before the first loss.
    pub ssthresh: f64,
    /// The smoothed round trip time that a member has measured last.
    pub srtt: Duration,
    /// The variation of the round trip time.
    pub rttvar: Duration,
    /// Number of acknowledgments that made the window grow.
    pub grown: u64,
    /// The number of window reductions, each after a loss or a congestion mark.
    pub cuts: u64,
    /// The number of those reductions by less than half of a member's share of the window, because the window was near
    /// its minimum.
    pub floored: u64,
    /// The number of reductions that were made only at the next acknowledgment, because the kernel had omitted the call
    /// of the BPF program that reduces the window.
    pub late_cuts: u64,
    /// The number of reductions that were undone, because the segments were late and not lost.
    pub undone: u64,
    pub timeouts: u64,
    /// The path model; only with [`Growth::ByModel`](crate::Growth::ByModel). In that case `cwnd` is the limit of
    /// segments in flight of all members, and the window is never reduced.
    pub path: Option<PathModel>,
}

/// The network path of an ensemble, as its members have measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathModel {
    /// The bandwidth that the ensemble can use, in segments per second: the maximum rate of the last ten rounds.
    pub bandwidth: f64,
    /// The minimum round trip time. The value stays valid as long as the members measure a similar one at least every
    /// ten seconds.
    pub least_rtt: Duration,
    /// True if other flows keep a queue on the path. The ensemble then drains only its own part of the queue.
    pub is_crowded: bool,
    /// The number of times that the members reduced their windows to measure the round trip time (PROBE_RTT).
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
    /// Reads a block; `word` returns the eight bytes at an offset.
    fn read(word: impl Fn(i16) -> u64, has_model: bool) -> Self {
        // The kernel's TCP_INFINITE_SSTHRESH. A block has this threshold until the first loss, because the first
        // connection that joins an ensemble brings its own.
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

    /// Parses the first [`BLOCK_BYTES`] bytes of a control block, as the BPF map holds them.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; BLOCK_BYTES]) -> Self {
        let word = |offset: i16| {
            let from = &bytes[offset as usize..];
            u64::from_le_bytes(*from.first_chunk().expect("within a block"))
        };
        Self::read(word, false)
    }
}

/// The BPF map of all control blocks, mapped into this process for reading.
pub(crate) struct Mapped {
    start: NonNull<AtomicU64>,
    blocks: usize,
    block_bytes: usize,
}

// SAFETY: only this value unmaps the memory, and all accesses to it are atomic loads.
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps an array map of `blocks` blocks with `block_bytes` bytes each. The map must have been created for this
    /// (BPF_F_MMAPABLE).
    pub fn new(map: &OwnedFd, blocks: usize, block_bytes: usize) -> std::io::Result<Self> {
        // SAFETY: this makes a new mapping at an address that the kernel chooses. It is not longer than the map, since
        // the kernel would refuse that, and a map cannot be truncated.
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
            // SAFETY: the word is within the mapping, as asserted. It is aligned, because a mapping begins at a page
            // boundary. The program writes the same words, atomically or by plain stores of whole words.
            unsafe { self.start.add(word).as_ref() }.load(Ordering::Relaxed)
        };
        EnsembleControlBlock::read(read, self.block_bytes == MODEL_BLOCK_BYTES)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this unmaps the whole mapping with its original length, and no references into it exist. The call
        // cannot fail then.
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
            // The rates are 2,000 and 3,000 segments per second, converted to segments per microsecond.
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
