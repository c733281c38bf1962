//! The results of one read or write of a socket.

/// The result of one read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// This number of bytes was read. The socket may have more.
    Bytes(usize),
    /// The socket has no input at present: wait until it is readable.
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

/// Maximum number of slices in one system call: eight read responses of 4 KiB need 16, a read
/// response of 128 KiB from cache slots needs 33.
pub const MAX_SLICES: usize = 64;
