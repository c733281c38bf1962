//! Decides which unstable writes of a simulated disk survive a crash.

use crate::Rng;

/// Selects how a crash treats unstable writes. The cases that find most bugs are: all writes are lost, all survive, and
/// all up to a certain one survive. If each atom (sector) survived by chance, these cases would hardly ever occur.
/// Therefore each is a variant of its own.
pub(crate) enum CrashFate {
    /// The crash loses all unstable writes.
    Lost,
    /// The crash loses none of the unstable writes.
    Kept,
    /// Operations before this number survive, the operation with the number is torn, later ones are lost.
    InOrder(u64),
    /// The reverse of `InOrder`: operations before this number are lost, the operation with the number is torn,
    /// later ones survive.
    Reordered(u64),
    /// Each operation survives completely or not at all, as decided by random numbers with this seed.
    Whole(u64),
    /// Each atom (smallest unit written atomically) of each operation survives with this probability in percent.
    Torn(u32),
}

impl CrashFate {
    pub(crate) fn choose(operations: u64, rng: &mut Rng) -> Self {
        // Choose mostly among the last operations, because older ones are usually stable already.
        let recent = |rng: &mut Rng| {
            let window = [4, 16, operations + 1][rng.below(3) as usize];
            operations.saturating_sub(rng.below(window))
        };
        match rng.below(8) {
            0 => Self::Lost,
            1 => Self::Kept,
            2 | 3 => Self::InOrder(recent(rng)),
            4 => Self::Reordered(recent(rng)),
            5 => Self::Whole(rng.next_u64()),
            _ => Self::Torn([10, 50, 90][rng.below(3) as usize]),
        }
    }

    pub(crate) fn survives(&self, operation: u64, rng: &mut Rng) -> bool {
        match self {
            Self::Lost => false,
            Self::Kept => true,
            Self::InOrder(torn) if operation != *torn => operation < *torn,
            Self::Reordered(torn) if operation != *torn => operation > *torn,
            Self::InOrder(_) | Self::Reordered(_) => rng.chance(50),
            Self::Whole(seed) => Rng::new(seed.wrapping_add(operation)).chance(50),
            Self::Torn(percent) => rng.chance(*percent),
        }
    }
}
