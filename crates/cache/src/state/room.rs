//! The room in the log that writes have reserved, and the writes that wait for room.

use crate::line::WaitLine;

/// Room in the log that is reserved for writes.
#[derive(Default)]
pub(crate) struct Reserved {
    /// Number of writes with a reservation.
    pub live: usize,
    /// Number of slots that are reserved for write steps which have not begun yet.
    pub slots: usize,
    /// Number of segment headers that are reserved for steps which these writes have not begun yet.
    pub headers: usize,
}

/// Reserved room in the log, and the calls that wait for room.
#[derive(Default)]
pub(crate) struct WriteRoom {
    /// Log space that is reserved for writes which have not used it yet.
    pub reserved: Reserved,
    /// The writes that wait for room in the log, each with the blocks that it wants. They hold no reservation.
    pub log_line: WaitLine,
    /// Bytes of data that the writes in `log_line` keep in memory.
    pub held_bytes: usize,
    /// The writes with a reservation that wait for their next step, each with the slots that it
    /// wants.
    pub step_line: WaitLine,
    /// True if a rollback to the last flush is running: new writes wait.
    pub is_rolling_back: bool,
}
