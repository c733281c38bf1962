//! Text keys (RFC 7143, 13): offer, answer, result.

use crate::codec::Digests;

/// What two ends agreed on, with the standard's defaults where nothing was said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// Digests in both directions.
    pub digests: Digests,
    /// Connections that the session may have.
    pub max_connections: u16,
    /// Unsolicited Data-Out needs an R2T first.
    pub initial_r2t: bool,
    /// A command may carry data.
    pub immediate_data: bool,
    /// What *we* take in one data segment, in bytes.
    pub max_recv_data_segment_length: u32,
    /// What the *peer* takes in one data segment, in bytes.
    pub max_send_data_segment_length: u32,
    /// Bytes in one solicited burst or Data-In sequence.
    pub max_burst_length: u32,
    /// Unsolicited bytes of one command, immediate data included.
    pub first_burst_length: u32,
    /// Seconds before a reconnect.
    pub default_time2wait: u16,
    /// Seconds that tasks are kept after that.
    pub default_time2retain: u16,
    /// R2Ts that may be open for one command.
    pub max_outstanding_r2t: u16,
    /// Data PDUs of a sequence come in order of offset.
    pub data_pdu_in_order: bool,
    /// Sequences come in order of offset.
    pub data_sequence_in_order: bool,
    /// 0, 1 or 2.
    pub error_recovery_level: u8,
}

impl Default for Parameters {
    /// The standard's defaults (RFC 7143, 13).
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_recv_data_segment_length: 8192,
            max_send_data_segment_length: 8192,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
        }
    }
}
