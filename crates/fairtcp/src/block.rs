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
}

/// So long is a block. A multiple of 8, so that blocks in a map follow each other without gaps.
pub const BLOCK_BYTES: usize = 80;

/// Bits after the point. A segment per round trip is 1/cwnd per acknowledgment, which whole numbers
/// would lose.
pub(crate) const FRACTION_BITS: i32 = 16;

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
}

impl EnsembleControlBlock {
    /// Reads a block word by word.
    fn read(word: impl Fn(i16) -> u64) -> Self {
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
        }
    }

    /// The value of a block that nobody has joined, as the map takes it.
    pub(crate) fn fresh(per_ack: bool) -> [u8; BLOCK_BYTES] {
        let mut value = [0; BLOCK_BYTES];
        value[at::PER_ACK as usize] = per_ack.into();
        value
    }

    /// From the bytes of one, as [`BLOCK_BYTES`] long as it is in the map.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; BLOCK_BYTES]) -> Self {
        Self::read(|offset| {
            let from = &bytes[offset as usize..];
            u64::from_le_bytes(*from.first_chunk().expect("within a block"))
        })
    }
}

/// The map of all blocks, mapped to be read.
pub(crate) struct Mapped {
    start: NonNull<AtomicU64>,
    blocks: usize,
}

// SAFETY: it is memory that this value alone unmaps, and all that is done to it is an atomic load.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `blocks` blocks of an array map that allows it.
    pub fn new(map: &OwnedFd, blocks: usize) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice, of a map that is as long: the
        // kernel refuses more. Nobody truncates a map.
        let start = unsafe {
            let bytes = blocks * BLOCK_BYTES;
            mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, map.as_fd(), 0)?
        };
        let start = NonNull::new(start.cast()).expect("mmap never answers with address 0");
        Ok(Self { start, blocks })
    }

    /// What a block says now.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, number: u32) -> EnsembleControlBlock {
        assert!((number as usize) < self.blocks, "block {number} of {}", self.blocks);
        EnsembleControlBlock::read(|offset| {
            let word = (number as usize * BLOCK_BYTES + offset as usize) / 8;
            // SAFETY: within the mapping, as asserted, and aligned, since a mapping begins at a page.
            // The program writes the same words, atomically or by plain stores of whole words.
            unsafe { self.start.add(word).as_ref() }.load(Ordering::Relaxed)
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this mapping, as long as it was made; no reference into it is left. It cannot fail then.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.blocks * BLOCK_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_in_segments_and_time() {
        let mut bytes = EnsembleControlBlock::fresh(true);
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
    fn a_window_that_was_overdrawn_reads_as_none() {
        let mut bytes = EnsembleControlBlock::fresh(false);
        bytes[..8].copy_from_slice(&(-5i64).to_le_bytes());
        assert_eq!(EnsembleControlBlock::from_bytes(&bytes).cwnd, 0.0);
    }
}
