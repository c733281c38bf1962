//! Text keys (RFC 7143, 13): the offer of one end, the negotiation, and the resulting parameters.

mod table;
mod text;
mod negotiation;

use self::table::{KeyKind, LENGTH_MAX, TextKey};
pub use self::text::{TEXT_MAX, pairs, parse, push};
pub(crate) use self::{
    negotiation::{Declared, Negotiation},
    table::IscsiRole,
    text::number_within,
};
use crate::codec::Digests;

/// Whether this end wants CRC32C digests of headers or of data segments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DigestPolicy {
    Off,
    /// Prefer no digest, but let the peer decide: `None,CRC32C`.
    #[default]
    Allow,
    /// Prefer the digest, but let the peer decide: `CRC32C,None`.
    Prefer,
    /// Fail the login without the digest.
    Require,
}

/// The compression method of a connection in full feature phase. Compression is an extension of
/// Forebay; other implementations answer its key with NotUnderstood.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Compression {
    Lz4,
    /// Zstandard at a fast level, which compresses better than LZ4.
    Zstd,
}

impl Compression {
    /// Returns the name on the wire and in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// The offer of one end: the values that it proposes, which are also the limits of the values that
/// it accepts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NegotiationOffer {
    pub header_digest: DigestPolicy,
    pub data_digest: DigestPolicy,
    /// Compression methods to propose and to accept, the most preferred first. An empty list
    /// neither proposes nor accepts compression.
    pub compression: Vec<Compression>,
    /// The most connections in the session, 1 to 65535.
    pub max_connections: u16,
    /// True to require an R2T before all Data-Out.
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// The longest data segment that this end accepts, 512 to 2^24 - 1 bytes.
    pub max_recv_data_segment_length: u32,
    /// The longest burst, 512 to 2^24 - 1 bytes.
    pub max_burst_length: u32,
    /// The maximum length of the unsolicited data of one command, 512 to 2^24 - 1 bytes.
    pub first_burst_length: u32,
    /// DefaultTime2Wait: the least time between the loss of a connection and a reconnect, 0 to 3600
    /// seconds.
    pub default_time2wait: u16,
    /// DefaultTime2Retain: the longest time after DefaultTime2Wait for which the target keeps the
    /// tasks of a lost connection, 0 to 3600 seconds.
    pub default_time2retain: u16,
    /// The maximum number of unanswered R2Ts of one command, 1 to 65535.
    pub max_outstanding_r2t: u16,
    /// True to require that the data PDUs of a sequence arrive in the order of their offsets.
    pub data_pdu_in_order: bool,
    /// True to require that the sequences of a transfer arrive in the order of their offsets.
    pub data_sequence_in_order: bool,
    /// The highest error recovery level: 0, 1 or 2.
    pub error_recovery_level: u8,
}

