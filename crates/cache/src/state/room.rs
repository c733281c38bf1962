//! The room in the log that writes have reserved, and the writes that wait for room.

use crate::line::WaitLine;

/// Room in the log that is reserved for writes.
#[derive(Default)]
pub(crate) struct Reserved {
    /// Writes with a reservation.
    pub live: usize,
    /// Slots that writes with a reservation have not placed yet.
    pub slots: usize,
    /// Segment headers that are reserved for steps which these writes have not begun yet.
    pub headers: usize,
}

/// Reserved room in the log, and the calls that wait for room.
#[derive(Default)]
pub(crate) struct WriteRoom {
    /// Room in the log that writes have reserved and have not used yet.
    pub reserved: Reserved,
    /// Writes that wait for room in the log, each with the blocks that it wants. They hold no reservation.
    pub log_line: WaitLine,
    /// Bytes of data that the writes in `log_line` keep in memory.
    pub held_bytes: usize,
    /// Writes with a reservation that wait for their next step, each with the slots that it wants.
    pub step_line: WaitLine,
    /// A rollback to the last flush is running: new writes wait.
    pub is_rolling_back: bool,
}
