//! Text keys (RFC 7143, 13): offer, answer, result.

use crate::codec::Digests;

/// Whether a digest is wanted, in one kind of segment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DigestPolicy {
    /// Never.
    Off,
    /// Rather not, but the peer decides: `None,CRC32C`.
    #[default]
    Allow,
    /// Rather yes, but the peer decides: `CRC32C,None`.
    Prefer,
    /// No login without.
    Require,
}

/// What one end wants of a session: its own proposal, and the limit of what it takes from the
/// peer's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offer {
    /// CRC32C over headers.
    pub header_digest: DigestPolicy,
    /// CRC32C over data.
    pub data_digest: DigestPolicy,
    /// At most so many connections in the session, 1 to 65535.
    pub max_connections: u16,
    /// Insist on an R2T before unsolicited Data-Out.
    pub initial_r2t: bool,
    /// Let commands carry data.
    pub immediate_data: bool,
    /// What we take in one data segment: 512 to 2^24 - 1 bytes.
    pub max_recv_data_segment_length: u32,
    /// At most so much in one burst: 512 to 2^24 - 1 bytes.
    pub max_burst_length: u32,
    /// At most so much unsolicited data for one command: 512 to 2^24 - 1 bytes.
    pub first_burst_length: u32,
    /// At least so long before a reconnect: 0 to 3600 seconds.
    pub default_time2wait: u16,
    /// At most so long are tasks kept after that: 0 to 3600 seconds.
    pub default_time2retain: u16,
    /// At most so many R2Ts open for one command, 1 to 65535.
    pub max_outstanding_r2t: u16,
    /// Insist on data PDUs in order of offset.
    pub data_pdu_in_order: bool,
    /// Insist on sequences in order of offset.
    pub data_sequence_in_order: bool,
    /// At most this recovery level: 0, 1 or 2.
    pub error_recovery_level: u8,
}

impl Offer {
    /// What our initiator proposes unless told otherwise.
    #[must_use]
    pub fn initiator() -> Self {
        Self {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            max_connections: 1,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 262_144,
            max_burst_length: 1_048_576,
            first_burst_length: 262_144,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 8,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
        }
    }

    /// What our target takes unless told otherwise. Linux proposes the same MaxBurstLength.
    #[must_use]
    pub fn target() -> Self {
        Self { max_burst_length: 16_776_192, max_outstanding_r2t: 16, ..Self::initiator() }
    }
}

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

/// Text that does not read or does not fit the negotiation. Who receives it ends the login.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// Not a list of `key=value` pairs as RFC 7143 6.1 writes them.
    #[error("malformed text: {0}")]
    Malformed(&'static str),
    /// More text than we keep, in bytes.
    #[error("more than {0} bytes of text")]
    TooLong(usize),
    /// A key a second time.
    #[error("{0} was negotiated before")]
    Repeated(String),
    /// A key in the wrong stage, session or direction.
    #[error("{0} is not allowed here")]
    NotAllowed(String),
    /// A value that the key cannot have, where no answer can mend it.
    #[error("{0} has a value that it cannot have")]
    Value(String),
    /// An answer that does not follow from the proposal.
    #[error("the answer to {0} does not follow from what was proposed")]
    Answer(String),
    /// The result breaks a rule between keys, or is not what this end can live with.
    #[error("no agreement: {0}")]
    Disagreement(&'static str),
}

/// The pairs of a whole text (RFC 7143, 6.1): at most 128 of them, no key twice.
pub fn parse(_text: &[u8]) -> Result<Vec<(&str, &str)>, KeyError> {
    todo!()
}

/// Appends `key=value` and the zero byte that ends the pair.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// A key that arrives in full feature phase, SendTargets apart: changes `parameters` where the
/// key may change then, and returns the value to answer with, if one is due.
pub fn receive_in_full_feature(
    _key: &str,
    _value: &str,
    _parameters: &mut Parameters,
) -> Option<&'static str> {
    todo!()
}
