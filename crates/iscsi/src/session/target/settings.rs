//! Limits of a session at the target: how much memory it may use, and how long it waits for its
//! initiator.

use std::time::Duration;

/// Limits for the memory of a session, and for the time to wait for a silent initiator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The width of the command window: the most commands of a session that may be in progress or
    /// in transit. 1 to 65,536; default 128, the number that Linux queues for one session.
    pub queue_commands: u32,
    /// The most immediate commands in progress, in addition to `queue_commands`. Default 16.
    pub immediate_commands: u32,
    /// The longest write in bytes for which the target requests data. A longer write fails with
    /// INVALID FIELD IN CDB. Default 32 MiB, twice the transfer length that a block unit announces.
    pub max_transfer_bytes: u32,
    /// The most data in bytes that may be requested on one connection for writes in progress.
    /// Further writes wait, but a write that is alone may exceed the limit. Default 32 MiB.
    pub solicited_bytes: u64,
    /// The most statuses of one connection that the initiator may leave unacknowledged, from error
    /// recovery level 1 on. If the initiator leaves more, the connection is considered failed (RFC
    /// 7143, 4.2.2.2 recommends such a limit). Default 1024, eight times the default window.
    pub unacknowledged_statuses: u32,
    /// From error recovery level 1 on, the most data in bytes of one connection that is kept until
    /// the initiator acknowledges it: Data-In, echoed pings and texts. The data is kept by
    /// reference. Beyond the limit, the oldest data is discarded, and a SNACK for it is rejected.
    /// The limit also applies to the responses that are kept for a failed connection. Default 8
    /// MiB, twice the data of 32 reads of 128 KiB.
    pub retained_bytes: usize,
    /// From error recovery level 1 on, the target sends a NOP-In after this time without a PDU on a
    /// connection with unacknowledged statuses, so that the initiator acknowledges them (RFC 7143,
    /// 7.1.4.2). Default 3 s.
    pub acknowledge_after: Duration,
    /// From error recovery level 1 on, requested Data-Out is considered lost after this time (RFC
    /// 7143, 7.1.4.1). This is also the longest wait of a task management function. Default 10 s:
    /// far longer than a burst takes, and shorter than the 30 s after which a command times out at
    /// initiators.
    pub sequence_time: Duration,
    /// A task management function stops waiting for the requested data of its tasks when no such
    /// data has arrived for this time. Default 2 s: far longer than a round trip, even if a segment
    /// is lost. The time is short because Linux sends no more data after its request, as if
    /// FastAbort had been negotiated (its `node.session.iscsi.FastAbort` is on by default).
    pub burst_silence: Duration,
    /// A session ends if its waiting writes hold data and make no progress for this time. Such
    /// writes wait for earlier commands or for the rest of their data. Default 15 s: longer than
    /// `sequence_time`, so that lost data can be requested again.
    pub stalled_after: Duration,
    /// The most time that does not count towards `stalled_after` because the initiator could not
    /// make progress: the target did not read its connection, or could not send an R2T. Default 60
    /// s; an initiator that reads no output for that long is considered dead.
    pub excused_time: Duration,
    /// A write that waits for this time for memory that other sessions hold ends with BUSY.
    /// Otherwise it would keep the data that came with it in memory. No part of the write was
    /// executed, and the initiator sends it again. Default 5 s: a sixth of the 30 s after which a
    /// command times out at Linux, so that Linux can send it a few times before that.
    pub room_time: Duration,
    /// While other sessions lack memory, a session ends if the data of one of its writes takes
    /// longer than this to arrive. Default 60 s: no known initiator waits longer for a command
    /// (Linux 30 s, Windows 60 s).
    pub data_time: Duration,
    /// The target sends a ping (NOP-In) when it has received no PDU for this time. Default 15 s.
    pub ping_after: Duration,
    /// The initiator is considered dead if no PDU arrives for this time after the NOP-In that the
    /// target sends after `ping_after`. Default 45 s.
    pub dead_after: Duration,
    /// The longest time that a login may take. Default 15 s.
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
    /// Returns the initial width of the command window, in commands.
    pub(super) fn window_commands(&self) -> u32 {
        self.queue_commands.clamp(1, 1 << 16)
    }
}
