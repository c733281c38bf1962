//! Verifies data: each block contains its address and a version, and the ledger records which versions were submitted
//! and acknowledged. This is sufficient to detect losses.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::{Bytes, BytesMut};

/// Length of a block of the ledger in bytes.
pub const BLOCK: usize = 4096;

/// The versions of the blocks of a volume. Each block has at most one writer at a time.
#[derive(Debug)]
pub struct QuickstartLedger(Vec<Versions>);

#[derive(Debug, Default)]
struct Versions {
    submitted: AtomicU64,
    acknowledged: AtomicU64,
}

/// The result of comparing a block that was read with the ledger.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LedgerBlockVerdict {
    /// The block has the last acknowledged version, or a version that was submitted later.
    Right,
    /// The block has an older version, or bytes that were never written.
    Lost,
}

impl QuickstartLedger {
    /// Makes the ledger of a volume of zeros.
    pub fn new(blocks: u64) -> Self {
        Self((0..blocks).map(|_| Versions::default()).collect())
    }

    pub fn blocks(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns data for the next version of the `count` blocks from `first`, and records it as submitted.
    pub fn submit(&self, first: u64, count: u64) -> Bytes {
        let mut bytes = BytesMut::with_capacity(count as usize * BLOCK);
        for block in first..first + count {
            let version = self.at(block).submitted.fetch_add(1, SeqCst) + 1;
            fill(block, version, &mut bytes);
        }
        bytes.freeze()
    }

    /// Records that the write of the last submitted version was acknowledged.
    pub fn acknowledge(&self, first: u64, count: u64) {
        for block in first..first + count {
            let versions = self.at(block);
            versions.acknowledged.store(versions.submitted.load(SeqCst), SeqCst);
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.0.iter().filter(|versions| versions.acknowledged.load(SeqCst) > 0).count() as u64
    }

    /// Judges data that was read from `block` while no write to it was in flight.
    pub fn judge(&self, block: u64, bytes: &[u8]) -> LedgerBlockVerdict {
        let versions = self.at(block);
        let known = versions.acknowledged.load(SeqCst)..=versions.submitted.load(SeqCst);
        match version_of(block, bytes) {
            Some(version) if known.contains(&version) => LedgerBlockVerdict::Right,
            _ => LedgerBlockVerdict::Lost,
        }
    }

    fn at(&self, block: u64) -> &Versions {
        &self.0[usize::try_from(block).expect("a ledger fits into memory")]
    }
}

/// Appends the content of `block` at `version` to `bytes`.
fn fill(block: u64, version: u64, bytes: &mut BytesMut) {
    let mut words = LedgerWordGenerator::new(block, version);
    bytes.extend_from_slice(&version.to_le_bytes());
    for _ in 1..BLOCK / 8 {
        bytes.extend_from_slice(&words.next().to_le_bytes());
    }
}

/// Returns the version of a block's content: 0 for zeros, `None` if it is no valid content of this block.
fn version_of(block: u64, bytes: &[u8]) -> Option<u64> {
    let (version, rest) = bytes.split_first_chunk::<8>()?;
    let version = u64::from_le_bytes(*version);
    if version == 0 {
        return bytes.iter().all(|byte| *byte == 0).then_some(0);
    }
    let mut words = LedgerWordGenerator::new(block, version);
    let right = rest.len() == BLOCK - 8
        && rest.chunks_exact(8).all(|word| word == words.next().to_le_bytes());
    right.then_some(version)
}

/// SplitMix64 with address and version as seed, so that every word of a block depends on both.
struct LedgerWordGenerator(u64);

impl LedgerWordGenerator {
    fn new(block: u64, version: u64) -> Self {
        Self(block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.rotate_left(32))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_acknowledged_or_a_later_version_is_right() {
        let ledger = QuickstartLedger::new(4);
        assert_eq!(ledger.judge(1, &[0; BLOCK]), LedgerBlockVerdict::Right);
        let first = ledger.submit(1, 1);
        assert_eq!(ledger.judge(1, &[0; BLOCK]), LedgerBlockVerdict::Right, "not acknowledged yet");
        ledger.acknowledge(1, 1);
        assert_eq!(ledger.judge(1, &first), LedgerBlockVerdict::Right);
        assert_eq!(ledger.judge(1, &[0; BLOCK]), LedgerBlockVerdict::Lost);
        let second = ledger.submit(1, 1);
        assert_eq!(ledger.judge(1, &first), LedgerBlockVerdict::Right);
        assert_eq!(ledger.judge(1, &second), LedgerBlockVerdict::Right);
        ledger.acknowledge(1, 1);
        assert_eq!(ledger.judge(1, &first), LedgerBlockVerdict::Lost);
        assert_eq!(ledger.acknowledged(), 1);
    }

    #[test]
    fn torn_or_misplaced_content_is_lost() {
        let ledger = QuickstartLedger::new(4);
        let mut torn = ledger.submit(0, 1).to_vec();
        let new = ledger.submit(0, 1);
        torn[2048..].copy_from_slice(&new[2048..]);
        assert_eq!(ledger.judge(0, &torn), LedgerBlockVerdict::Lost);
        ledger.submit(1, 1);
        assert_eq!(ledger.judge(1, &new), LedgerBlockVerdict::Lost);
        assert_eq!(ledger.judge(0, &new[..100]), LedgerBlockVerdict::Lost);
    }
}
