//! The content of a sector of 512 bytes: its position, the seed of the set, the number of the write, and words that are
//! derived from these three.

use sim::Rng;

/// The smallest block of a disk, in bytes. Each sector has its own stamp, so a write that is torn
/// at any sector boundary is detected.
pub(super) const SECTOR: usize = 512;

/// Fills whole sectors with test data, which depends on the sector number, `seed` and `version`.
pub(super) fn fill(bytes: &mut [u8], first: u64, seed: u64, version: u64) {
    for (number, sector) in (first..).zip(bytes.chunks_exact_mut(SECTOR)) {
        for (word, bytes) in words(number, seed, version).zip(sector.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The versions that a block may have.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpectedSectorVersion {
    /// The block must hold exactly this version of its data.
    Exactly(u64),
    /// The block may hold this version of its data or any earlier one.
    UpTo(u64),
}

/// Compares whole sectors with their expected content.
///
/// # Errors
/// A description of the first wrong sector.
pub(super) fn check(
    bytes: &[u8],
    first: u64,
    seed: u64,
    expected: ExpectedSectorVersion,
) -> Result<(), String> {
    for (number, sector) in (first..).zip(bytes.chunks_exact(SECTOR)) {
        let version = word(sector, 2);
        let allowed = match expected {
            ExpectedSectorVersion::Exactly(exactly) => version == exactly,
            ExpectedSectorVersion::UpTo(most) => version <= most,
        };
        let found = sector.chunks_exact(8).map(|bytes| word(bytes, 0));
        if !allowed || !found.eq(words(number, seed, version)) {
            return Err(told(sector, number, seed, expected));
        }
    }
    Ok(())
}

/// Returns the content of a sector as 64-bit words.
fn words(number: u64, seed: u64, version: u64) -> impl Iterator<Item = u64> {
    let begin = number ^ seed.rotate_left(21) ^ version.rotate_left(42);
    let mut rng = Rng::new(begin);
    let rest = std::iter::repeat_with(move || rng.next_u64());
    [number, seed, version].into_iter().chain(rest).take(SECTOR / 8)
}

fn word(bytes: &[u8], number: usize) -> u64 {
    let bytes = bytes[8 * number..8 * number + 8].try_into().expect("eight");
    u64::from_le_bytes(bytes)
}

/// Describes how a sector differs from the expected content.
fn told(sector: &[u8], number: u64, seed: u64, expected: ExpectedSectorVersion) -> String {
    let at = format!("the 512 bytes at {}", number * SECTOR as u64);
    if sector.iter().all(|byte| *byte == 0) {
        return format!("{at} are zeros");
    }
    match (word(sector, 0), word(sector, 1), word(sector, 2), expected) {
        (other, whose, ..) if other != number && whose == seed => {
            format!("{at} hold the data of offset {}", other.wrapping_mul(SECTOR as u64))
        }
        (_, whose, ..) if whose != seed => format!("{at} hold data that was never written there"),
        (_, _, found, ExpectedSectorVersion::Exactly(written)) if found != written => {
            format!("{at} are of write {found:#x}, but the last write is {written:#x}")
        }
        (_, _, found, ExpectedSectorVersion::UpTo(last)) if found > last => {
            format!("{at} are of write {found:#x}, but the last write is {last:#x}")
        }
        _ => format!("{at} are partly changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_sectors_are_found_and_described() {
        let mut bytes = vec![0; 4 * SECTOR];
        fill(&mut bytes, 8, 7, 3);
        assert_eq!(check(&bytes, 8, 7, ExpectedSectorVersion::Exactly(3)), Ok(()));
        assert_eq!(check(&bytes, 8, 7, ExpectedSectorVersion::UpTo(5)), Ok(()));
        let wrong = |bytes: &[u8], expected| check(bytes, 8, 7, expected).unwrap_err();
        // The sectors hold the data of write 3. If write 4 is expected, it was lost; if at most write 2 is expected,
        // the data is newer than it can be. Both must be reported.
        assert!(
            wrong(&bytes, ExpectedSectorVersion::Exactly(4))
                .contains("write 0x3, but the last write is 0x4")
        );
        assert!(
            wrong(&bytes, ExpectedSectorVersion::UpTo(2))
                .contains("write 0x3, but the last write is 0x2")
        );
        // Pass data that belongs to another position, as after a misplaced write.
        let said = check(&bytes, 16, 7, ExpectedSectorVersion::Exactly(3)).unwrap_err();
        assert_eq!(said, "the 512 bytes at 8192 hold the data of offset 4096");
        // Pass a seed with which these sectors were never written.
        let said = check(&bytes, 8, 9, ExpectedSectorVersion::Exactly(3)).unwrap_err();
        assert!(said.ends_with("data that was never written there"), "{said}");
        // Three more faults that must be reported: one flipped bit in the last sector, a torn write, and zeros.
        let mut bit = bytes.clone();
        bit[4 * SECTOR - 1] ^= 1;
        let said = wrong(&bit, ExpectedSectorVersion::Exactly(3));
        assert_eq!(said, format!("the 512 bytes at {} are partly changed", 11 * SECTOR));
        fill(&mut bytes[2 * SECTOR..], 10, 7, 4);
        assert!(
            wrong(&bytes, ExpectedSectorVersion::Exactly(4)).contains("at 4096 are of write 0x3")
        );
        assert!(wrong(&[0; SECTOR], ExpectedSectorVersion::UpTo(9)).contains("are zeros"));
    }
}
