//! Decides which unsynced operations survive a power cut.
use rawclient::stamp;

/// A pseudorandom number generator: the same seed always yields the same sequence.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// Returns a number from the whole range of `u64`.
    pub fn any(&mut self) -> u64 {
        stamp::next(&mut self.0)
    }

    /// Returns a number in `0 .. bound`. The bound must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.any() % bound
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// How one power cut treats unsynced operations. The cases that find most faults are: all operations are lost, all are
/// kept, and all after a certain one are lost. If each sector survived by chance, these cases would almost never occur.
/// Therefore each is a variant of its own, as in `sim::CrashVolume`.
#[derive(Clone, Copy, Debug)]
pub enum PowerCutFate {
    /// The power cut loses all unsynced operations.
    Lost,
    /// The power cut loses none of the unsynced operations.
    Kept,
    /// Operations before this number survive, the one with the number is torn, later ones are lost.
    InOrder(u64),
    /// Operations before this number are lost, the one with the number is torn, later ones survive.
    Reordered(u64),
    /// Each operation survives as a whole or not at all; this seed decides which ones.
    Whole(u64),
    /// Each sector of each unsynced operation survives with this probability in percent, independently of the others.
    Torn(u64),
}

impl PowerCutFate {
    /// Draws how a power cut treats unsynced operations. `operations` is the number of operations
    /// until the cut.
    pub fn draw(operations: u64, chance: &mut Chance) -> PowerCutFate {
        // Choose among the last few operations: most older operations are stable, so that a choice among them would
        // have no effect.
        let recent = |chance: &mut Chance| {
            let window = [4, 16, operations + 1][chance.below(3) as usize];
            operations.saturating_sub(chance.below(window))
        };
        match chance.below(8) {
            0 => PowerCutFate::Lost,
            1 => PowerCutFate::Kept,
            2 | 3 => PowerCutFate::InOrder(recent(chance)),
            4 => PowerCutFate::Reordered(recent(chance)),
            5 => PowerCutFate::Whole(chance.any()),
            _ => PowerCutFate::Torn([10, 50, 90][chance.below(3) as usize]),
        }
    }

    /// Returns true if a sector that an operation has written survives.
    pub fn spares(self, operation: u64, chance: &mut Chance) -> bool {
        match self {
            PowerCutFate::Lost => false,
            PowerCutFate::Kept => true,
            PowerCutFate::InOrder(torn) if operation != torn => operation < torn,
            PowerCutFate::Reordered(torn) if operation != torn => operation > torn,
            PowerCutFate::InOrder(_) | PowerCutFate::Reordered(_) => chance.percent(50),
            PowerCutFate::Whole(seed) => Chance::new(seed.wrapping_add(operation)).percent(50),
            PowerCutFate::Torn(percent) => chance.percent(percent),
        }
    }
}
