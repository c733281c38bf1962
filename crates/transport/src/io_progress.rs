//! The results of one read or write of a socket.

/// The result of one read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// This number of bytes was read. The socket may hold more.
    Bytes(usize),
    /// The socket has no input now. Wait until it is readable.
    Nothing,
    /// The peer has closed its direction of the connection.
    Closed,
}

/// The result of writing queued output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendProgress {
    /// The kernel has accepted all queued output.
    All,
    /// The kernel accepts no more now. Wait until the socket is writable.
    Blocked,
}

/// The maximum number of slices in one system call. Eight read responses of 4 KiB need 16 slices,
/// and a read response of 128 KiB from cache slots needs 33.
pub const MAX_SLICES: usize = 64;
