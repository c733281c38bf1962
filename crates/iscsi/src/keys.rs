//! Text keys (RFC 7143, 13): offer, answer, result.

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

/// How the bytes of a connection are compressed in full feature phase. This is ours: no standard has
/// it, and a peer of another make does not understand the key.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Compression {
    /// LZ4: fast.
    Lz4,
    /// Zstandard, at a fast level: smaller.
    Zstd,
}

impl Compression {
    /// As on the wire, and in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// What one end wants of a session: its own proposal, and the limit of what it takes from the
/// peer's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NegotiationOffer {
    /// CRC32C over headers.
    pub header_digest: DigestPolicy,
    /// CRC32C over data.
    pub data_digest: DigestPolicy,
    /// Compression that is proposed, most wanted first, or taken. Without any, none is proposed, and
    /// none taken.
    pub compression: Vec<Compression>,
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

impl NegotiationOffer {
    /// What our initiator proposes unless told otherwise.
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

    /// What our target takes unless told otherwise. Linux proposes the same MaxBurstLength. Four
    /// connections are what initiators that have several at all open by default at most.
    #[must_use]
    pub fn target() -> Self {
        Self {
            max_connections: 4,
            max_burst_length: 16_776_192,
            max_outstanding_r2t: 16,
            // it is ready at once; an initiator that wants to wait says so
            default_time2wait: 0,
            error_recovery_level: 2,
            ..Self::initiator()
        }
    }

    /// Names the field, as the key is spelled, that is outside its range (RFC 7143, 13).
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

/// What two ends agreed on, with the standard's defaults where nothing was said.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parameters {
    /// Digests in both directions.
    pub digests: Digests,
    /// What is compressed from full feature phase on, in both directions.
    pub compression: Option<Compression>,
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

/// The names of all keys that are negotiated, as on the wire; those of CHAP are apart.
pub fn names() -> impl Iterator<Item = &'static str> {
    table::names()
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
    /// AuthMethod without one that this end takes.
    #[error("no authentication method in common")]
    NoAuthMethod,
    /// SessionType is neither `Discovery` nor `Normal`.
    #[error("an unknown type of session")]
    SessionType,
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

/// A key that arrives at the target in full feature phase, SendTargets apart: changes
/// `parameters` where the key may change then, and returns the value to answer with, if one is
/// due.
pub fn receive_in_full_feature(
    key: &str,
    value: &str,
    parameters: &mut Parameters,
) -> Option<&'static str> {
    match TextKey::from_name(key) {
        // To answer an answer could go on for ever.
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
        // Of login only, or the target's to send.
        Some(_) => Some("Reject"),
    }
}
