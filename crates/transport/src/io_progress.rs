//! The results of reading from a socket and of writing queued output to it.

/// The result of one read from a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// This number of bytes was read. The socket may have more input.
    Bytes(usize),
    /// The socket has no input at present: wait until it is readable.
    Nothing,
    /// The peer will send no more bytes (end of the stream).
    Closed,
}

/// The result of writing queued output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendProgress {
    /// The kernel has accepted all queued output.
    All,
    /// The kernel accepts no more output at present: wait until the socket is writable.
    Blocked,
}

/// The maximum number of slices in one system call. Eight read responses of 4 KiB need 16 slices,
/// and a read response of 128 KiB from cache slots needs 33.
pub const MAX_SLICES: usize = 64;
