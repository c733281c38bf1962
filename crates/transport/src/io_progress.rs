//! The results of one read or write of a socket.

/// The result of one read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// This number of bytes was read. There may be more.
    Bytes(usize),
    /// No input at present: wait for readiness.
    Nothing,
    /// The peer has closed its sending side.
    Closed,
}

/// The result of writing queued output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendProgress {
    /// The kernel has accepted all queued output.
    All,
    /// The kernel accepts no more at present: wait until the socket is writable.
    Blocked,
}

/// Maximum number of slices in one system call: a batch of eight reads of 4 KiB needs 16, a read of 128 KiB from
/// cache slots needs 33.
pub const MAX_SLICES: usize = 64;
