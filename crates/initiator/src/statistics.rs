//! Counters of a session since it was opened, summed over all its connections and reconnects.

use std::time::Duration;

use iscsi::{PduSizes, keys::Compression, session::initiator::InitiatorPduCounters};
use scsi::CommandCode;

/// Counters since the session was opened, summed over all its connections and reconnects.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorStatistics {
    pub calls: InitiatorCallCounters,
    /// The PDUs and bytes that crossed the link.
    pub traffic: InitiatorTrafficCounters,
    /// Counters of losses on the link, and of commands that were sent again.
    pub recovery: InitiatorRecoveryCounters,
    /// The compression of the current or the last session.
    pub compression: Option<Compression>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorCallCounters {
    /// Number of READ commands that the target has answered.
    pub reads: u64,
    /// Number of WRITE commands that the target has answered.
    pub writes: u64,
    /// Number of answered SYNCHRONIZE CACHE commands.
    pub flushes: u64,
    /// Number of UNMAP and WRITE SAME commands that the target has answered.
    pub discards: u64,
    /// Number of all other commands that the target has answered.
    pub others: u64,
    /// Number of commands that failed after all retries.
    pub failures: u64,
    /// Number of times that a command was sent again because the target was busy or had aborted it.
    pub retries: u64,
    /// Commands that the target did not answer within the time-out.
    pub time_outs: u64,
    /// The times between the submission of commands and their answers.
    pub round_trips: RoundTrips,
}

/// Counters of the PDUs and bytes that a session sent and received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorTrafficCounters {
    pub pdus_out: u64,
    pub pdus_in: u64,
    /// PDUs sent in full feature phase, by size.
    pub sizes_out: PduSizes,
    /// PDUs received in full feature phase, by size.
    pub sizes_in: PduSizes,
    /// Number of bytes sent, including headers, before compression.
    pub bytes_out: u64,
    /// Number of bytes received, including headers, after decompression.
    pub bytes_in: u64,
    /// Number of bytes sent on the link. With compression, this is less than `bytes_out`.
    pub link_bytes_out: u64,
    /// Number of bytes received on the link. With compression, this is less than `bytes_in`.
    pub link_bytes_in: u64,
    /// Number of R2Ts that the initiator has answered. Each one delays its write by a round trip.
    pub r2ts: u64,
}

/// Counters of losses on the link, and of the repairs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorRecoveryCounters {
    /// Number of connections that have failed.
    pub connections_lost: u64,
    /// Connections that replaced a failed one, in the same session or in a new one.
    pub reconnects: u64,
    /// Number of commands that TASK REASSIGN has moved to another connection (error recovery level 2).
    pub reassigned: u64,
    /// Number of commands that were sent again because the target had not received them.
    pub resent: u64,
    /// Requests for lost or damaged PDUs (error recovery level 1).
    pub snacks: u64,
    /// Data PDUs that arrived with a wrong digest.
    pub digest_errors: u64,
    /// Number of commands that were sent again because their connection was lost.
    pub replays: u64,
    /// Number of commands that were sent again because of a unit attention condition.
    pub unit_attentions: u64,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InitiatorConnectionStats {
    pub cid: u16,
    /// Number of commands in flight on this connection.
    pub commands: u32,
    /// Number of data bytes of the commands in flight on this connection.
    pub bytes: u64,
    /// Number of bytes sent on this connection, including headers.
    pub bytes_out: u64,
    /// Number of bytes received on this connection, including headers.
    pub bytes_in: u64,
}

/// The durations of commands: their sum and their distribution. Each class of the distribution ends at twice the
/// duration of the one before.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RoundTrips {
    pub count: u64,
    /// Sum of the durations in microseconds.
    pub sum_us: u64,
    /// The longest time in microseconds.
    pub max_us: u64,
    /// `classes[i]` counts the durations from 2^(i-1) up to less than 2^i microseconds; the last class has no upper
    /// bound.
    pub classes: [u64; 32],
}

impl RoundTrips {
    pub(crate) fn add(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.max_us = self.max_us.max(us);
        let class = (u64::BITS - us.leading_zeros()) as usize;
        self.classes[class.min(self.classes.len() - 1)] += 1;
    }

    /// Returns the mean time in microseconds; 0 without commands.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        self.sum_us.checked_div(self.count).unwrap_or(0)
    }

    /// Returns a duration in microseconds within which `share` (0 to 1) of all commands were answered. It is at most
    /// twice the exact value; 0 without commands.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return (1_u64 << class).min(self.max_us);
            }
        }
        self.max_us
    }
}

impl InitiatorStatistics {
    /// Adds the amount by which a connection's counters have grown since `before`.
    pub(crate) fn add_counters(
        &mut self,
        before: &InitiatorPduCounters,
        now: &InitiatorPduCounters,
    ) {
        self.traffic.pdus_out += now.pdus_out - before.pdus_out;
        self.traffic.pdus_in += now.pdus_in - before.pdus_in;
        self.traffic.sizes_out += now.sizes_out - before.sizes_out;
        self.traffic.sizes_in += now.sizes_in - before.sizes_in;
        self.traffic.r2ts += now.r2ts - before.r2ts;
        self.recovery.reassigned += now.reassigned - before.reassigned;
        self.recovery.resent += now.retries - before.retries;
        self.recovery.snacks += now.snacks - before.snacks;
        self.recovery.digest_errors += now.digest_errors - before.digest_errors;
    }

    pub(crate) fn count_command(&mut self, command: CommandCode) {
        use CommandCode::{Opcode, VariableLength};
        // The service actions are those of object commands: READ; WRITE, APPEND, CREATE AND WRITE; the FLUSH commands;
        // PUNCH and CLEAR.
        *match command {
            Opcode(0x08 | 0x28 | 0xa8 | 0x88) | VariableLength(0x8885) => &mut self.calls.reads,
            Opcode(0x0a | 0x2a | 0xaa | 0x8a) | VariableLength(0x8886 | 0x8887 | 0x8892) => {
                &mut self.calls.writes
            }
            Opcode(0x35 | 0x91) | VariableLength(0x8888 | 0x889a..=0x889c) => {
                &mut self.calls.flushes
            }
            Opcode(0x41 | 0x93 | 0x42) | VariableLength(0x8884 | 0x8889) => {
                &mut self.calls.discards
            }
            _ => &mut self.calls.others,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_counted_in_their_classes() {
        let mut trips = RoundTrips::default();
        assert_eq!((trips.mean_us(), trips.quantile_us(0.5)), (0, 0));
        for us in [0, 1, 100, 100, 5000] {
            trips.add(Duration::from_micros(us));
        }
        assert_eq!(trips.classes[0], 1);
        assert_eq!(trips.classes[7], 2);
        assert_eq!(trips.mean_us(), 1040);
        assert_eq!(trips.quantile_us(0.5), 128);
        assert_eq!(trips.quantile_us(1.0), 5000);
        trips.add(Duration::MAX);
        assert_eq!(trips.max_us, u64::MAX);
    }
}
