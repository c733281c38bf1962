//! Limits and times of the target's machine.

use std::time::Duration;

/// What a session may hold, and how long a silent peer is waited for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Commands that a session may have in progress or on their way: the width of the command
    /// window. 1 to 65,536; default 128, what Linux queues for one session.
    pub queue_commands: u32,
    /// Immediate commands in progress beside those. Default 16.
    pub immediate_commands: u32,
    /// The longest write whose data is asked for, in bytes; a longer one fails with INVALID FIELD
    /// IN CDB. Default 32 MiB, twice the transfer length that a block unit announces.
    pub max_transfer_bytes: u32,
    /// Data that may be asked for with R2Ts and not yet be worked off, in bytes for one
    /// connection; further writes wait. One write is always let through. Default 32 MiB.
    pub solicited_bytes: u64,
    /// Statuses of one connection that the initiator may leave unacknowledged from recovery level 1
    /// on; with more the connection counts as failed (RFC 7143, 4.2.2.2 asks for such a bound).
    /// Default 1024, eight windows.
    pub unacknowledged_statuses: u32,
    /// Data-In kept from recovery level 1 on until it is acknowledged, in bytes for one connection,
    /// echoes and texts with it. It is kept by reference; above that the oldest is let go, and a
    /// SNACK for it rejected. As much is kept of what ends after its connection was lost.
    /// Default 8 MiB, twice what 32 reads of 128 KiB have on their way.
    pub retained_bytes: usize,
    /// After so long without a PDU a connection with unacknowledged statuses is asked for them with
    /// a NOP-In (RFC 7143, 7.1.4.2), from recovery level 1 on. Default 3 s.
    pub acknowledge_after: Duration,
    /// Data-Out that was asked for and does not come counts as lost after so long, from recovery
    /// level 1 on (RFC 7143, 7.1.4.1). It also bounds what a task management function waits for.
    /// Default 10 s: far longer than a burst takes, and shorter than the 30 s in which initiators
    /// give a command up.
    pub sequence_time: Duration,
    /// A task management function does not wait any longer for data that its tasks were asked for
    /// when so long nothing of it has come. Default 2 s: far longer than a round trip, even with a
    /// segment lost. It is not much, since Linux sends nothing more after its request (its
    /// `node.session.iscsi.FastAbort`, on by default, does as if that had been agreed on).
    pub burst_silence: Duration,
    /// A session that holds data of waiting writes ends after so long without progress. The writes wait for
    /// commands before them or for the rest of their data. Default 15 s: longer than `sequence_time`, so that
    /// lost data can be requested again.
    pub stalled_after: Duration,
    /// The most time that is left out of `stalled_after` because the initiator could do nothing: its connection was
    /// not read, or the R2T had not been sent. Default 60 s; an initiator that reads no output for so long counts
    /// as gone.
    pub excused_time: Duration,
    /// A write that waits so long for room for its data, because other sessions hold it, ends with BUSY. Otherwise
    /// it would keep the data that came with it while others wait. Nothing of it was performed, and the initiator
    /// repeats it. Default 5 s: a sixth of the 30 s after which Linux gives up a command, so that it is repeated a
    /// few times before that.
    pub room_time: Duration,
    /// While other sessions lack room, a session ends if the data of one of its writes takes longer than this to
    /// come. Default 60 s: no known initiator waits longer for a command (Linux 30 s, Windows 60 s).
    pub data_time: Duration,
    /// After so long without a PDU the target sends a NOP-In. Default 15 s.
    pub ping_after: Duration,
    /// After so long without a PDU since that NOP-In the peer counts as gone. Default 45 s.
    pub dead_after: Duration,
    /// How long a connection may take to log in. Default 15 s.
    pub login_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_commands: 128,
            immediate_commands: 16,
            max_transfer_bytes: 32 << 20,
            solicited_bytes: 32 << 20,
            unacknowledged_statuses: 1024,
            retained_bytes: 8 << 20,
            acknowledge_after: Duration::from_secs(3),
            sequence_time: Duration::from_secs(10),
            burst_silence: Duration::from_secs(2),
            stalled_after: Duration::from_secs(15),
            excused_time: Duration::from_secs(60),
            room_time: Duration::from_secs(5),
            data_time: Duration::from_secs(60),
            ping_after: Duration::from_secs(15),
            dead_after: Duration::from_secs(45),
            login_time: Duration::from_secs(15),
        }
    }
}

impl Settings {
    /// How wide the command window opens: `queue_commands` within its limits.
    pub(super) fn window_commands(&self) -> u32 {
        self.queue_commands.clamp(1, 1 << 16)
    }
}
