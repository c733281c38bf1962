//! What is granted, of what, until when.

/// A part of a volume that is granted as one, numbered from 0; how many blocks it has is the same for
/// all ranges of a volume.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CoherenceRange(pub u32);

/// What a gateway may do with a range. The greater permits what the lesser does.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceToken {
    /// Read it and keep what was read; others may, too.
    SharedRead,
    /// Read and write it, and keep both; nobody else may do either.
    ExclusiveWrite,
}

/// The number of one grant: no two grants of a volume have the same, whatever the node has forgotten.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Grant(pub u64);

/// Milliseconds of a clock that only goes forward. Those of two hosts have nothing to do with each
/// other, but for running at the same speed within an eighth.
pub type Millis = u64;

/// Tokens that a gateway has at most; it gives others back before it asks for more. At a grain of
/// 1 MiB 16 GiB: more than most caches have, in a list of 64 KiB.
pub const MOST_TOKENS: usize = 16_384;
