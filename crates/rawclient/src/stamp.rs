//! Fills blocks with stamps and checks them. A stamp shows the LBA and the version of the block,
//! and each of its words depends on both.

pub fn fill(block: &mut [u8], lba: u64, version: u64) {
    let mut state = seed(lba, version);
    let (head, body) = block.split_at_mut(16);
    head[..8].copy_from_slice(&lba.to_le_bytes());
    head[8..].copy_from_slice(&version.to_le_bytes());
    for word in body.chunks_exact_mut(8) {
        word.copy_from_slice(&next(&mut state).to_le_bytes());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStampState {
    /// The block contains only zeroes, so it was never written.
    Empty,
    /// All of the block carries the stamp of this version.
    Version(u64),
    /// The block has neither zeros nor a valid stamp of its own: a write was torn, or the data belongs to another
    /// block.
    Damaged,
}

/// Checks the stamp in block `lba`.
pub fn read(block: &[u8], lba: u64) -> BlockStampState {
    if block.iter().all(|byte| *byte == 0) {
        return BlockStampState::Empty;
    }
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let version = word(8);
    let mut state = seed(lba, version);
    let whole = word(0) == lba
        && block[16..].chunks_exact(8).all(|word| word == next(&mut state).to_le_bytes());
    if whole { BlockStampState::Version(version) } else { BlockStampState::Damaged }
}

/// Returns the next pseudorandom number (SplitMix64).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn seed(lba: u64, version: u64) -> u64 {
    lba.rotate_left(32) ^ version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_contains_its_number_and_version() {
        let mut block = vec![0; 4096];
        assert_eq!(read(&block, 7), BlockStampState::Empty);
        fill(&mut block, 7, 3);
        assert_eq!(read(&block, 7), BlockStampState::Version(3));
        assert_eq!(read(&block, 8), BlockStampState::Damaged);
    }

    #[test]
    fn a_torn_block_is_damaged() {
        let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
        fill(&mut old, 7, 3);
        fill(&mut new, 7, 4);
        new[2048..].copy_from_slice(&old[2048..]);
        assert_eq!(read(&new, 7), BlockStampState::Damaged);
    }
}
