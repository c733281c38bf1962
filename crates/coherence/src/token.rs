//! The values in the messages between gateway and node: ranges, tokens, numbers of grants, and
//! times.

/// A part of a volume for which tokens are granted, numbered from 0. All ranges of a volume have the same number of
/// blocks.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CoherenceRange(pub u32);

/// The permission of a gateway to use a range. `ExclusiveWrite` includes `SharedRead`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CoherenceToken {
    /// Permits to read the range and to cache its data. Other gateways may hold this token, too.
    SharedRead,
    /// Permits to read and write the range, and to cache its data. No other gateway holds a token for the range.
    ExclusiveWrite,
}

/// The number that the node gives to each token that it grants. The number is unique for the
/// volume, even over restarts of the node.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Grant(pub u64);

/// Milliseconds of a monotonic clock. The clocks of two hosts are not related, except that their speeds differ by
/// less than an eighth.
pub type Millis = u64;

/// Maximum number of tokens of a gateway; the gateway releases others before it requests more. With ranges of 1 MiB
/// this is 16 GiB: more than most caches have, in a list of 64 KiB.
pub const MOST_TOKENS: usize = 16_384;
