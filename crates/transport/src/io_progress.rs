//! How far one look at a socket got.

/// What one look at the socket brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing for now: await readiness.
    Nothing,
    /// The peer has closed its half.
    Closed,
}

/// How far a write of queued output got.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendProgress {
    /// Everything queued is with the kernel.
    All,
    /// The kernel takes no more for now: await writability.
    Blocked,
}

/// Slices in one system call: a batch of eight reads of 4 KiB takes sixteen, a read of 128 KiB from
/// cache slots thirty-three.
pub const MAX_SLICES: usize = 64;
