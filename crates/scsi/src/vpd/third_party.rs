//! VPD page 8Fh: third-party copy (SPC-4, 7.8.17; SBC-3, 6.6.6).

use super::page::framed;
use crate::{
    OPERATIONS,
    copy::{CONCURRENT, RANGES, ROD_TYPE, limits},
};

/// Limits of third-party copies, which the storage itself makes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ThirdPartyCopy {
    /// The block length of the unit in bytes, which the limits in this page are based on.
    pub block_size: u32,
    /// Maximum number of blocks that one ROD token can represent.
    pub token_blocks: u64,
    /// Optimal number of blocks for one ROD token.
    pub optimal_blocks: u64,
    /// INACTIVITY TIMEOUT in seconds if the initiator requests none.
    pub default_timeout_s: u32,
    /// The longest INACTIVITY TIMEOUT in seconds that an initiator may request.
    pub maximum_timeout_s: u32,
}

impl ThirdPartyCopy {
    pub const PAGE: u8 = 0x8f;

    /// Encodes VPD page 8Fh (third-party copy) with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        append(&mut rest, 0x0000, &self.token_limits());
        append(&mut rest, 0x0001, &commands());
        append(&mut rest, 0x0004, &parameters());
        let descriptors = [&[limits::DESCRIPTORS.len() as u8], &limits::DESCRIPTORS[..]].concat();
        append(&mut rest, 0x0008, &descriptors);
        append(&mut rest, 0x0108, &rod_types());
        append(&mut rest, 0x8001, &self.general());
        framed(Self::PAGE, &rest)
    }

    /// Encodes the descriptor "block device ROD token limits".
    fn token_limits(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[6..8].copy_from_slice(&(RANGES as u16).to_be_bytes());
        bytes[8..12].copy_from_slice(&self.maximum_timeout_s.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.default_timeout_s.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.token_blocks.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.optimal_blocks.to_be_bytes());
        bytes
    }

    /// Encodes the descriptor "general copy operations" of the page.
    fn general(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&(CONCURRENT as u32).to_be_bytes());
        bytes[4..8].copy_from_slice(&(CONCURRENT as u32).to_be_bytes());
        bytes[8..12].copy_from_slice(&(u32::from(u16::MAX) * self.block_size).to_be_bytes());
        bytes[12] = self.block_size.trailing_zeros() as u8;
        bytes
    }
}

/// Encodes the descriptor "supported commands" with the third-party copy commands in the table of
/// operations.
fn commands() -> Vec<u8> {
    let mut bytes = vec![0];
    for opcode in [0x83, 0x84] {
        let actions: Vec<u8> = OPERATIONS
            .iter()
            .filter(|operation| operation.opcode == opcode)
            .filter_map(|operation| operation.service_action.map(|action| action as u8))
            .collect();
        bytes.extend_from_slice(&[opcode, actions.len() as u8]);
        bytes.extend_from_slice(&actions);
    }
    bytes[0] = bytes.len() as u8 - 1;
    bytes
}

/// Encodes the descriptor "parameter data" of the page.
fn parameters() -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[4..6].copy_from_slice(&limits::CSCDS.to_be_bytes());
    bytes[6..8].copy_from_slice(&limits::SEGMENTS.to_be_bytes());
    bytes[8..12].copy_from_slice(&limits::BYTES.to_be_bytes());
    bytes
}

/// Encodes the descriptor "ROD token features and supported ROD types". The unit supports one type,
/// which it accepts and returns in tokens.
fn rod_types() -> Vec<u8> {
    let mut bytes = vec![0; 4 + 64];
    bytes[2..4].copy_from_slice(&64u16.to_be_bytes());
    bytes[4..8].copy_from_slice(&ROD_TYPE.to_be_bytes());
    bytes[8] = 0x03;
    bytes[10..12].copy_from_slice(&0x8000u16.to_be_bytes());
    bytes
}

/// Appends a third-party copy descriptor: type, length, and the contents padded with zeros to whole
/// words.
fn append(rest: &mut Vec<u8>, kind: u16, descriptor: &[u8]) {
    let length = descriptor.len().next_multiple_of(4);
    rest.extend_from_slice(&kind.to_be_bytes());
    rest.extend_from_slice(&(length as u16).to_be_bytes());
    rest.extend_from_slice(descriptor);
    rest.resize(rest.len() + length - descriptor.len(), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_follow_each_other_in_whole_words() {
        let page = ThirdPartyCopy {
            block_size: 512,
            token_blocks: 0x0102,
            optimal_blocks: 3,
            default_timeout_s: 60,
            maximum_timeout_s: 600,
        };
        let bytes = page.to_bytes();
        assert_eq!(bytes[..2], [0, 0x8f]);
        let mut rest = &bytes[4..];
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            kinds.push(u16::from_be_bytes([rest[0], rest[1]]));
            let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
            assert!(length.is_multiple_of(4));
            rest = &rest[4 + length..];
        }
        assert_eq!(kinds, [0x0000, 0x0001, 0x0004, 0x0008, 0x0108, 0x8001]);
        // Check the offsets at which Windows reads the token limits (SBC-3, table 195).
        assert_eq!(bytes[14..16], [0, 64]);
        assert_eq!((bytes[19], bytes[23]), (0x58, 60));
        assert_eq!(bytes[30..32], [1, 2]);
    }
}