impl NegotiationOffer {
    /// The default offer of our initiator.
    #[must_use]
    pub fn initiator() -> Self {
        Self {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            compression: Vec::new(),
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

    /// Returns the default offer of our target. MaxBurstLength is the value that Linux initiators
    /// propose. MaxConnections is four, because initiators with several connections open at most
    /// four by default.
    #[must_use]
    pub fn target() -> Self {
        Self {
            max_connections: 4,
            max_burst_length: 16_776_192,
            max_outstanding_r2t: 16,
            // An initiator may reconnect at once; one that prefers to wait can propose a larger
            // value.
            default_time2wait: 0,
            error_recovery_level: 2,
            ..Self::initiator()
        }
    }

    /// Checks the ranges of all fields (RFC 7143, 13). The error is the name of the key that is out
    /// of range.
    pub fn validate(&self) -> Result<(), &'static str> {
        let numbers = [
            (TextKey::MaxConnections, u32::from(self.max_connections)),
            (TextKey::MaxBurstLength, self.max_burst_length),
            (TextKey::FirstBurstLength, self.first_burst_length),
            (TextKey::DefaultTime2Wait, u32::from(self.default_time2wait)),
            (TextKey::DefaultTime2Retain, u32::from(self.default_time2retain)),
            (TextKey::MaxOutstandingR2T, u32::from(self.max_outstanding_r2t)),
            (TextKey::ErrorRecoveryLevel, u32::from(self.error_recovery_level)),
        ];
        for (key, value) in numbers {
            let (KeyKind::Minimum(low, high) | KeyKind::Maximum(low, high)) = key.row().kind else {
                unreachable!("{key:?} is a number")
            };
            if !(low..=high).contains(&value) {
                return Err(key.name());
            }
        }
        if !(512..=LENGTH_MAX).contains(&self.max_recv_data_segment_length) {
            return Err(TextKey::MaxRecvDataSegmentLength.name());
        }
        Ok(())
    }
}

/// The negotiated parameters of a connection. A key that was not negotiated has the default of the
/// standard.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    pub digests: Digests,
    /// The compression of full feature phase, used in both directions; `None` for no compression.
    pub compression: Option<Compression>,
    pub max_connections: u16,
    /// True if the target must send an R2T before all Data-Out.
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// The longest data segment in bytes that *this end* accepts.
    pub max_recv_data_segment_length: u32,
    /// The longest data segment in bytes that the *peer* accepts.
    pub max_send_data_segment_length: u32,
    /// The longest solicited burst or Data-In sequence in bytes.
    pub max_burst_length: u32,
    /// The maximum length in bytes of the unsolicited data of one command, including immediate data.
    pub first_burst_length: u32,
    /// Seconds to wait between the loss of a connection and a reconnect.
    pub default_time2wait: u16,
    /// Seconds after DefaultTime2Wait for which the target keeps the tasks of a lost connection.
    pub default_time2retain: u16,
    pub max_outstanding_r2t: u16,
    /// True if the data PDUs of a sequence are sent in the order of their offsets.
    pub data_pdu_in_order: bool,
    /// True if the sequences of a transfer are sent in the order of their offsets.
    pub data_sequence_in_order: bool,
    pub error_recovery_level: u8,
}

impl Default for Parameters {
    /// Returns the defaults of the standard (RFC 7143, 13).
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            compression: None,
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

/// An error in the login text of the peer or in the negotiation of its keys, which ends the login.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// The text is not a list of `key=value` pairs as in RFC 7143, 6.1.
    #[error("malformed text: {0}")]
    Malformed(&'static str),
    /// The received text is longer than this number of bytes.
    #[error("more than {0} bytes of text")]
    TooLong(usize),
    /// The peer has sent this key twice in one text or in one login.
    #[error("{0} was negotiated before")]
    Repeated(String),
    /// The key is not allowed in this stage, this type of session or this direction.
    #[error("{0} is not allowed here")]
    NotAllowed(String),
    /// The AuthMethod of the peer lists no authentication method that this end accepts.
    #[error("no authentication method in common")]
    NoAuthMethod,
    /// SessionType is neither `Discovery` nor `Normal`.
    #[error("unknown session type")]
    SessionType,
    /// The value is invalid, and the negotiation has no answer that could correct it, such as a
    /// smaller number.
    #[error("{0} has an invalid value")]
    Value(String),
    /// The peer has answered our proposal of this key with a value that is not allowed.
    #[error("the answer to {0} does not follow from the proposal")]
    Answer(String),
    /// The negotiated value violates a rule between keys, or is outside the limits of this end.
    #[error("no agreement on {0}")]
    Disagreement(&'static str),
}

/// Handles a key other than SendTargets that arrives at the target in full feature phase. Changes
/// `parameters` if the key may change in this phase. Returns the value to answer with, or `None` if
/// no answer is due.
pub fn receive_in_full_feature(
    key: &str,
    value: &str,
    parameters: &mut Parameters,
) -> Option<&'static str> {
    match TextKey::from_name(key) {
        // Do not reply to an answer such as NotUnderstood: otherwise the two ends could send each
        // other answers forever.
        _ if text::is_answer_word(value) => None,
        None => Some("NotUnderstood"),
        Some(TextKey::MaxRecvDataSegmentLength) => match text::segment_length(value) {
            Some(length) => {
                parameters.max_send_data_segment_length = length;
                None
            }
            None => Some("Reject"),
        },
        Some(TextKey::InitiatorAlias | TextKey::NodeArchitecture) => None,
        // The initiator may not send this key now: it is allowed during the login only, or it
        // belongs to targets.
        Some(_) => Some("Reject"),
    }
}
