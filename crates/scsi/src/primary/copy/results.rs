//! Parameter data of RECEIVE COPY RESULTS and RECEIVE ROD TOKEN INFORMATION (SPC-4, 6.22 to 6.28).

use super::{list::limits, token::TOKEN_BYTES};
use crate::Sense;

/// The progress or the result of a third-party copy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CopyStatus {
    /// Service action of the command that has requested the copy.
    pub service_action: u8,
    pub state: CopyState,
    /// The number of segments or ranges that were processed.
    pub segments: u16,
    /// The number of blocks that were written, or that the token represents.
    pub blocks: u64,
    /// The ROD token that the command created.
    pub token: Option<[u8; TOKEN_BYTES]>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyState {
    Running,
    Done,
    /// The copy ended with this sense data; a part of the blocks may have been copied.
    Failed(Sense),
    Aborted,
}

impl CopyStatus {
    /// Encodes the response to COPY STATUS (LID1).
    #[must_use]
    pub fn to_short_bytes(&self) -> Vec<u8> {
        let status = match self.state {
            CopyState::Running => 0x00,
            CopyState::Done => 0x01,
            CopyState::Failed(_) | CopyState::Aborted => 0x02,
        };
        let mut bytes = vec![0, 0, 0, 8, status];
        bytes.extend_from_slice(&self.segments.to_be_bytes());
        bytes.push(IN_BLOCKS);
        bytes.extend_from_slice(&u32::try_from(self.blocks).unwrap_or(u32::MAX).to_be_bytes());
        bytes
    }

    /// Encodes COPY STATUS (LID4) data, or RECEIVE ROD TOKEN INFORMATION data if `tokens` is true.
    #[must_use]
    pub fn to_long_bytes(&self, tokens: bool) -> Vec<u8> {
        let sense = match self.state {
            CopyState::Failed(sense) => sense.to_descriptor_bytes(),
            _ => Vec::new(),
        };
        let mut bytes = vec![0; 32];
        bytes[4] = self.service_action & 0x1f;
        bytes[5] = match self.state {
            CopyState::Running => 0x11,
            CopyState::Done => 0x01,
            CopyState::Failed(_) => 0x02,
            CopyState::Aborted => 0x60,
        };
        // Byte 12, EXTENDED COPY COMPLETION STATUS, is the SCSI status of the copy command.
        bytes[12] = if matches!(self.state, CopyState::Failed(_)) { 0x02 } else { 0 };
        (bytes[13], bytes[14]) = (SENSE_BYTES as u8, sense.len().min(SENSE_BYTES) as u8);
        bytes[15] = IN_BLOCKS;
        bytes[16..24].copy_from_slice(&self.blocks.to_be_bytes());
        bytes[24..26].copy_from_slice(&self.segments.to_be_bytes());
        bytes.extend_from_slice(&sense[..sense.len().min(SENSE_BYTES)]);
        bytes.resize(32 + SENSE_BYTES, 0);
        if tokens {
            let length = self.token.map_or(0, |_| TOKEN_BYTES as u32 + 2);
            bytes.extend_from_slice(&length.to_be_bytes());
            if let Some(token) = &self.token {
                bytes.extend_from_slice(&[0, 0]);
                bytes.extend_from_slice(token);
            }
        }
        // The header field AVAILABLE DATA does not count its own four bytes.
        let available = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&available.to_be_bytes());
        bytes
    }

    /// Encodes FAILED SEGMENT DETAILS (LID1) data: the sense data of the failed copy, or no data.
    #[must_use]
    pub fn to_failed_segment(&self) -> Vec<u8> {
        let CopyState::Failed(sense) = self.state else { return vec![0; 4] };
        let sense = sense.to_fixed_bytes();
        let mut bytes = vec![0; 60];
        bytes[56] = 0x02;
        bytes[58..60].copy_from_slice(&(sense.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&sense);
        let available = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&available.to_be_bytes());
        bytes
    }
}

/// Encodes OPERATING PARAMETERS data of a unit with blocks of `block_size` bytes.
#[must_use]
pub fn operating_parameters(block_size: u32) -> Vec<u8> {
    let mut bytes = vec![0; 44];
    // SNLID: a list may be sent without an identifier.
    bytes[4] = 0x01;
    bytes[8..10].copy_from_slice(&limits::CSCDS.to_be_bytes());
    bytes[10..12].copy_from_slice(&limits::SEGMENTS.to_be_bytes());
    bytes[12..16].copy_from_slice(&limits::BYTES.to_be_bytes());
    bytes[16..20].copy_from_slice(&(u32::from(u16::MAX) * block_size).to_be_bytes());
    bytes[34..36].copy_from_slice(&(CONCURRENT as u16).to_be_bytes());
    bytes[36] = CONCURRENT as u8;
    bytes[37] = block_size.trailing_zeros() as u8;
    bytes[43] = limits::DESCRIPTORS.len() as u8;
    bytes.extend_from_slice(&limits::DESCRIPTORS);
    let available = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&available.to_be_bytes());
    bytes
}

/// The most copies with a list identifier that a unit keeps for one nexus: copies that are running,
/// and copies that have ended and whose results can be queried.
pub const CONCURRENT: usize = 16;
/// The value of TRANSFER COUNT UNITS for logical blocks.
const IN_BLOCKS: u8 = 0xf1;
/// The bytes reserved for sense data: the longest that we return, rounded up to a multiple of four.
const SENSE_BYTES: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: CopyState) -> CopyStatus {
        CopyStatus { service_action: 0x10, state, segments: 2, blocks: 0x0102, token: None }
    }

    #[test]
    fn statuses_byte_by_byte() {
        let done = status(CopyState::Done);
        assert_eq!(done.to_short_bytes(), [0, 0, 0, 8, 1, 0, 2, 0xf1, 0, 0, 1, 2]);
        let long = done.to_long_bytes(false);
        assert_eq!(long[..16], [0, 0, 0, 56, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0xf1]);
        assert_eq!(long[16..26], [0, 0, 0, 0, 0, 0, 1, 2, 0, 2]);
        let failed = status(CopyState::Failed(Sense::UNREACHABLE_COPY_TARGET)).to_long_bytes(false);
        assert_eq!((failed[5], failed[14], &failed[32..36]), (2, 8, &[0x72, 0x0a, 0x08, 0x04][..]));
        let token = CopyStatus { token: Some([7; TOKEN_BYTES]), ..done };
        let with = token.to_long_bytes(true);
        assert_eq!(with.len(), 60 + 4 + 2 + 512);
        assert_eq!(with[60..66], [0, 0, 2, 2, 0, 0]);
    }

    #[test]
    fn operating_parameters_end_with_the_descriptors() {
        let bytes = operating_parameters(512);
        assert_eq!(bytes[..4], [0, 0, 0, 42]);
        assert_eq!(bytes[8..12], [0, 8, 0, 64]);
        assert_eq!(bytes[37], 9);
        assert_eq!(bytes[43..], [2, 0x02, 0xe4]);
    }
}
